use super::*;

#[test]
fn each_setting_of_a_request_has_its_field_in_the_spec() {
    let spec = serde_json::to_value(grpo_run::Sampling::default()).unwrap();
    for setting in [
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "presence_penalty",
        "frequency_penalty",
        "repetition_penalty",
    ] {
        assert!(spec.get(field_of(setting)).is_some(), "{setting}");
    }
}
