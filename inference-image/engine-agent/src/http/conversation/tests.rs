use super::*;
use grpo_engine_protocol::{ChatRole, ChatText};

fn asked(fields: Value) -> Result<ChatRequest, ErrorBody> {
    let mut body = json!({"model": "policy", "messages": [{"role": "user", "content": "hi"}]});
    for (name, value) in fields.as_object().unwrap() {
        body[name] = value.clone();
    }
    read(body.to_string().as_bytes())
}

fn messages(messages: Value) -> Result<Vec<(ChatRole, String)>, ErrorBody> {
    let request = asked(json!({"messages": messages}))?;
    let pair = |message: ChatText| (message.role, message.content);
    Ok(request.messages.into_iter().map(pair).collect())
}

#[test]
fn fields_that_change_nothing_are_accepted() {
    let plain = asked(json!({})).unwrap();
    assert_eq!((plain.max_tokens, plain.temperature), (None, 1.0));
    for (field, value) in [
        ("stream", json!(false)),
        ("stream_options", Value::Null),
        ("n", json!(1)),
        ("stop", Value::Null),
        ("stop", json!([])),
        ("tools", json!([])),
        ("tool_choice", json!("auto")),
        ("parallel_tool_calls", json!(true)),
        ("logprobs", json!(false)),
        ("top_logprobs", json!(0)),
        ("logit_bias", json!({})),
        ("response_format", json!({"type": "text"})),
        ("modalities", json!(["text"])),
        ("user", json!("me")),
        ("metadata", json!({"a": "b"})),
        ("store", json!(false)),
        ("service_tier", json!("auto")),
        ("temperature", Value::Null),
        ("max_tokens", Value::Null),
        ("presence_penalty", Value::Null),
    ] {
        assert_eq!(asked(json!({field: value})).as_ref(), Ok(&plain), "{field}");
    }
}

#[test]
fn what_would_change_the_answer_is_refused_by_its_name() {
    for (field, value) in [
        ("stream", json!(true)),
        ("stream_options", json!({"include_usage": true})),
        ("n", json!(2)),
        ("stop", json!("END")),
        ("tools", json!([{"type": "function", "function": {"name": "bash"}}])),
        ("tool_choice", json!("required")),
        ("functions", json!([{"name": "bash"}])),
        ("response_format", json!({"type": "json_object"})),
        ("logprobs", json!(true)),
        ("top_logprobs", json!(5)),
        ("logit_bias", json!({"4": 1})),
        ("reasoning_effort", json!("low")),
        ("max_tokens", json!(1.5)),
        ("max_completion_tokens", json!("many")),
    ] {
        let error = asked(json!({field: value})).unwrap_err();
        assert_eq!(error.code, ErrorCode::InvalidRequest);
        assert!(error.message.contains(field), "{error}");
    }
    let error = asked(json!({"stream": true})).unwrap_err();
    assert!(error.message.contains("set stream to false"), "{error}");
}

#[test]
fn settings_of_sampling_reach_the_engine() {
    let request =
        asked(json!({"temperature": 0, "top_p": 0.9, "top_k": 5, "seed": 3, "presence_penalty": 0.5})).unwrap();
    assert_eq!((request.temperature, request.top_p), (0.0, 0.9));
    assert_eq!((request.top_k, request.seed), (Some(5), Some(3)));
    assert_eq!(request.presence_penalty, Some(0.5));
}

#[test]
fn the_limit_of_tokens_has_two_names_and_the_lower_one_holds() {
    for (fields, wanted) in [
        (json!({"max_tokens": 7}), Some(7)),
        (json!({"max_completion_tokens": 8}), Some(8)),
        (json!({"max_tokens": 7, "max_completion_tokens": 8}), Some(7)),
        (json!({"max_tokens": 9, "max_completion_tokens": 8}), Some(8)),
        (json!({"max_tokens": 1u64 << 40}), Some(u32::MAX)),
    ] {
        assert_eq!(asked(fields.clone()).unwrap().max_tokens, wanted, "{fields}");
    }
}

#[test]
fn messages_are_read_as_clients_and_litellm_send_them() {
    let sent = json!([
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [
            {"type": "text", "text": "a"},
            {"type": "text", "text": "b", "cache_control": {"type": "ephemeral"}},
        ]},
        {"role": "assistant", "content": "c", "refusal": null, "annotations": [], "tool_calls": [], "function_call": null,
         "provider_specific_fields": {"reasoning": null}},
    ]);
    assert_eq!(
        messages(sent).unwrap(),
        [
            (ChatRole::System, "Be brief.".to_owned()),
            (ChatRole::User, "a\nb".to_owned()),
            (ChatRole::Assistant, "c".to_owned()),
        ]
    );
}

#[test]
fn a_message_that_the_model_cannot_be_shown_is_refused_with_its_place() {
    let image = json!([{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]);
    let call = json!([{"id": "1", "type": "function", "function": {"name": "bash", "arguments": "{}"}}]);
    for (message, field) in [
        (
            json!({"role": "tool", "tool_call_id": "1", "content": "4"}),
            "messages[1].role",
        ),
        (json!({"role": "tool", "content": "4"}), "messages[1].role"),
        (json!({"content": "4"}), "messages[1].role"),
        (json!({"role": "user"}), "messages[1].content"),
        (json!({"role": "user", "content": image}), "messages[1].content"),
        (
            json!({"role": "assistant", "content": "", "tool_calls": call}),
            "messages[1].tool_calls",
        ),
        (
            json!({"role": "assistant", "content": "a", "reasoning_content": "b"}),
            "messages[1].reasoning_content",
        ),
        (json!("hi"), "messages[1]"),
    ] {
        let error = messages(json!([{"role": "user", "content": "hi"}, message])).unwrap_err();
        assert!(error.message.starts_with(field), "{error}");
    }
    assert!(read(b"[]").is_err() && read(b"{").is_err() && read(b"{}").is_err());
}
