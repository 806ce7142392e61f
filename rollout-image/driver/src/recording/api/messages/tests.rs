use super::super::tests::{asked, events_of, full, json_of, plain, refusal};
use super::super::{Api, Events};
use super::*;

const MESSAGES: Api = Api::Messages;

fn stream(answer: &Answer, waits: usize) -> Vec<(String, Value)> {
    let request = asked();
    let mut events: Events = MESSAGES.events(&request, &answer.id, answer.created);
    let mut bytes: Vec<u8> = (0..waits).flat_map(|_| events.wait()).collect();
    bytes.extend(events.finish(answer).concat());
    events_of(&bytes)
}

#[test]
fn an_answer_has_a_block_for_reasoning_text_and_each_call() {
    let bytes = MESSAGES.answer(&asked(), &full());
    assert_eq!(
        json_of(&bytes),
        json!({
            "id": "msg_a7",
            "type": "message",
            "role": "assistant",
            "model": "policy",
            "content": [
                { "type": "thinking", "thinking": "Where?\n", "signature": "grpo-operator" },
                { "type": "text", "text": "I look.\u{2028}Now." },
                { "type": "tool_use", "id": "call_a7_0", "name": "bash", "input": { "command": "ls", "a": 1.0 } },
                { "type": "tool_use", "id": "call_a7_1", "name": "bash", "input": {} },
            ],
            "stop_reason": "tool_use",
            "stop_sequence": null,
            "usage": { "input_tokens": 40, "output_tokens": 2 },
        })
    );
    let text = String::from_utf8(bytes).unwrap();
    assert!(text.contains(r#""input":{"command": "ls", "a": 1.0}"#), "{text}");
    assert_eq!(
        json_of(&MESSAGES.answer(&asked(), &plain("Done.")))["stop_reason"],
        "end_turn"
    );
}

#[test]
fn a_call_that_is_no_json_is_given_to_the_client_as_text() {
    let mut answer = full();
    answer.calls[0].arguments = r#"{"command": "rm"#.into();
    let body = json_of(&MESSAGES.answer(&asked(), &answer));
    assert_eq!(body["content"][2]["input"], r#"{"command": "rm"#);
}

#[test]
fn a_stream_has_every_block_in_order() {
    let events = stream(&full(), 0);
    let shape = |(name, event): &(String, Value)| {
        assert_eq!(event["type"], name.as_str());
        let delta = event["delta"]["type"].as_str();
        match (event["index"].as_u64(), delta) {
            (Some(index), Some(delta)) => format!("{index} {delta}"),
            (Some(index), None) => format!("{index} {name}"),
            _ => name.clone(),
        }
    };
    let shapes: Vec<String> = events.iter().map(shape).collect();
    assert_eq!(
        shapes,
        [
            "message_start",
            "0 content_block_start",
            "0 thinking_delta",
            "0 signature_delta",
            "0 content_block_stop",
            "1 content_block_start",
            "1 text_delta",
            "1 content_block_stop",
            "2 content_block_start",
            "2 input_json_delta",
            "2 content_block_stop",
            "3 content_block_start",
            "3 input_json_delta",
            "3 content_block_stop",
            "message_delta",
            "message_stop",
        ]
    );
    assert_eq!(events[0].1["message"]["usage"]["input_tokens"], 40);
    assert_eq!(events[0].1["message"]["content"], json!([]));
    assert_eq!(events[9].1["delta"]["partial_json"], r#"{"command": "ls", "a": 1.0}"#);
    assert_eq!(events[14].1["delta"]["stop_reason"], "tool_use");
    assert_eq!(events[14].1["usage"], json!({ "input_tokens": 40, "output_tokens": 2 }));
}

#[test]
fn a_stream_that_waited_is_opened_once_and_pinged() {
    let events = stream(&plain(""), 3);
    let names: Vec<&str> = events.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(
        names,
        [
            "message_start",
            "ping",
            "ping",
            "content_block_start",
            "content_block_delta",
            "content_block_stop",
            "message_delta",
            "message_stop",
        ]
    );
}

#[test]
fn a_result_between_texts_keeps_its_place() {
    let text = |text: &str| format!(r#"{{"type":"text","text":"{text}"}}"#);
    let result = |id: &str| format!(r#"{{"type":"tool_result","tool_use_id":"{id}"}}"#);
    let blocks = [text("a"), text("b"), result("1"), result("2"), text("c")].join(",");
    let body = format!(r#"{{"messages":[{{"role":"user","content":[{blocks}]}},{{"role":"user","content":[]}}]}}"#);
    let request = MESSAGES.decode(body.as_bytes()).unwrap();
    let user = |text: &str| ChatMessage::new(Role::User, text);
    let tool = |id: &str| ChatMessage::tool(id, "");
    assert_eq!(
        request.messages,
        [user("a\nb"), tool("1"), tool("2"), user("c"), user("")]
    );
}

#[test]
fn an_answer_cannot_be_begun_by_the_client_but_its_tokens_can_be_counted() {
    let body = |rest: &str| {
        format!(r#"{{"messages":[{{"role":"user","content":"x"}},{{"role":"assistant","content":"{{"}}]{rest}}}"#)
    };
    assert_eq!(
        refusal(MESSAGES, &body(r#","max_tokens":9"#)),
        "messages: the last message is the assistant's, and an answer is a message of its own: leave it out"
    );
    assert_eq!(MESSAGES.decode(body("").as_bytes()).unwrap().messages.len(), 2);
}

#[test]
fn what_the_model_cannot_read_is_refused_with_its_field() {
    let block = |role: &str, block: &str| {
        refusal(
            MESSAGES,
            &format!(r#"{{"messages":[{{"role":"{role}","content":[{block}]}}]}}"#),
        )
    };
    let text_only = |kind: &str| format!("the model reads text only, and this is of type \"{kind}\": send text");
    let image = r#"{"type":"image","source":{"type":"base64","data":"x"}}"#;
    assert_eq!(
        block("user", image),
        format!("messages[0].content[0]: {}", text_only("image"))
    );
    let call = r#"{"type":"tool_use","id":"1","name":"f","input":[1]}"#;
    assert_eq!(
        block("user", call),
        format!("messages[0].content[0]: {}", text_only("tool_use"))
    );
    assert_eq!(
        block("assistant", call),
        "messages[0].content[0].input: arguments are the JSON text of an object"
    );
    assert_eq!(
        block("assistant", r#"{"type":"tool_use","name":"f"}"#),
        "messages[0].content[0].id: this field is missing"
    );
    assert_eq!(
        block("tool", call),
        "messages[0].role: a role is user, assistant or system"
    );
}

#[test]
fn a_picture_in_a_tools_result_is_a_note() {
    let body = r#"{"messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"1","content":[
        {"type":"text","text":"a.png"},{"type":"image","source":{"type":"base64","data":"x"}}]}]}]}"#;
    let request = MESSAGES.decode(body.as_bytes()).unwrap();
    let text = "a.png\n[image left out: the model reads text only]";
    assert_eq!(request.messages, [ChatMessage::tool("1", text)]);
}

#[test]
fn reasoning_that_the_model_cannot_read_is_left_out() {
    let body = r#"{"messages":[{"role":"assistant","content":[{"type":"redacted_thinking","data":"x"},{"type":"text","text":"a"}]}]}"#;
    let request = MESSAGES.decode(body.as_bytes()).unwrap();
    assert_eq!(request.messages, [ChatMessage::new(Role::Assistant, "a")]);
}
