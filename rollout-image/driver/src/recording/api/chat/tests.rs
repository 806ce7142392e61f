use super::super::tests::{asked, events_of, full, json_of, plain, refusal};
use super::super::{Api, Events};
use super::*;

const CHAT: Api = Api::ChatCompletions;

fn stream(request: &Request, answer: &Answer, waits: usize) -> Vec<Value> {
    let mut events: Events = CHAT.events(request, &answer.id, answer.created);
    let mut bytes: Vec<u8> = (0..waits).flat_map(|_| events.wait()).collect();
    bytes.extend(events.finish(answer).concat());
    events_of(&bytes).into_iter().map(|(_, event)| event).collect()
}

#[test]
fn an_answer_has_text_reasoning_calls_and_usage() {
    let body = json_of(&CHAT.answer(&asked(), &full()));
    let call = |id: &str, arguments: &str| json!({ "id": id, "type": "function", "function": { "name": "bash", "arguments": arguments } });
    assert_eq!(
        body,
        json!({
            "id": "chatcmpl-a7",
            "object": "chat.completion",
            "created": 1_790_000_000,
            "model": "policy",
            "choices": [{
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": "I look.\u{2028}Now.",
                    "reasoning_content": "Where?\n",
                    "refusal": null,
                    "tool_calls": [call("call_a7_0", r#"{"command": "ls", "a": 1.0}"#), call("call_a7_1", "{}")],
                },
                "logprobs": null,
                "finish_reason": "tool_calls",
            }],
            "usage": { "prompt_tokens": 40, "completion_tokens": 2, "total_tokens": 42 },
        })
    );
    let body = json_of(&CHAT.answer(&asked(), &plain("Done.")));
    assert_eq!(body["choices"][0]["finish_reason"], "stop");
    assert_eq!(body["choices"][0]["message"].get("tool_calls"), None);
}

#[test]
fn a_stream_has_one_delta_for_the_text_and_one_for_each_call() {
    let events = stream(&asked(), &full(), 0);
    let deltas: Vec<&Value> = events[..5].iter().map(|event| &event["choices"][0]["delta"]).collect();
    assert_eq!(
        deltas[0],
        &json!({ "role": "assistant", "reasoning_content": "Where?\n" })
    );
    assert_eq!(deltas[1], &json!({ "content": "I look.\u{2028}Now." }));
    assert_eq!(deltas[2]["tool_calls"][0]["index"], 0);
    assert_eq!(deltas[3]["tool_calls"][0]["index"], 1);
    assert_eq!(
        deltas[2]["tool_calls"][0]["function"]["arguments"],
        r#"{"command": "ls", "a": 1.0}"#
    );
    assert_eq!(deltas[4], &json!({}));
    assert_eq!(events[3]["choices"][0]["finish_reason"], Value::Null);
    assert_eq!(events[4]["choices"][0]["finish_reason"], "tool_calls");
    assert_eq!(events[4]["usage"], Value::Null);
    assert_eq!(events[5]["choices"], json!([]));
    assert_eq!(events[5]["usage"]["total_tokens"], 42);
    assert_eq!(events[6], "[DONE]");
    assert_eq!(events.len(), 7);
}

#[test]
fn a_stream_says_its_usage_only_on_request() {
    let request = Request {
        include_usage: false,
        ..asked()
    };
    let events = stream(&request, &plain("Done."), 0);
    assert_eq!(events.len(), 3);
    assert_eq!(
        events[0]["choices"][0]["delta"],
        json!({ "role": "assistant", "content": "Done." })
    );
    assert!(events.iter().all(|event| event.get("usage").is_none()));
}

#[test]
fn a_waiting_client_gets_empty_deltas_of_the_same_answer() {
    let events = stream(&asked(), &plain(""), 2);
    for event in &events[..2] {
        assert_eq!(event["choices"][0]["delta"], json!({}));
        assert_eq!(event["choices"][0]["finish_reason"], Value::Null);
        assert_eq!(event["id"], events[2]["id"]);
    }
    assert_eq!(
        events[2]["choices"][0]["delta"],
        json!({ "role": "assistant", "content": "" })
    );
}

#[test]
fn what_the_model_cannot_read_is_refused_with_its_field() {
    let refused = |rest: &str| {
        refusal(
            CHAT,
            &format!(r#"{{"messages":[{{"role":"user","content":"x"}}],{rest}}}"#),
        )
    };
    let message = |message: &str| refusal(CHAT, &format!(r#"{{"messages":[{message}]}}"#));
    assert_eq!(refused(r#""n":2"#), "n: one answer per request: leave n out");
    assert_eq!(
        refused(r#""max_tokens":0"#),
        "max_tokens: 0 tokens are no answer: ask for at least 1"
    );
    assert_eq!(
        refused(r#""stream_options":{"include_usage":1}"#),
        "stream_options.include_usage: invalid type: integer `1`, expected a boolean"
    );
    assert_eq!(
        refused(r#""functions":[]"#),
        "functions: the old form of tools is not offered: send tools"
    );
    assert_eq!(
        refused(r#""tools":[{"type":"function","function":{"name":""}}]"#),
        "tools[0].function.name: a tool has a name of 1 to 256 bytes"
    );
    assert_eq!(
        message(
            r#"{"role":"user","content":[{"type":"text","text":"x"},{"type":"image_url","image_url":{"url":"data:"}}]}"#
        ),
        "messages[0].content[1]: the model reads text only, and this is of type \"image_url\": send text"
    );
    assert_eq!(
        message(r#"{"role":"user","content":5}"#),
        "messages[0].content: invalid type: integer `5`, expected a text or a list"
    );
    assert_eq!(
        message(r#"{"role":"function","content":"x"}"#),
        "messages[0].role: a role is system, developer, user, assistant or tool"
    );
    assert_eq!(
        message(r#"{"role":"tool","content":"x"}"#),
        "messages[0].tool_call_id: a tool's result names its call: this field is missing"
    );
    let call = |arguments: &str| {
        message(&format!(
            r#"{{"role":"assistant","tool_calls":[{{"id":"1","function":{{"name":"f","arguments":{arguments}}}}}]}}"#
        ))
    };
    let field = "messages[0].tool_calls[0].function.arguments";
    assert_eq!(call(r#""{\"a\":""#), format!("{field}: EOF while parsing a value"));
    assert_eq!(call("{}"), format!("{field}: invalid type: map, expected a string"));
    assert_eq!(message(""), "messages: at least one message is needed");
}

#[test]
fn a_picture_in_a_tools_result_is_a_note() {
    let body = r#"{"messages":[{"role":"tool","tool_call_id":"1","content":[
        {"type":"text","text":"a.png"},{"type":"image_url","image_url":{"url":"data:"}}]}]}"#;
    let request = CHAT.decode(body.as_bytes()).unwrap();
    let text = "a.png\n[image_url left out: the model reads text only]";
    assert_eq!(request.messages, [ChatMessage::tool("1", text)]);
}

#[test]
fn the_lower_limit_of_tokens_holds() {
    let limit = |rest: &str| {
        let body = format!(r#"{{"messages":[{{"role":"user","content":"x"}}]{rest}}}"#);
        CHAT.decode(body.as_bytes()).unwrap().max_tokens
    };
    assert_eq!(limit(r#","max_tokens":9,"max_completion_tokens":5"#), Some(5));
    assert_eq!(limit(r#","max_tokens":99999999999"#), Some(u32::MAX));
    assert_eq!(limit(r#","max_tokens":null"#), None);
}

#[test]
fn settings_beyond_the_runs_are_overruled_and_those_that_ask_for_nothing_are_not() {
    let body = r#"{"messages":[{"role":"user","content":"x"}],"n":1,"temperature":0.3,"tool_choice":"auto",
        "response_format":{ "type": "text" },"logprobs":true,"stop":["x"],"parallel_tool_calls":true,"user":"me"}"#;
    let request = CHAT.decode(body.as_bytes()).unwrap();
    let overruled = [("temperature", "0.3"), ("stop", r#"["x"]"#), ("logprobs", "true")];
    assert_eq!(
        request.overruled,
        overruled.map(|(name, value)| (name.to_owned(), value.to_owned()))
    );
}
