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
fn a_refused_setting_and_a_wait_are_on_the_wire_only_where_there_is_one() {
    let plain = serde_json::to_value(ErrorBody::new(ErrorCode::QueueFull, "m")).unwrap();
    assert!(plain.get("setting").is_none() && plain.get("retryAfterSeconds").is_none());
    let refused = ErrorBody {
        setting: Some("top_p".to_owned()),
        retry_after_seconds: Some(7),
        ..ErrorBody::new(ErrorCode::SettingRefused, "m")
    };
    assert_eq!((refused.fault, refused.status()), (ErrorOrigin::Client, 400));
    let written = serde_json::to_value(&refused).unwrap();
    assert_eq!(
        (&written["setting"], &written["retryAfterSeconds"]),
        (&"top_p".into(), &7.into())
    );
    assert_eq!(serde_json::from_value::<ErrorBody>(written).unwrap(), refused);
}

#[test]
fn a_code_of_a_newer_build_is_still_an_error_body() {
    let body: ErrorBody =
        serde_json::from_str(r#"{"code": "Moon", "message": "m", "fault": "Client", "extra": 1}"#).unwrap();
    assert_eq!(body.code, ErrorCode::Unknown);
}
