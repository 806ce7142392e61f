//! The command line and environment of vLLM 0.33.
//!
//! Each flag, with its reason:
//! - (the model): a folder: mounted, or downloaded before the engine starts
//! - `--served-model-name policy`: requests do not depend on where the model came from
//! - `--host 127.0.0.1 --port 8001`: the agent in the same pod is the only client, above all of the dev mode's routes
//! - `--tensor-parallel-size`, `--pipeline-parallel-size`, `--data-parallel-size`: the pool's parallelism; the pod asks
//!   for as many GPUs
//! - `--api-server-count 1`: with data parallelism vLLM would start several servers, and an adapter is loaded only into
//!   the server that gets the request
//! - `--kv-cache-memory-bytes`: on CPUs only, in place of `--gpu-memory-utilization`, which would be a share of the
//!   whole node's memory regardless of the container's limit
//! - `--gpu-memory-utilization`, `--max-model-len`, `--max-num-seqs`, `--quantization`: fields of the pool
//! - `--enable-prefix-caching`, `--no-enable-prefix-caching`: set in either case: the default depends on the model
//! - `--generation-config vllm`: otherwise vLLM applies the temperature, top-p, top-k and penalties of the model's
//!   `generation_config.json` to every request without them, and the recorded logprobs are of a distribution unknown to
//!   the trainer
//! - `--logprobs-mode processed_logprobs`: logprobs after temperature: of the sampled distribution
//! - `--max-logprobs 20`: limits what one request can ask for
//! - `--seed 0`: replicas with the same arguments behave alike; requests bring their own seeds
//! - `--disable-uvicorn-access-log`: the agent sends a request every second
//! - `--enable-lora --max-loras --max-cpu-loras --max-lora-rank`: room for the adapter that serves and the next; the
//!   rank is one that vLLM accepts
//! - `--enable-return-routed-experts`: the pool's `routedExperts`; vLLM refuses it for a dense model
//! - `--enable-sleep-mode`: the pool's `colocated`; the engine can give its GPU memory back, and take it again
//! - `--distributed-executor-backend mp --nnodes --node-rank --master-addr --master-port`, `--headless`: several pods,
//!   without Ray: each starts the same command, all but the first without a server
//!
//! The environment: `VLLM_SERVER_DEV_MODE` opens the routes that load and check weights,
//! `VLLM_ALLOW_RUNTIME_LORA_UPDATING` the routes for adapters; `VLLM_HOST_IP` is the pod's address, since a pod's name
//! may resolve to loopback; caches are on the model cache's volume; `USER` is set because PyTorch asks for it and the
//! image's user table lacks our user; usage reports to vLLM's makers are off.
//!
//! vLLM 0.32's own parser, the newest that installs without a GPU, reads every command line in the golden files
//! (`make check-vllm`).

use grpo_crds::inference_pool::{Device, VllmEngine};

use super::launch::{Arguments, ENGINE_PORT, Launch, RENDEZVOUS_PORT, SERVED_NAME};

/// The version for which this command line is written.
pub const VERSION: &str = "0.33.0";

/// Ranks that `--max-lora-rank` accepts.
const LORA_RANKS: [u32; 9] = [1, 8, 16, 32, 64, 128, 256, 320, 512];

/// Size of the KV cache of an engine on CPUs, in bytes. `extraArgs` can override it: vLLM uses the last value.
const CPU_CACHE_BYTES: u64 = 4 << 30;

pub const COMMAND: [&str; 2] = ["vllm", "serve"];

/// The arguments after [`COMMAND`].
pub fn arguments(engine: &VllmEngine, launch: &Launch<'_>) -> Vec<String> {
    let mut arguments = Arguments::of([launch.model.clone()]);
    arguments
        .set("--served-model-name", SERVED_NAME)
        .set("--host", "127.0.0.1")
        .set("--port", ENGINE_PORT)
        .set("--tensor-parallel-size", engine.tensor_parallel);
    if engine.pipeline_parallel > 1 {
        arguments.set("--pipeline-parallel-size", engine.pipeline_parallel);
    }
    if let Some(copies) = engine.data_parallel.filter(|copies| *copies > 1) {
        arguments
            .set("--data-parallel-size", copies)
            .set("--api-server-count", 1);
    }
    if launch.nodes > 1 {
        arguments
            .set("--distributed-executor-backend", "mp")
            .set("--nnodes", launch.nodes)
            .set("--node-rank", launch.node)
            .set("--master-addr", &launch.leader)
            .set("--master-port", RENDEZVOUS_PORT);
        if launch.node > 0 {
            arguments.flag("--headless");
        }
    }
    match engine.device {
        Device::Gpu => arguments.set("--gpu-memory-utilization", engine.gpu_memory_utilization),
        Device::Cpu => arguments.set("--kv-cache-memory-bytes", CPU_CACHE_BYTES),
    };
    arguments
        .maybe("--max-model-len", engine.max_model_len)
        .maybe("--max-num-seqs", engine.max_num_seqs)
        .maybe("--quantization", engine.quantization.as_deref())
        .flag(match engine.enable_prefix_caching {
            true => "--enable-prefix-caching",
            false => "--no-enable-prefix-caching",
        })
        .set("--generation-config", "vllm")
        .set("--logprobs-mode", "processed_logprobs")
        .set("--max-logprobs", 20)
        .set("--seed", 0)
        .flag("--disable-uvicorn-access-log");
    if let Some(lora) = launch.lora {
        arguments
            .flag("--enable-lora")
            .set("--max-loras", lora.max_adapters)
            .set("--max-cpu-loras", lora.max_adapters)
            .set("--max-lora-rank", lora_rank(lora.max_rank));
    }
    if launch.routed_experts {
        arguments.flag("--enable-return-routed-experts");
    }
    if launch.sleeps {
        arguments.flag("--enable-sleep-mode");
    }
    arguments.extend(&engine.extra_args).done()
}

/// The smallest rank known to vLLM that is at least `rank`.
fn lora_rank(rank: u32) -> u32 {
    let known = LORA_RANKS.into_iter().find(|known| *known >= rank);
    known.unwrap_or(LORA_RANKS[LORA_RANKS.len() - 1])
}

/// vLLM's environment variables. `cache`: mount path of the model cache.
pub fn environment(launch: &Launch<'_>, cache: &str) -> Vec<(&'static str, String)> {
    let mut environment = vec![
        ("VLLM_SERVER_DEV_MODE", "1".to_owned()),
        ("VLLM_HOST_IP", "$(POD_IP)".to_owned()),
        ("VLLM_NO_USAGE_STATS", "1".to_owned()),
        ("DO_NOT_TRACK", "1".to_owned()),
        ("VLLM_CACHE_ROOT", format!("{cache}/vllm")),
    ];
    if launch.lora.is_some() {
        environment.push(("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "1".to_owned()));
    }
    environment
}

#[cfg(test)]
mod tests;
