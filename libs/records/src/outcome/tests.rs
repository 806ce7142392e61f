use super::*;

#[test]
fn an_outcome_is_written_as_the_contract_says() {
    assert_eq!(serde_json::to_string(&Outcome::Resolved).unwrap(), "\"Resolved\"");
    assert_eq!(
        serde_json::to_string(&Outcome::void(VoidReason::SandboxLost)).unwrap(),
        r#"{"Void":{"reason":"SandboxLost"}}"#
    );
}
