use super::*;

fn of(body: &str) -> ServerRefusal {
    ServerRefusal::of(body.as_bytes())
}

#[test]
fn a_refusal_is_read_in_every_shape_engines_have_for_it() {
    for body in [
        r#"{"error": {"message": "no", "type": "BadRequestError", "code": 400}}"#,
        r#"{"error": "no"}"#,
        r#"{"code": "LoadFailed", "message": "no", "fault": "Infrastructure"}"#,
        r#"{"success": false, "message": "no"}"#,
        r#"{"detail": "no"}"#,
    ] {
        assert_eq!(of(body).message.as_deref(), Some("no"), "{body}");
    }
    for body in ["Bad Gateway", "{}", r#"{"error": null, "detail": null}"#] {
        assert_eq!(of(body), ServerRefusal::default(), "{body}");
    }
    let behind =
        of(r#"{"error": {"message": "Provider returned error", "code": 400, "metadata": {"raw": "too big"}}}"#);
    assert_eq!(behind.message.as_deref(), Some("Provider returned error: too big"));
}

/// Fields of a request, in the order in which they are tried.
const FIELDS: [&str; 5] = ["max_tokens", "seed", "temperature", "top_p", "presence_penalty"];

#[test]
fn a_field_that_a_server_does_not_take_is_found_in_every_server_s_words() {
    for (body, field) in [
        // OpenAI.
        (
            r#"{"error": {"message": "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.", "type": "invalid_request_error", "param": "max_tokens", "code": "unsupported_parameter"}}"#,
            "max_tokens",
        ),
        (
            r#"{"error": {"message": "Unsupported value: 'temperature' does not support 0.7 with this model. Only the default (1) value is supported.", "type": "invalid_request_error", "param": "temperature", "code": "unsupported_value"}}"#,
            "temperature",
        ),
        (
            r#"{"error": {"message": "Unrecognized request argument supplied: seed", "type": "invalid_request_error", "param": null, "code": null}}"#,
            "seed",
        ),
        // The field of `param`, also if the text names another one first.
        (
            r#"{"error": {"message": "Unsupported with max_tokens: top_p", "param": "top_p", "code": "unsupported_parameter"}}"#,
            "top_p",
        ),
        // LiteLLM, with its own words and with OpenAI's.
        (
            r#"{"error": {"message": "litellm.UnsupportedParamsError: anthropic does not support parameters: ['seed'], for model=x. To drop these, set `litellm.drop_params=True`", "type": "None", "param": "None", "code": "400"}}"#,
            "seed",
        ),
        (
            r#"{"error": {"message": "litellm.UnsupportedParamsError: gpt-5 models don't support temperature=0.84. Only temperature=1 is supported.", "param": null, "code": "400"}}"#,
            "temperature",
        ),
        (
            r#"{"error": {"message": "litellm.BadRequestError: OpenAIException - Unsupported parameter: 'top_p' is not supported with this model.", "param": null, "code": "400"}}"#,
            "top_p",
        ),
        // OpenRouter: the words of the server behind it.
        (
            r#"{"error": {"message": "Provider returned error", "code": 400, "metadata": {"raw": "{\"error\": {\"message\": \"Unsupported parameter: 'max_tokens' is not supported with this model.\"}}"}}}"#,
            "max_tokens",
        ),
        // xAI.
        (
            r#"{"code": "Client specified an invalid argument", "error": "Argument not supported on this model: presencePenalty"}"#,
            "presence_penalty",
        ),
        // Mistral.
        (
            r#"{"detail": [{"type": "extra_forbidden", "loc": ["body", "seed"], "msg": "Extra inputs are not permitted", "input": 3}]}"#,
            "seed",
        ),
    ] {
        assert_eq!(of(body).unsupported(FIELDS.into_iter()), Some(field), "{body}");
    }
}

#[test]
fn words_of_the_conversation_that_a_server_repeats_name_no_field() {
    let refusal = of(
        r#"{"detail": [{"type": "extra_forbidden", "loc": ["body", "messages", 2, "assistant", "reasoning_content"],
            "msg": "Extra inputs are not permitted", "input": "Unsupported: lower the temperature and the seed"}]}"#,
    );
    assert_eq!(refusal.unsupported(FIELDS.into_iter()), None);
    assert!(!refusal.message.unwrap().contains("lower the temperature"));
}

