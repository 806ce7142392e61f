//! Flags of the engines that the operator sets itself, which `extraArgs` may not give: the rest of the system rests on
//! them.

use kube::core::Rule;

use crate::cel;

/// Flags of vLLM that a manifest may not give: the field that stands for each, or why it has one value only.
pub const OWNED_VLLM_FLAGS: &[(&str, &str)] = &[
    ("host", "the engine agent is the only client of the engine"),
    ("port", "the engine agent is the only client of the engine"),
    ("uds", "the engine agent is the only client of the engine"),
    ("api-key", "the engine agent is the only client of the engine"),
    ("root-path", "the engine agent is the only client of the engine"),
    ("ssl-keyfile", "the engine agent is the only client of the engine"),
    ("ssl-certfile", "the engine agent is the only client of the engine"),
    (
        "api-server-count",
        "the engine's state is asked from one server process",
    ),
    ("config", "a file could set any of the flags the operator sets"),
    ("model", "spec.model"),
    ("revision", "spec.model"),
    ("tokenizer-revision", "spec.model"),
    ("download-dir", "spec.modelCache"),
    ("served-model-name", "every version is served under the name policy"),
    (
        "generation-config",
        "sampling is what the run says, not what the model's folder says",
    ),
    (
        "override-generation-config",
        "sampling is what the run says, not what the model's folder says",
    ),
    (
        "logprobs-mode",
        "the trainer needs the logprobs of the distribution that was sampled from",
    ),
    ("max-logprobs", "the driver's requests fit the operator's limit"),
    ("seed", "requests carry their own seeds"),
    ("tensor-parallel-size", "engine.vllm.tensorParallel"),
    ("pipeline-parallel-size", "engine.vllm.pipelineParallel"),
    ("data-parallel-size", "engine.vllm.dataParallel"),
    ("nnodes", "engine.vllm.nodes"),
    ("node-rank", "engine.vllm.nodes"),
    ("master-addr", "engine.vllm.nodes"),
    ("master-port", "engine.vllm.nodes"),
    ("headless", "engine.vllm.nodes"),
    ("distributed-executor-backend", "engine.vllm.nodes"),
    ("max-model-len", "engine.vllm.maxModelLen"),
    ("gpu-memory-utilization", "engine.vllm.gpuMemoryUtilization"),
    ("max-num-seqs", "engine.vllm.maxNumSeqs"),
    ("enable-prefix-caching", "engine.vllm.enablePrefixCaching"),
    ("no-enable-prefix-caching", "engine.vllm.enablePrefixCaching"),
    ("quantization", "engine.vllm.quantization"),
    ("enable-lora", "spec.lora"),
    ("max-loras", "spec.lora.maxAdapters"),
    ("max-cpu-loras", "spec.lora.maxAdapters"),
    ("max-lora-rank", "spec.lora.maxRank"),
    (
        "lora-modules",
        "adapters come from the run's store, through the engine agent",
    ),
    ("enable-return-routed-experts", "spec.routedExperts"),
    (
        "enable-sleep-mode",
        "the operator sets it for engines that take turns with a trainer",
    ),
    (
        "no-enable-sleep-mode",
        "the operator sets it for engines that take turns with a trainer",
    ),
    ("weight-transfer-config", "weights come through the engine agent"),
];

/// Flags of SGLang that a manifest may not give: the field that stands for each, or why it has one value only.
pub const OWNED_SGLANG_FLAGS: &[(&str, &str)] = &[
    ("host", "the engine agent is the only client of the engine"),
    ("port", "the engine agent is the only client of the engine"),
    ("api-key", "the engine agent is the only client of the engine"),
    ("admin-api-key", "the engine agent is the only client of the engine"),
    ("ssl-keyfile", "the engine agent is the only client of the engine"),
    ("ssl-certfile", "the engine agent is the only client of the engine"),
    ("config", "a file could set any of the flags the operator sets"),
    ("model-path", "spec.model"),
    ("model", "spec.model"),
    ("revision", "spec.model"),
    ("download-dir", "spec.modelCache"),
    ("served-model-name", "every version is served under the name policy"),
    (
        "sampling-defaults",
        "sampling is what the run says, not what the model's folder says",
    ),
    (
        "preferred-sampling-params",
        "sampling is what the run says, not what the model's folder says",
    ),
    ("weight-version", "the agent says which version serves"),
    ("random-seed", "the operator sets it, so that replicas can be repeated"),
    ("tp-size", "engine.sglang.tensorParallel"),
    ("tensor-parallel-size", "engine.sglang.tensorParallel"),
    ("pp-size", "engine.sglang.pipelineParallel"),
    ("pipeline-parallel-size", "engine.sglang.pipelineParallel"),
    ("dp-size", "engine.sglang.dataParallel"),
    ("data-parallel-size", "engine.sglang.dataParallel"),
    ("nnodes", "engine.sglang.nodes"),
    ("node-rank", "engine.sglang.nodes"),
    ("dist-init-addr", "engine.sglang.nodes"),
    ("nccl-init-addr", "engine.sglang.nodes"),
    ("context-length", "engine.sglang.contextLength"),
    ("mem-fraction-static", "engine.sglang.memoryFraction"),
    ("max-running-requests", "engine.sglang.maxRunningRequests"),
    ("disable-radix-cache", "engine.sglang.enablePrefixCaching"),
    ("quantization", "engine.sglang.quantization"),
    ("enable-lora", "spec.lora"),
    ("max-lora-rank", "spec.lora.maxRank"),
    ("max-loras-per-batch", "spec.lora.maxAdapters"),
    ("max-loaded-loras", "spec.lora.maxAdapters"),
    (
        "lora-target-modules",
        "the operator sets it: any module an adapter may have",
    ),
    (
        "lora-paths",
        "adapters come from the run's store, through the engine agent",
    ),
    ("enable-return-routed-experts", "spec.routedExperts"),
    (
        "enable-memory-saver",
        "the operator sets it for engines that take turns with a trainer",
    ),
    (
        "enable-weights-cpu-backup",
        "the operator sets it for engines that take turns with a trainer",
    ),
];

/// Short forms of owned flags, which a beginning does not give away.
pub(super) const VLLM_SHORT_FLAGS: &[&str] = &["tp", "pp", "dp", "dp[a-z]", "n", "r", "q"];

/// Of these arguments none is a flag that the operator sets itself.
pub(super) fn no_owned_flag(owned: &[(&str, &str)], short: &[&str], engine: &str) -> Rule {
    let long = owned.iter().map(|(flag, _)| flag.replace('-', "[-_]"));
    let names: Vec<String> = long.chain(short.iter().map(|flag| (*flag).to_owned())).collect();
    let pattern = format!("^--?({})(=.*)?$", names.join("|"));
    cel::rule(
        format!("!self.exists(arg, arg.matches('{pattern}'))"),
        &format!(
            "{{self.filter(arg, arg.matches('{pattern}'))[0]}} is a flag that the operator sets itself: use the field of engine.{engine}, \
             spec.model, spec.modelCache, spec.lora or spec.routedExperts that stands for it, or leave it out"
        ),
    )
}
