use super::*;

#[test]
fn wrong_weights_carries_both_versions_on_the_wire() {
    let body = serde_json::to_value(ErrorBody::wrong_weights(Some("a-v1"), "a-v2")).unwrap();
    assert_eq!(body["code"], "WrongWeights");
    assert_eq!(body["serving"], "a-v1");
    assert_eq!(body["wanted"], "a-v2");
    assert_eq!(body["fault"], "Infrastructure");
}

#[test]
fn a_code_of_a_newer_build_is_still_an_error_body() {
    let body: ErrorBody =
        serde_json::from_str(r#"{"code": "Moon", "message": "m", "fault": "Client", "extra": 1}"#).unwrap();
    assert_eq!(body.code, ErrorCode::Unknown);
}
