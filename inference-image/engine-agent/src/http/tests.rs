use super::*;

#[test]
fn an_answer_with_one_row_of_another_version_is_not_let_through() {
    let answer = br#"{"weights_version": "v2", "choices": [{"weights_version": "v2"}, {"weights_version": "v1"}]}"#;
    let error = sampled_from(answer, "v2").unwrap_err();
    assert_eq!(
        (error.code, error.serving.as_deref()),
        (ErrorCode::WrongWeights, Some("v1"))
    );
    assert!(
        sampled_from(
            br#"{"weights_version": "v2", "choices": [{"weights_version": "v2"}]}"#,
            "v2"
        )
        .is_ok()
    );
    assert_eq!(sampled_from(b"{}", "v2").unwrap_err().code, ErrorCode::EngineMisbehaved);
}

#[test]
fn an_order_with_a_version_that_is_a_path_is_refused() {
    let order = |version: &str, source: &str| WeightsOrder {
        version: version.to_owned(),
        source: source.to_owned(),
        manifest_sha256: "0".repeat(64),
        relay: None,
    };
    assert!(check(&order("../etc", "http://d/w")).is_err());
    assert!(check(&order("a-v1", "file:///w")).is_err());
    assert!(check(&order("a-v1", "http://d/w")).is_ok());
    let relayed = |members: &[&str], own| WeightsOrder {
        relay: Some(Relay {
            members: members.iter().map(|url| (*url).to_owned()).collect(),
            own,
        }),
        ..order("a-v1", "http://d/w")
    };
    assert!(check(&relayed(&["http://e0", "http://e1"], 1)).is_ok());
    assert!(
        check(&relayed(&["http://e0", "http://e1"], 2)).is_err(),
        "it is no member"
    );
    assert!(check(&relayed(&["http://e0", "file:///e"], 0)).is_err());
}
