//! The command line and environment of SGLang 0.5.23.
//!
//! Each flag, with its reason:
//! - `--model-path`: a folder: mounted, or downloaded before the engine starts
//! - `--served-model-name policy`: requests do not depend on where the model came from
//! - `--host 127.0.0.1 --port 8001`: only the agent in the same pod can reach the server, because every client of the
//!   server can change its weights
//! - `--tp-size`, `--pp-size`, `--dp-size`: the pool's parallelism; the pod asks for as many GPUs
//! - `--context-length`, `--mem-fraction-static`, `--max-running-requests`, `--quantization`: fields of the pool
//! - `--disable-radix-cache`: only where the pool switches prefix caching off
//! - `--sampling-defaults openai`: otherwise the model's `generation_config.json` sets what a request leaves out, and
//!   the recorded logprobs are of a distribution unknown to the trainer
//! - `--weight-version base`: the version in answers until the agent loads another
//! - `--random-seed 0`: replicas with the same arguments behave alike
//! - `--enable-metrics`: the agent forwards the metrics
//! - `--enable-lora --max-lora-rank --lora-target-modules all`: adapters come later, so SGLang cannot infer the
//!   settings from adapters at the start
//! - `--max-loras-per-batch`, `--max-loaded-loras`: one more than adapters: requests for the model itself count as one
//! - `--enable-return-routed-experts`: the pool's `routedExperts`; requests ask for experts explicitly
//! - `--enable-memory-saver --enable-weights-cpu-backup`: the pool's `colocated`; the engine can give its GPU memory
//!   back, and keeps a copy of its weights in the pod's memory meanwhile
//! - `--nnodes --node-rank --dist-init-addr`: several pods: each starts the same command
//!
//! Logprobs are after temperature, SGLang's default; `SGLANG_RETURN_ORIGINAL_LOGPROB` would change that and is set to
//! `0`.
//!
//! `SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION` is off: `/health` would sample a token, which waits while the server
//! loads weights, and the liveness probe would restart the server.
//!
//! The parser of SGLang 0.5.23 reads every command line in the golden files (`make check-vllm`). SGLang honours a
//! request's seed only if `extraArgs` has `--enable-deterministic-inference`.

use grpo_crds::inference_pool::SglangEngine;

use super::launch::{Arguments, ENGINE_PORT, Launch, RENDEZVOUS_PORT, SERVED_NAME};

/// The version for which this command line is written.
pub const VERSION: &str = "0.5.23";

pub const COMMAND: [&str; 3] = ["python3", "-m", "sglang.launch_server"];

/// The arguments after [`COMMAND`].
pub fn arguments(engine: &SglangEngine, launch: &Launch<'_>) -> Vec<String> {
    let mut arguments = Arguments::default();
    arguments
        .set("--model-path", &launch.model)
        .set("--served-model-name", SERVED_NAME)
        .set("--host", "127.0.0.1")
        .set("--port", ENGINE_PORT)
        .set("--tp-size", engine.tensor_parallel);
    if engine.pipeline_parallel > 1 {
        arguments.set("--pp-size", engine.pipeline_parallel);
    }
    if let Some(copies) = engine.data_parallel.filter(|copies| *copies > 1) {
        arguments.set("--dp-size", copies);
    }
    if launch.nodes > 1 {
        arguments
            .set("--nnodes", launch.nodes)
            .set("--node-rank", launch.node)
            .set("--dist-init-addr", format!("{}:{RENDEZVOUS_PORT}", launch.leader));
    }
    arguments
        .maybe("--context-length", engine.context_length)
        .maybe("--mem-fraction-static", engine.memory_fraction)
        .maybe("--max-running-requests", engine.max_running_requests)
        .maybe("--quantization", engine.quantization.as_deref());
    if !engine.enable_prefix_caching {
        arguments.flag("--disable-radix-cache");
    }
    arguments
        .set("--sampling-defaults", "openai")
        .set("--weight-version", "base")
        .set("--random-seed", 0)
        .flag("--enable-metrics");
    if let Some(lora) = launch.lora {
        let with_the_model = lora.max_adapters + 1;
        arguments
            .flag("--enable-lora")
            .set("--max-lora-rank", lora.max_rank)
            .set("--lora-target-modules", "all")
            .set("--max-loras-per-batch", with_the_model)
            .set("--max-loaded-loras", with_the_model);
    }
    if launch.routed_experts {
        arguments.flag("--enable-return-routed-experts");
    }
    if launch.sleeps {
        arguments
            .flag("--enable-memory-saver")
            .flag("--enable-weights-cpu-backup");
    }
    arguments.extend(&engine.extra_args).done()
}

/// SGLang's environment variables.
pub fn environment() -> Vec<(&'static str, String)> {
    vec![
        ("SGLANG_RETURN_ORIGINAL_LOGPROB", "0".to_owned()),
        ("SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION", "0".to_owned()),
        ("SGLANG_HOST_IP", "$(POD_IP)".to_owned()),
    ]
}
