use super::*;
use crate::recording::request::{ChatMessage, Role, ToolCall, Usage};
use proptest::prelude::*;
use serde_json::Value;

pub(super) mod bodies;
mod clients;
mod histories;

const ALL: [Api; 4] = [
    Api::ChatCompletions,
    Api::Responses,
    Api::Messages,
    Api::GenerateContent,
];

/// An answer with every part.
pub(super) fn full() -> Answer {
    Answer {
        id: "a7".into(),
        created: 1_790_000_000,
        content: "I look.\u{2028}Now.".into(),
        reasoning: Some("Where?\n".into()),
        calls: vec![
            ToolCall {
                id: "call_a7_0".into(),
                name: "bash".into(),
                arguments: r#"{"command": "ls", "a": 1.0}"#.into(),
            },
            ToolCall {
                id: "call_a7_1".into(),
                name: "bash".into(),
                arguments: "{}".into(),
            },
        ],
        cut: false,
        usage: Usage {
            prompt_tokens: 40,
            completion_tokens: 2,
        },
    }
}

pub(super) fn plain(content: &str) -> Answer {
    Answer {
        content: content.into(),
        reasoning: None,
        calls: Vec::new(),
        ..full()
    }
}

pub(super) fn asked() -> Request {
    Request {
        model: "policy".into(),
        include_usage: true,
        ..Request::default()
    }
}

pub(super) fn json_of(bytes: &[u8]) -> Value {
    serde_json::from_slice(bytes).unwrap()
}

/// Name and JSON of each event; an event that is not JSON is its text.
pub(super) fn events_of(bytes: &[u8]) -> Vec<(String, Value)> {
    let text = std::str::from_utf8(bytes).unwrap();
    assert!(text.ends_with("\n\n"), "{text:?}");
    let event = |event: &str| {
        let (name, data) = match event.split_once('\n') {
            Some((name, data)) => (name.strip_prefix("event: ").unwrap(), data),
            None => ("", event),
        };
        let data = data.strip_prefix("data: ").unwrap();
        assert!(!data.contains(['\n', '\u{2028}', '\u{85}']), "{data:?}");
        let value = serde_json::from_str(data).unwrap_or_else(|_| data.into());
        (name.to_owned(), value)
    };
    text.trim_end_matches('\n').split("\n\n").map(event).collect()
}

pub(super) fn refusal(api: Api, body: &str) -> String {
    api.decode(body.as_bytes()).unwrap_err().to_string()
}

#[test]
fn an_error_has_each_apis_own_form() {
    let bad = BadRequest::new("messages[0].role", "no");
    assert_eq!(
        json_of(&Api::ChatCompletions.bad_request(&bad)),
        json!({ "error": {
            "message": "messages[0].role: no",
            "type": "invalid_request_error",
            "param": "messages[0].role",
            "code": null,
        }})
    );
    assert_eq!(
        json_of(&Api::Messages.bad_request(&bad)),
        json!({ "type": "error", "error": {
            "type": "invalid_request_error",
            "message": "messages[0].role: no",
        }})
    );
    assert_eq!(
        json_of(&Api::GenerateContent.bad_request(&bad)),
        json!({ "error": { "code": 400, "message": "messages[0].role: no", "status": "INVALID_ARGUMENT" } })
    );
    for (status, name) in [
        (404, "NOT_FOUND"),
        (429, "RESOURCE_EXHAUSTED"),
        (500, "INTERNAL"),
        (503, "UNAVAILABLE"),
    ] {
        let error = json_of(&Api::GenerateContent.error(status, "gone"));
        assert_eq!(
            error["error"],
            json!({ "code": status, "message": "gone", "status": name })
        );
    }
    let kind = |api: Api, status| json_of(&api.error(status, "gone"))["error"]["type"].clone();
    assert_eq!(kind(Api::Responses, 404), "invalid_request_error");
    assert_eq!(kind(Api::Responses, 500), "server_error");
    assert_eq!(kind(Api::Messages, 404), "not_found_error");
    assert_eq!(kind(Api::Messages, 503), "api_error");
}

#[test]
fn a_body_that_is_no_request_is_refused_in_words() {
    for api in ALL {
        assert_eq!(refusal(api, "[]"), "invalid type: sequence, expected an object");
        assert!(refusal(api, "{\"model\":").contains("EOF while parsing"));
        let bad = api.decode(b"{\"model\":\"\xff\"}").unwrap_err();
        assert_eq!(bad.to_string(), "the body is no UTF-8 from byte 10");
    }
    let missing = ALL.map(|api| refusal(api, "{}"));
    assert_eq!(missing[0], "messages: this field is missing");
    assert_eq!(missing[1], "input: this field is missing");
    assert_eq!(missing[2], "messages: this field is missing");
    assert_eq!(missing[3], "contents: this field is missing");
}

