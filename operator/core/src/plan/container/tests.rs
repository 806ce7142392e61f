use super::*;

#[test]
fn a_flag_shares_its_line_with_its_value_and_with_nothing_else() {
    let words = [
        "vllm",
        "serve",
        "/model",
        "--port",
        "8001",
        "--seed=0",
        "--enable-lora",
        "--host",
        "a b",
    ];
    assert_eq!(
        lines(words.into_iter()),
        [
            "vllm",
            "serve",
            "/model",
            "--port 8001",
            "--seed=0",
            "--enable-lora",
            "--host \"a b\""
        ]
    );
}

#[test]
fn a_limit_without_a_request_reads_the_same_before_and_after_the_api_server_copied_it() {
    let written: ResourceRequirements =
        serde_json::from_value(serde_json::json!({"limits": {"nvidia.com/gpu": "8"}})).unwrap();
    let stored = ResourceRequirements {
        requests: written.limits.clone(),
        ..written.clone()
    };
    assert_eq!(resources(Some(&written)), resources(Some(&stored)));
    assert_eq!(resources(Some(&written))["nvidia.com/gpu"], "8");
}
