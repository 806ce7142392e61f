use super::*;
use grpo_crds::inference_pool::VllmEngine;

fn with(argument: &str) -> Option<String> {
    refusal(&Engine {
        vllm: Some(VllmEngine {
            extra_args: vec!["--trust-remote-code".into(), argument.into()],
            ..VllmEngine::default()
        }),
        ..Engine::default()
    })
}

#[test]
fn spellings_that_a_parser_takes_for_an_owned_flag_are_refused_by_name() {
    for argument in [
        "--port=1",
        "--served_model_name",
        "--tensor-par=4",
        "--logprobs-mode=raw_logprobs",
        "--headl",
    ] {
        let said = with(argument).unwrap_or_else(|| panic!("{argument} was let through"));
        assert!(said.contains("spec.engine.vllm.extraArgs[1]"), "{said}");
    }
    for argument in [
        "--enforce-eager",
        "--ho",
        "8000",
        "--kv-cache-dtype=fp8",
        "--max-num-batched-tokens",
    ] {
        assert_eq!(with(argument), None, "{argument}");
    }
}
