use super::*;

#[test]
fn what_does_not_fit_into_the_context_is_told_from_other_bad_requests() {
    for (said, code) in [
        (
            "This model's maximum context length is 4096 tokens.",
            ErrorCode::ContextTooLong,
        ),
        (
            "max_tokens=5000 cannot be greater than max_model_len=4096.",
            ErrorCode::ContextTooLong,
        ),
        ("top_p must be in (0, 1]", ErrorCode::InvalidRequest),
    ] {
        let answer = Answered {
            status: StatusCode::BAD_REQUEST,
            ..Answered::json(serde_json::to_vec(&serde_json::json!({"error": {"message": said}})).unwrap())
        };
        assert_eq!(not_sampled(&answer).code, code, "{said}");
    }
}

#[test]
fn a_refused_setting_is_named_and_a_wait_is_passed_on() {
    let error = serde_json::json!({"message": "no", "param": "top_p", "code": "unsupported_parameter"});
    let answer = |status| Answered {
        status,
        retry_after: Some(HeaderValue::from_static("7")),
        ..Answered::json(serde_json::to_vec(&serde_json::json!({ "error": error })).unwrap())
    };
    let refused = not_sampled(&answer(StatusCode::BAD_REQUEST));
    assert_eq!(
        (refused.code, refused.setting.as_deref()),
        (ErrorCode::SettingRefused, Some("top_p"))
    );
    let busy = not_sampled(&answer(StatusCode::TOO_MANY_REQUESTS));
    assert_eq!(
        (busy.code, busy.retry_after_seconds, busy.setting),
        (ErrorCode::QueueFull, Some(7), None)
    );
}

#[test]
fn a_path_goes_below_the_path_of_the_server() {
    let server = |url: &str| Url::parse(url).unwrap();
    assert_eq!(at(&server("http://a:1"), "/v1/models").as_str(), "http://a:1/v1/models");
    assert_eq!(at(&server("https://a/b/"), "/health").as_str(), "https://a/b/health");
    assert_eq!(
        at(&server("http://a"), "/pause?mode=wait").as_str(),
        "http://a/pause?mode=wait"
    );
}

#[test]
fn seeds_are_what_engines_take() {
    assert_eq!(engine_seed(7), 7);
    assert!(engine_seed(u64::MAX) > 0);
}
