//! The recording endpoint's three APIs, with the official client libraries: `make check-apis`.
//!
//! A server on loopback decodes a client's request, answers it as its last message says, and encodes the answer. The
//! programs in `e2e/apis` check that their library decodes what was sent.

use axum::Router;
use axum::body::Bytes;
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use grpo_driver::recording::api::Api;
use grpo_driver::recording::request::{Answer, ChatMessage, Request, ToolCall, Usage};
use serde_json::json;
use std::process::Command;

async fn asked(uri: Uri, headers: HeaderMap, body: Bytes) -> Response {
    let path = uri.path();
    let api = match path {
        "/v1/messages" | "/v1/messages/count_tokens" => Api::Messages,
        "/v1/responses" => Api::Responses,
        "/v1/models" if headers.contains_key("anthropic-version") => Api::Messages,
        _ => Api::ChatCompletions,
    };
    let whole =
        |status: StatusCode, body: Vec<u8>| (status, [("content-type", "application/json")], body).into_response();
    if path == "/v1/models" {
        return whole(StatusCode::OK, api.models("policy"));
    }
    let request = match api.decode(&body) {
        Ok(request) => request,
        Err(bad) => return whole(StatusCode::BAD_REQUEST, api.bad_request(&bad)),
    };
    if path.ends_with("count_tokens") {
        return whole(StatusCode::OK, api.token_count(request.messages.len()));
    }
    let said = request.messages.last().map_or("", |message| message.content.as_str());
    if said == "end" {
        return whole(StatusCode::NOT_FOUND, api.error(404, "the episode has ended"));
    }
    let answer = answer(&request, said);
    if !request.stream {
        return whole(StatusCode::OK, api.answer(&request, &answer));
    }
    let mut events = api.events(&request, &answer.id, answer.created);
    let mut bytes = Vec::new();
    if said == "wait" {
        bytes.extend((0..3).flat_map(|_| events.wait()));
    }
    bytes.extend(events.finish(&answer).concat());
    (StatusCode::OK, [("content-type", "text/event-stream")], bytes).into_response()
}

fn answer(request: &Request, said: &str) -> Answer {
    let call = |number: usize, arguments: &str| ToolCall {
        id: format!("call_a7_{number}"),
        name: "bash".into(),
        arguments: arguments.into(),
    };
    let (content, reasoning, calls) = match said {
        "call" => (
            "I look.",
            Some("Where am I?"),
            vec![
                call(0, r#"{"command": "ls", "10": 1.0, "a": [1, "é😀"]}"#),
                call(1, "{}"),
            ],
        ),
        "call only" => ("", None, vec![call(0, r#"{"command":"ls"}"#)]),
        "repeat" => ("", None, Vec::new()),
        _ => (
            "Héllo 😀\u{2028}\u{85}\n<|im_end|> \"quoted\" \\ Done.\n",
            None,
            Vec::new(),
        ),
    };
    Answer {
        id: "a7".into(),
        created: 1_790_000_000,
        content: if said == "repeat" {
            repeated(request)
        } else {
            content.into()
        },
        reasoning: reasoning.map(str::to_owned),
        calls,
        cut: false,
        usage: Usage {
            prompt_tokens: 40,
            completion_tokens: 2,
        },
    }
}

/// The decoded request, for a client to compare with its own.
fn repeated(request: &Request) -> String {
    let call = |call: &ToolCall| json!([call.id, call.name, call.arguments]);
    let message = |message: &ChatMessage| {
        json!({
            "role": format!("{:?}", message.role),
            "content": message.content,
            "reasoning": message.reasoning,
            "calls": message.tool_calls.iter().map(call).collect::<Vec<_>>(),
            "id": message.tool_call_id,
        })
    };
    json!({
        "tools": request.tools,
        "messages": request.messages.iter().map(message).collect::<Vec<_>>(),
        "max_tokens": request.max_tokens,
        "overruled": request.overruled,
    })
    .to_string()
}

async fn client(program: &str, arguments: &[&str]) {
    let program = std::env::var(program).unwrap_or_else(|_| panic!("{program} is not set: run make check-apis"));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let server = tokio::spawn(async move { axum::serve(listener, Router::new().fallback(asked)).await });
    let mut command = Command::new(program);
    command
        .args(arguments)
        .arg(url)
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../../e2e/apis"));
    let status = tokio::task::spawn_blocking(move || command.status())
        .await
        .unwrap()
        .unwrap();
    server.abort();
    assert!(status.success(), "{status}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs OpenAI's library: make check-apis"]
async fn openais_library_reads_what_was_sent() {
    client("APIS_PYTHON", &["openai_client.py"]).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Anthropic's library: make check-apis"]
async fn anthropics_library_reads_what_was_sent() {
    client("APIS_PYTHON", &["anthropic_client.py"]).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the libraries of qwen-code and Claude Code: make check-apis"]
async fn javascript_libraries_read_what_was_sent() {
    client("APIS_NODE", &["javascript_client.mjs"]).await;
}
