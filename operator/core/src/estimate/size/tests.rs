use super::*;

#[test]
fn names_say_how_large_a_model_is_or_nothing() {
    for (name, parameters, active) in [
        ("Qwen/Qwen3-32B", 32e9, 32e9),
        ("Qwen/Qwen2.5-Coder-7B-Instruct", 7e9, 7e9),
        ("Qwen/Qwen3-30B-A3B-Thinking-2507", 30e9, 3e9),
        ("Qwen/Qwen3-0.6B", 0.6e9, 0.6e9),
        ("HuggingFaceTB/SmolLM2-135M", 135e6, 135e6),
        ("registry.example.com/models/qwen3-8b:1", 8e9, 8e9),
        ("claim/models-70B/Qwen3-14B", 14e9, 14e9),
    ] {
        assert_eq!(size(name), Some(Size { parameters, active }), "{name}");
    }
    for name in [
        "grpo.dev/demo/model:1",
        "mistralai/Mixtral-8x7B",
        "deepseek-ai/DeepSeek-V3",
        "a/b-B",
        "x-infB",
        "x-0B",
    ] {
        assert_eq!(size(name), None, "{name}");
    }
}