#[test]
fn other_refusals_name_no_field_that_a_server_does_not_take() {
    let far = "x".repeat(COMPARED);
    for message in [
        "max_tokens is too large: 100000. This model supports at most 16384 completion tokens.",
        "Unknown model 'seed-oss'",
        "Unsupported image",
        "This model's maximum context length is 8 tokens; max_tokens is not supported beyond it.",
        "temperature must be at most 2",
        // Behind the beginning are perhaps words of the policy.
        &format!("{far} Unsupported parameter: 'temperature'"),
    ] {
        let refusal = of(&serde_json::json!({"error": {"message": message, "code": null}}).to_string());
        assert_eq!(refusal.unsupported(FIELDS.into_iter()), None, "{message}");
        assert_eq!(refusal.setting(), None, "{message}");
    }
}

#[test]
fn a_setting_is_refused_by_its_value_too_and_a_limit_or_a_seed_is_no_such_setting() {
    let about = |param: &str, message: &str| {
        let body = serde_json::json!({"error": {"message": message, "param": param, "code": null}});
        of(&body.to_string()).setting()
    };
    assert_eq!(about("top_p", "Invalid 'top_p': above the maximum"), Some("top_p"));
    assert_eq!(about("max_tokens", "max_tokens is too large"), None);
    assert_eq!(about("seed", "Unsupported parameter: 'seed'"), None);
    assert_eq!(about("messages", "temperature is not supported"), Some("temperature"));
}

#[test]
fn a_conversation_that_is_too_long_and_a_cut_answer_are_known_by_their_words() {
    for (error, too_long, cut) in [
        (
            r#"{"message": "This model's maximum context length is 8 tokens."}"#,
            true,
            false,
        ),
        (
            r#"{"message": "max_tokens=5 cannot be greater than max_model_len=4"}"#,
            true,
            false,
        ),
        (
            r#"{"message": "The decoder prompt (length 9) is longer than the maximum model length of 8."}"#,
            true,
            false,
        ),
        (
            r#"{"message": "Input length (9 tokens) exceeds the maximum allowed length (8 tokens)."}"#,
            true,
            false,
        ),
        (
            r#"{"message": "the request exceeds the available context size, try increasing it"}"#,
            true,
            false,
        ),
        (
            r#"{"message": "Input tokens exceed the configured limit", "code": "context_length_exceeded"}"#,
            true,
            false,
        ),
        (
            r#"{"message": "Could not finish the message because max_tokens or model output limit was reached."}"#,
            false,
            true,
        ),
        (r#"{"message": "max_tokens must be at least 1"}"#, false, false),
    ] {
        let refusal = of(&format!(r#"{{"error": {error}}}"#));
        assert_eq!(
            (refusal.is_too_long(), refusal.is_cut_answer()),
            (too_long, cut),
            "{error}"
        );
    }
}

#[test]
fn a_wait_is_read_from_seconds_and_from_dates() {
    let now = SystemTime::UNIX_EPOCH + Duration::from_millis(784_111_777_500);
    for (header, seconds) in [
        ("7", Some(7)),
        (" 0 ", Some(0)),
        ("0.2", Some(1)),
        ("100000", Some(100_000)),
        // 61.5 seconds from now.
        ("Sun, 06 Nov 1994 08:50:39 GMT", Some(62)),
        ("Sunday, 06-Nov-94 08:50:39 GMT", Some(62)),
        ("Sun Nov  6 08:50:39 1994", Some(62)),
        // In the past.
        ("Sun, 06 Nov 1994 08:49:37 GMT", Some(0)),
        ("-1", None),
        ("nan", None),
        ("inf", None),
        ("soon", None),
        ("", None),
    ] {
        assert_eq!(wait_asked(header, now), seconds, "{header:?}");
    }
}