#[test]
fn counts_of_a_request_are_bounded() {
    let many = |one: &str, number: usize| vec![one; number].join(",");
    let user = r#"{"role":"user","content":"x"}"#;
    let messages = |number| format!(r#"{{"messages":[{}]}}"#, many(user, number));
    assert!(Api::ChatCompletions.decode(messages(4096).as_bytes()).is_ok());
    let refused = refusal(Api::ChatCompletions, &messages(4097));
    assert_eq!(refused, "messages: more than 4096 entries");
    assert_eq!(refusal(Api::Messages, &messages(4097)), refused);
    let parts = many(r#"{"type":"text","text":"x"}"#, 1025);
    let body = format!(r#"{{"messages":[{user},{{"role":"user","content":[{parts}]}}]}}"#);
    assert_eq!(
        refusal(Api::ChatCompletions, &body),
        "messages[1].content: more than 1024 entries"
    );
    let tools = many(r#"{"type":"function","function":{"name":"f"}}"#, 513);
    let body = format!(r#"{{"messages":[{user}],"tools":[{tools}]}}"#);
    assert_eq!(refusal(Api::ChatCompletions, &body), "tools: more than 512 entries");
    let deep = format!("{}{}", "[".repeat(200), "]".repeat(200));
    let body = format!(
        r#"{{"messages":[{user}],"tools":[{{"type":"function","function":{{"name":"f","parameters":{deep}}}}}]}}"#
    );
    assert_eq!(refusal(Api::ChatCompletions, &body), "tools: recursion limit exceeded");
    // Ignored JSON may be of any depth.
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let body = format!(r#"{{"messages":[{user}],"metadata":{deep}}}"#);
    assert!(Api::ChatCompletions.decode(body.as_bytes()).is_ok());
}

#[test]
fn a_value_that_is_recorded_is_bounded() {
    let schema = "x".repeat(1000);
    let body = format!(
        r#"{{"messages":[{{"role":"user","content":"x"}}],"response_format":"{schema}","seed":7,"top_p":null}}"#
    );
    let request = Api::ChatCompletions.decode(body.as_bytes()).unwrap();
    let settings = [("seed", "7"), ("response_format", "\"1002 bytes\"")];
    let settings = settings.map(|(name, value)| (name.to_owned(), value.to_owned()));
    assert_eq!(request.overruled, settings);
}

#[test]
fn an_answer_that_the_clients_limit_cut_says_so_in_each_api() {
    let answer = Answer {
        cut: true,
        ..plain("A tit")
    };
    let request = asked();
    let [chat, responses, messages, gemini] = ALL.map(|api| json_of(&api.answer(&request, &answer)));
    assert_eq!(chat["choices"][0]["finish_reason"], "length");
    assert_eq!(responses["status"], "incomplete");
    assert_eq!(responses["incomplete_details"]["reason"], "max_output_tokens");
    assert_eq!(responses["output"][0]["status"], "incomplete");
    assert_eq!(messages["stop_reason"], "max_tokens");
    assert_eq!(gemini["candidates"][0]["finishReason"], "MAX_TOKENS");
    let streamed = |api: Api| {
        let events = api.events(&request, &answer.id, answer.created).finish(&answer);
        events_of(&events.concat())
    };
    let chunks = streamed(Api::ChatCompletions);
    let finishes = |(_, chunk): &(String, Value)| chunk["choices"][0]["finish_reason"] == "length";
    assert!(chunks.iter().any(finishes), "{chunks:?}");
    let events = streamed(Api::Responses);
    assert_eq!(events.last().unwrap().0, "response.incomplete");
    let events = streamed(Api::Messages);
    assert_eq!(events[events.len() - 2].1["delta"]["stop_reason"], "max_tokens");
    let chunks = streamed(Api::GenerateContent);
    assert_eq!(chunks.last().unwrap().1["candidates"][0]["finishReason"], "MAX_TOKENS");
}

#[test]
fn models_and_token_counts_have_each_apis_form() {
    assert_eq!(
        json_of(&Api::ChatCompletions.models("policy"))["data"][0]["id"],
        "policy"
    );
    assert_eq!(json_of(&Api::Messages.models("policy"))["data"][0]["type"], "model");
    for api in ALL {
        let list = if api == Api::GenerateContent { "models" } else { "data" };
        let listed = json_of(&api.models("policy"))[list][0].clone();
        assert_eq!(json_of(&api.model("policy")), listed);
    }
    assert_eq!(json_of(&Api::GenerateContent.model("policy"))["name"], "models/policy");
    assert_eq!(
        json_of(&Api::GenerateContent.token_count(9)),
        json!({ "totalTokens": 9 })
    );
    assert_eq!(json_of(&Api::Messages.token_count(9)), json!({ "input_tokens": 9 }));
    assert_eq!(
        json_of(&Api::Responses.token_count(9))["object"],
        "response.input_tokens"
    );
}

proptest! {
    #[test]
    fn no_bytes_make_decoding_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        for api in ALL {
            let _ = api.decode(&bytes);
        }
    }

    /// Bodies of clients with a piece cut out, doubled, or replaced.
    #[test]
    fn no_spoilt_body_makes_decoding_panic(
        which in 0..bodies::ALL.len(),
        at in any::<prop::sample::Index>(),
        length in 0usize..40,
        instead in prop_oneof![
            Just(""), Just("\""), Just("null"), Just("\\ud800"), Just("[[[["), Just("{\"type\":\"text\"}"), Just("\\"), Just("9e999"), Just("é"),
        ],
    ) {
        let body = bodies::ALL[which];
        let mut spoilt = body.to_vec();
        let at = at.index(body.len());
        let end = (at + length).min(body.len());
        spoilt.splice(at..end, instead.bytes());
        for api in ALL {
            if let Err(bad) = api.decode(&spoilt) {
                prop_assert!(!bad.message.is_empty());
                prop_assert!(serde_json::from_slice::<Value>(&api.bad_request(&bad)).is_ok());
            }
        }
    }
}
