use super::super::tests::{asked, events_of, full, json_of, plain, refusal};
use super::super::{Api, Events};
use super::*;

const RESPONSES: Api = Api::Responses;

fn stream(answer: &Answer, waits: usize) -> Vec<(String, Value)> {
    let request = asked();
    let mut events: Events = RESPONSES.events(&request, &answer.id, answer.created);
    let mut bytes: Vec<u8> = (0..waits).flat_map(|_| events.wait()).collect();
    bytes.extend(events.finish(answer).concat());
    events_of(&bytes)
}

#[test]
fn an_answer_has_an_item_for_reasoning_text_and_each_call() {
    let body = json_of(&RESPONSES.answer(&asked(), &full()));
    assert_eq!(body["id"], "resp_a7");
    assert_eq!(body["status"], "completed");
    assert_eq!(body["usage"]["total_tokens"], 42);
    let text = "I look.\u{2028}Now.";
    let call = |id: &str, arguments: &str| {
        json!({
            "id": format!("fc_{id}"),
            "type": "function_call",
            "status": "completed",
            "call_id": id,
            "name": "bash",
            "arguments": arguments,
        })
    };
    assert_eq!(
        body["output"],
        json!([
            {
                "id": "rs_a7",
                "type": "reasoning",
                "summary": [],
                "content": [{ "type": "reasoning_text", "text": "Where?\n" }],
                "encrypted_content": "grpo-operator:Where?\n",
            },
            {
                "id": "msg_a7",
                "type": "message",
                "status": "completed",
                "role": "assistant",
                "content": [{ "type": "output_text", "text": text, "annotations": [], "logprobs": [] }],
            },
            call("call_a7_0", r#"{"command": "ls", "a": 1.0}"#),
            call("call_a7_1", "{}"),
        ])
    );
}

#[test]
fn a_stream_has_every_item_in_order_and_numbers_its_events() {
    let events = stream(&full(), 0);
    let names: Vec<&str> = events.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(
        names,
        [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.content_part.added",
            "response.reasoning_text.delta",
            "response.reasoning_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.output_item.added",
            "response.content_part.added",
            "response.output_text.delta",
            "response.output_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.output_item.added",
            "response.function_call_arguments.delta",
            "response.function_call_arguments.done",
            "response.output_item.done",
            "response.output_item.added",
            "response.function_call_arguments.delta",
            "response.function_call_arguments.done",
            "response.output_item.done",
            "response.completed",
        ]
    );
    for (number, (name, event)) in events.iter().enumerate() {
        assert_eq!(event["type"], name.as_str());
        assert_eq!(event["sequence_number"], number);
    }
    assert_eq!(events[10].1["delta"], "I look.\u{2028}Now.");
    assert_eq!(events[10].1["output_index"], 1);
    assert_eq!(events[15].1["delta"], r#"{"command": "ls", "a": 1.0}"#);
    assert_eq!(events[14].1["item"]["arguments"], "");
    assert_eq!(events[22].1["response"], json_of(&RESPONSES.answer(&asked(), &full())));
}

#[test]
fn a_stream_that_waited_is_opened_once() {
    let events = stream(&plain("Done."), 2);
    let names: Vec<&str> = events.iter().map(|(name, _)| name.as_str()).collect();
    let opening = ["response.created", "response.in_progress", "response.in_progress"];
    assert_eq!(names[..3], opening);
    assert_eq!(names[3], "response.output_item.added");
    assert_eq!(names.iter().filter(|name| **name == "response.created").count(), 1);
    for (number, (_, event)) in events.iter().enumerate() {
        assert_eq!(event["sequence_number"], number);
    }
}

#[test]
fn an_empty_answer_is_an_empty_message() {
    let body = json_of(&RESPONSES.answer(&asked(), &plain("")));
    assert_eq!(body["output"][0]["content"][0]["text"], "");
}

#[test]
fn items_of_one_answer_become_one_message_and_the_next_answer_another() {
    let call = |id: &str| format!(r#"{{"type":"function_call","call_id":"{id}","name":"f","arguments":"{{}}"}}"#);
    let said = |text: &str| format!(r#"{{"role":"assistant","content":"{text}"}}"#);
    let thought =
        r#"{"type":"reasoning","summary":[{"type":"summary_text","text":"a"},{"type":"summary_text","text":"b"}]}"#;
    let items = [
        thought,
        &said("x"),
        &call("1"),
        &call("2"),
        &said("y"),
        thought,
        &call("3"),
    ]
    .join(",");
    let request = RESPONSES
        .decode(format!(r#"{{"input":[{items}]}}"#).as_bytes())
        .unwrap();
    let shape = |message: &ChatMessage| {
        let calls: Vec<&str> = message.tool_calls.iter().map(|call| call.id.as_str()).collect();
        format!(
            "{} {} {}",
            message.reasoning.as_deref().unwrap_or("-"),
            message.content,
            calls.join(",")
        )
    };
    let shapes: Vec<String> = request.messages.iter().map(shape).collect();
    assert_eq!(shapes, ["a\nb x 1,2", "- y ", "a\nb  3"]);
}

#[test]
fn reasoning_of_another_server_is_left_out() {
    let body =
        r#"{"input":[{"type":"reasoning","summary":[],"encrypted_content":"gAAAAAB"},{"role":"user","content":"x"}]}"#;
    let request = RESPONSES.decode(body.as_bytes()).unwrap();
    assert_eq!(request.messages[0], ChatMessage::new(Role::Assistant, ""));
}

#[test]
fn what_is_kept_nowhere_or_cannot_be_read_is_refused_with_its_field() {
    let refused = |rest: &str| refusal(RESPONSES, &format!(r#"{{"input":"x",{rest}}}"#));
    let item = |item: &str| refusal(RESPONSES, &format!(r#"{{"input":[{item}]}}"#));
    assert_eq!(
        refused(r#""previous_response_id":"resp_1""#),
        "previous_response_id: the endpoint keeps no conversations: send the whole input"
    );
    assert_eq!(
        refused(r#""background":true"#),
        "background: an answer is sent to the request that asks for it"
    );
    assert!(RESPONSES.decode(br#"{"input":"x","background":false}"#).is_ok());
    assert_eq!(
        item(r#"{"type":"item_reference","id":"msg_1"}"#),
        "input[0]: the endpoint keeps no items: send the item itself"
    );
    assert_eq!(
        item(r#"{"type":"function_call","name":"f","arguments":"{}"}"#),
        "input[0].call_id: this field is missing"
    );
    let image = r#"{"type":"input_image","image_url":"data:"}"#;
    let text_only = |kind: &str| format!("the model reads text only, and this is of type \"{kind}\": send text");
    assert_eq!(
        item(&format!(r#"{{"role":"user","content":[{image}]}}"#)),
        format!("input[0].content[0]: {}", text_only("input_image"))
    );
    let viewed = format!(r#"{{"input":[{{"type":"function_call_output","call_id":"1","output":[{image}]}}]}}"#);
    let request = RESPONSES.decode(viewed.as_bytes()).unwrap();
    let note = "[input_image left out: the model reads text only]";
    assert_eq!(request.messages, [ChatMessage::tool("1", note)]);
    assert_eq!(
        item(r#"{"type":"custom_tool_call","call_id":"1","name":"f","input":"x"}"#),
        format!("input[0].type: {}", text_only("custom_tool_call"))
    );
}
