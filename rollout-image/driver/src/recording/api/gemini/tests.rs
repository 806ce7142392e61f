use super::super::tests::{asked, events_of, full, json_of, plain, refusal};
use super::super::{Api, Events};
use super::*;
use crate::recording::request::ChatMessage;

const GEMINI: Api = Api::GenerateContent;

fn stream(request: &Request, answer: &Answer, waits: usize) -> Vec<u8> {
    let mut events: Events = GEMINI.events(request, &answer.id, answer.created);
    let mut bytes: Vec<u8> = (0..waits).flat_map(|_| events.wait()).collect();
    bytes.extend(events.finish(answer).concat());
    bytes
}

fn messages(contents: &str) -> Vec<ChatMessage> {
    let body = format!(r#"{{"contents":[{contents}]}}"#);
    GEMINI.decode(body.as_bytes()).unwrap().messages
}

#[test]
fn an_answer_has_a_part_for_reasoning_text_and_each_call() {
    let bytes = GEMINI.answer(&asked(), &full());
    let call = |id: &str, args: Value| json!({ "id": id, "name": "bash", "args": args });
    assert_eq!(
        json_of(&bytes),
        json!({
            "candidates": [{
                "content": {
                    "parts": [
                        { "text": "Where?\n", "thought": true },
                        { "text": "I look.\u{2028}Now." },
                        {
                            "functionCall": call("call_a7_0", json!({ "command": "ls", "a": 1.0 })),
                            "thoughtSignature": signature::of("Where?\n"),
                        },
                        { "functionCall": call("call_a7_1", json!({})) },
                    ],
                    "role": "model",
                },
                "finishReason": "STOP",
                "index": 0,
            }],
            "usageMetadata": { "promptTokenCount": 40, "candidatesTokenCount": 2, "totalTokenCount": 42 },
            "modelVersion": "policy",
            "responseId": "resp_a7",
        })
    );
    let text = String::from_utf8(bytes).unwrap();
    assert!(text.contains(r#""args":{"command": "ls", "a": 1.0}"#), "{text}");
    let empty = json_of(&GEMINI.answer(&asked(), &plain("")));
    assert_eq!(empty["candidates"][0]["content"]["parts"], json!([{ "text": "" }]));
}

#[test]
fn a_stream_has_a_chunk_for_each_part_and_the_last_one_ends_it() {
    let chunks = events_of(&stream(&asked(), &full(), 2));
    let parts: Vec<usize> = chunks
        .iter()
        .map(|(_, chunk)| chunk["candidates"][0]["content"]["parts"].as_array().unwrap().len())
        .collect();
    assert_eq!(parts, [0, 0, 1, 1, 1, 1]);
    let (last, before) = chunks.split_last().unwrap();
    for (_, chunk) in before {
        assert!(chunk["candidates"][0].get("finishReason").is_none(), "{chunk}");
        assert!(chunk.get("usageMetadata").is_none(), "{chunk}");
    }
    assert_eq!(last.1["candidates"][0]["finishReason"], "STOP");
    assert_eq!(last.1["usageMetadata"]["totalTokenCount"], 42);
    let args = &chunks[4].1["candidates"][0]["content"]["parts"][0]["functionCall"]["args"];
    assert_eq!(*args, json!({ "command": "ls", "a": 1.0 }));
}

#[test]
fn arguments_that_were_sampled_over_several_lines_stay_one_event() {
    let mut answer = full();
    answer.calls[0].arguments = "{\n\n  \"command\": \"ls\u{2028}\",\r\n  \"a\": 1.0\n}".into();
    let chunks = events_of(&stream(&asked(), &answer, 0));
    assert_eq!(chunks.len(), 4);
    let args = &chunks[2].1["candidates"][0]["content"]["parts"][0]["functionCall"]["args"];
    assert_eq!(*args, json!({ "command": "ls\u{2028}", "a": 1.0 }));
    // A body is no stream: it has them as they were sampled.
    let body = String::from_utf8(GEMINI.answer(&asked(), &answer)).unwrap();
    assert!(body.contains(&answer.calls[0].arguments), "{body}");
}

#[test]
fn a_stream_without_events_is_one_array() {
    let request = Request { array: true, ..asked() };
    for (waits, expected) in [(0, 4), (2, 6)] {
        let chunks = json_of(&stream(&request, &full(), waits));
        let chunks = chunks.as_array().unwrap();
        assert_eq!(chunks.len(), expected);
        assert_eq!(chunks[expected - 1]["candidates"][0]["finishReason"], "STOP");
    }
}

#[test]
fn a_path_says_the_model_and_the_form_of_the_answer() {
    let form = |name: &str, query: Option<&str>| {
        let method = ModelMethod::of(name, query)?;
        Some((method.model, method.counts, method.stream, method.array))
    };
    let said = |model: &str, counts, stream, array| Some((model.to_owned(), counts, stream, array));
    let events = Some("key=none&alt=sse");
    for (name, query, expected) in [
        ("policy:generateContent", None, said("policy", false, false, false)),
        ("policy:streamGenerateContent", None, said("policy", false, true, true)),
        ("a/b:c:streamGenerateContent", events, said("a/b:c", false, true, false)),
        (
            "policy:countTokens",
            Some("alt=json"),
            said("policy", true, false, false),
        ),
        ("policy:embedContent", None, None),
        ("policy", None, None),
    ] {
        assert_eq!(form(name, query), expected, "{name}");
    }
}

#[test]
fn a_signature_carries_reasoning_that_the_client_leaves_out() {
    for reasoning in ["Where?", "Where?\n", "é😀", ":", ""] {
        let signed = signature::of(reasoning);
        assert_eq!(signed.len() % 4, 0, "Base64 has a multiple of four characters");
        assert_eq!(signature::read(&signed).as_deref(), Some(reasoning));
    }
    for other in ["skip_thought_signature_validator", "EiYKJGUy", "6772", ""] {
        assert_eq!(signature::read(other), None, "{other}");
    }
    let signed = signature::of("Where?");
    let part = format!(r#"{{"text":"Here.","thoughtSignature":"{signed}"}}"#);
    let sent = messages(&format!(r#"{{"role":"model","parts":[{part}]}}"#));
    assert_eq!(sent[0].reasoning.as_deref(), Some("Where?"));
    // A thought that came back says it itself.
    let thought = r#"{"text":"Look.","thought":true}"#;
    let sent = messages(&format!(r#"{{"role":"model","parts":[{thought},{part}]}}"#));
    assert_eq!(sent[0].reasoning.as_deref(), Some("Look."));
}

#[test]
fn a_result_between_texts_keeps_its_place() {
    let text = |text: &str| format!(r#"{{"text":"{text}"}}"#);
    let result = |id: &str| format!(r#"{{"functionResponse":{{"id":"{id}","response":{{}}}}}}"#);
    let parts = [text("a"), text("b"), result("1"), result("2"), text("c")].join(",");
    let user = |text: &str| ChatMessage::new(Role::User, text);
    let tool = |id: &str| ChatMessage::tool(id, "");
    assert_eq!(
        messages(&format!(r#"{{"parts":[{parts}]}},{{"role":"user"}}"#)),
        [user("a\nb"), tool("1"), tool("2"), user("c"), user("")]
    );
}

#[test]
fn calls_without_ids_get_those_of_a_conversation_and_results_find_them_by_name() {
    let call = |name: &str| format!(r#"{{"function_call":{{"name":"{name}"}}}}"#);
    let result =
        |name: &str| format!(r#"{{"function_response":{{"name":"{name}","response":{{"output":"{name}"}}}}}}"#);
    let calls = [call("f"), call("g"), call("f")].join(",");
    let results = [result("f"), result("f"), result("g")].join(",");
    let turn = format!(r#"{{"role":"model","parts":[{calls}]}},{{"role":"function","parts":[{results}]}}"#);
    let sent = messages(&format!("{turn},{turn}"));
    let ids = |messages: &[ChatMessage]| -> Vec<String> {
        messages
            .iter()
            .filter_map(|message| message.tool_call_id.clone())
            .collect()
    };
    assert_eq!(ids(&sent[..4]), ["call_0_0", "call_0_2", "call_0_1"]);
    assert_eq!(ids(&sent[4..]), ["call_1_0", "call_1_2", "call_1_1"]);
    assert_eq!(sent[4].tool_calls[1].id, "call_1_1");
}

#[test]
fn the_text_of_a_result_is_its_output_or_error_or_the_whole_object() {
    for (response, text) in [
        (r#"{"output":"a\nb"}"#, "a\nb"),
        (r#"{"error":"no"}"#, "no"),
        (r#"{"output":"a","error":"b"}"#, "a\nb"),
        (r#"{"output":{"n": 1.0}}"#, r#"{"n": 1.0}"#),
        (r#"{"output":null}"#, ""),
        (r#"{"output":"a","code": 1}"#, r#"{"output":"a","code": 1}"#),
    ] {
        let part = format!(r#"{{"functionResponse":{{"id":"1","response":{response}}}}}"#);
        let sent = messages(&format!(r#"{{"parts":[{part}]}}"#));
        assert_eq!(sent, [ChatMessage::tool("1", text)], "{response}");
    }
}

#[test]
fn names_of_types_change_only_where_a_schema_has_them() {
    for (openapi, expected) in [
        (
            r#"{"type":"OBJECT","nullable":true}"#,
            r#"{"type":"object","nullable":true}"#,
        ),
        (
            r#"{"anyOf":[{"type":"STRING"},{"type":"NULL"}],"items":{"type":"INTEGER"}}"#,
            r#"{"anyOf":[{"type":"string"},{"type":"null"}],"items":{"type":"integer"}}"#,
        ),
        (
            r#"{"properties":{"type":{"type":"BOOLEAN"},"default":{"type":"ARRAY"}}}"#,
            r#"{"properties":{"type":{"type":"boolean"},"default":{"type":"array"}}}"#,
        ),
        (
            r#"{"default":{"type":"STRING"},"enum":["STRING"],"minItems":"1"}"#,
            r#"{"default":{"type":"STRING"},"enum":["STRING"],"minItems":"1"}"#,
        ),
        (
            r#"{"additionalProperties":false,"maximum": 1.0}"#,
            r#"{"additionalProperties":false,"maximum":1.0}"#,
        ),
        (r#"{"type":"Thing","items":[]}"#, r#"{"type":"Thing","items":[]}"#),
    ] {
        assert_eq!(schema::as_json_schema("f", openapi).as_deref(), Ok(expected));
    }
    let deep = format!("{}true{}", r#"{"items":"#.repeat(200), "}".repeat(200));
    let refused = schema::as_json_schema("f", &deep).unwrap_err();
    assert_eq!(refused.to_string(), "f: recursion limit exceeded");
}

#[test]
fn a_count_may_hold_its_request_and_end_with_an_answer() {
    let body =
        r#"{"generateContentRequest":{"model":"models/policy","contents":[{"role":"model","parts":[{"text":"x"}]}]}}"#;
    let request = GEMINI.decode(body.as_bytes()).unwrap();
    assert_eq!(request.model, "policy");
    let apply = |name: &str| ModelMethod::of(name, None).unwrap().apply(&mut request.clone());
    assert_eq!(apply("policy:countTokens"), Ok(()));
    assert_eq!(
        apply("policy:generateContent").unwrap_err().to_string(),
        "contents: the last content is the model's, and an answer is a content of its own: leave it out"
    );
}

#[test]
fn both_spellings_of_a_field_are_read() {
    let body = r#"{"system_instruction":{"parts":[{"text":"a"}]},"contents":[{"parts":[{"text":"b"}]}],
        "tools":[{"function_declarations":[{"name":"f"}]}],"generation_config":{"max_output_tokens":7,"top_k":2}}"#;
    let request = GEMINI.decode(body.as_bytes()).unwrap();
    assert_eq!(request.messages[0], ChatMessage::new(Role::System, "a"));
    assert_eq!(request.tools, r#"[{"type":"function","function":{"name":"f"}}]"#);
    assert_eq!(request.max_tokens, Some(7));
    assert_eq!(
        request.overruled,
        [("generationConfig.topK".to_owned(), "2".to_owned())]
    );
}

#[test]
fn what_is_kept_nowhere_or_cannot_be_read_is_refused_with_its_field() {
    let content = |role: &str, part: &str| {
        let body = format!(r#"{{"contents":[{{"role":"{role}","parts":[{part}]}}]}}"#);
        refusal(GEMINI, &body)
    };
    let with = |rest: &str| {
        refusal(
            GEMINI,
            &format!(r#"{{"contents":[{{"parts":[{{"text":"x"}}]}}],{rest}}}"#),
        )
    };
    let text_only = |kind: &str| format!("the model reads text only, and this is of type \"{kind}\": send text");
    let image = r#"{"inlineData":{"mimeType":"image/png","data":"AAAA"}}"#;
    assert_eq!(
        content("user", image),
        format!("contents[0].parts[0]: {}", text_only("inlineData"))
    );
    assert_eq!(content("alien", image), "contents[0].role: a role is user or model");
    assert_eq!(
        content("user", "{}"),
        "contents[0].parts[0].text: this field is missing"
    );
    assert_eq!(
        content("user", r#"{"functionResponse":{"name":"f"}}"#),
        "contents[0].parts[0].functionResponse.id: this field is missing"
    );
    assert_eq!(
        content("model", r#"{"functionCall":{"name":"f","args":[1]}}"#),
        "contents[0].parts[0].functionCall.args: arguments are the JSON text of an object"
    );
    assert_eq!(
        with(r#""cachedContent":"c/1""#),
        "cachedContent: the endpoint keeps no contents: send the contents themselves"
    );
    assert_eq!(
        with(r#""generationConfig":{"candidateCount":2}"#),
        "generationConfig.candidateCount: one answer per request: leave candidateCount out"
    );
    assert_eq!(
        with(r#""tools":[{"functionDeclarations":[{"description":"x"}]}]"#),
        "tools[0].functionDeclarations[0].name: a tool has a name of 1 to 256 bytes"
    );
}
