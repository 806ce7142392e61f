use super::*;

#[test]
fn a_refusal_is_read_in_every_shape_engines_have_for_it() {
    for body in [
        r#"{"error": {"message": "no", "type": "BadRequestError", "code": 400}}"#,
        r#"{"error": "no"}"#,
        r#"{"code": "LoadFailed", "message": "no", "fault": "Infrastructure"}"#,
        r#"{"success": false, "message": "no"}"#,
        r#"{"detail": "no"}"#,
    ] {
        assert_eq!(words(body.as_bytes()).as_deref(), Some("no"), "{body}");
    }
    assert_eq!(words(b"Bad Gateway"), None);
}

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
