//! A server that speaks only text, over real sockets: its probe, its key, messages with tools, and its faults.

use super::{before, body_of, openai, openai_of, request, vllm};
use crate::support::fake::Fake;
use crate::support::{Agent, bearing, driver, notebook};
use axum::extract::State;
use axum::http::header::RETRY_AFTER;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use grpo_contracts::access::Service;
use grpo_engine_agent::Kind;
use grpo_engine_protocol::{
    ChatRequest, ErrorBody, ErrorCode, ErrorOrigin, Penalties, TEXT_PATH, TextCall, TextMessage, TextRequest,
    TextResponse, WEIGHTS_HEADER,
};
use serde_json::{Value, json};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};
use tokio::net::TcpListener;

/// A service with OpenAI's chat completions and nothing of vLLM's. It refuses fields that OpenAI's does not have.
#[derive(Default)]
struct ChatService {
    asked: Mutex<Vec<Value>>,
    keys: Mutex<Vec<String>>,
    /// All requests, also the refused ones.
    tried: Mutex<Vec<Value>>,
    /// The status of its next answers; `None`: it answers.
    fault: Mutex<Option<(StatusCode, &'static str)>>,
    /// The pause that it asks for with a fault.
    retry_after: Mutex<Option<String>>,
    /// Fields that its model refuses, as OpenAI's reasoning models do.
    refuses: Mutex<Vec<&'static str>>,
}

async fn service() -> (Arc<ChatService>, String) {
    let service = Arc::new(ChatService::default());
    let models = || async { Json(json!({"object": "list", "data": [{"id": "teacher-1", "object": "model"}]})) };
    let router = Router::new()
        .route("/v1/models", get(models))
        .route("/v1/chat/completions", post(answer))
        .with_state(service.clone());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await });
    (service, url)
}

async fn answer(State(service): State<Arc<ChatService>>, headers: HeaderMap, Json(body): Json<Value>) -> Response {
    let key = headers.get("authorization").map(|key| key.to_str().unwrap().to_owned());
    service.keys.lock().unwrap().push(key.unwrap_or_default());
    service.tried.lock().unwrap().push(body.clone());
    let refuses = service.refuses.lock().unwrap().clone();
    if let Some(name) = refuses.into_iter().find(|name| body.get(*name).is_some()) {
        let said = format!("Unsupported parameter: '{name}' is not supported with this model.");
        let error =
            json!({"message": said, "type": "invalid_request_error", "param": name, "code": "unsupported_parameter"});
        return (StatusCode::BAD_REQUEST, Json(json!({ "error": error }))).into_response();
    }
    let known = [
        "model",
        "messages",
        "tools",
        "max_tokens",
        "max_completion_tokens",
        "temperature",
        "top_p",
        "seed",
        "presence_penalty",
        "frequency_penalty",
    ];
    let mut fields = body.as_object().unwrap().keys();
    let unknown = fields.find(|name| !known.contains(&name.as_str()));
    let fault = *service.fault.lock().unwrap();
    let fault = fault.map(|(status, said)| (status, said.to_owned()));
    let unknown = unknown.map(|name| {
        (
            StatusCode::BAD_REQUEST,
            format!("Unrecognized request argument: {name}"),
        )
    });
    if let Some((status, said)) = fault.or(unknown) {
        let error = json!({"error": {"message": said, "type": "x", "code": null}});
        let mut answer = (status, Json(error)).into_response();
        if let Some(after) = &*service.retry_after.lock().unwrap() {
            answer.headers_mut().insert(RETRY_AFTER, after.parse().unwrap());
        }
        return answer;
    }
    service.asked.lock().unwrap().push(body);
    let call =
        json!({"id": "call_9", "type": "function", "function": {"name": "bash", "arguments": "{\"command\": \"ls\"}"}});
    Json(json!({
        "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "teacher-1", "system_fingerprint": "x",
        "choices": [{"index": 0, "logprobs": null, "finish_reason": "tool_calls", "message": {
            "role": "assistant", "content": null, "refusal": null, "reasoning_content": "Look first.", "tool_calls": [call],
        }}],
        "usage": {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12},
    }))
    .into_response()
}

fn chat() -> Kind {
    openai_of(true)
}

fn conversation() -> TextRequest {
    let called = TextMessage {
        content: None,
        tool_calls: Some(vec![TextCall::new("call_0", "bash", "{\"command\": \"pwd\"}")]),
        ..TextMessage::new("assistant", "")
    };
    let result = TextMessage {
        tool_call_id: Some("call_0".to_owned()),
        ..TextMessage::new("tool", "/testbed")
    };
    TextRequest {
        messages: vec![TextMessage::new("user", "Mend it."), called, result],
        tools: r#"[{"type": "function", "function": {"name": "bash", "parameters": {}}}]"#.to_owned(),
        max_tokens: 64,
        temperature: 0.7,
        top_p: 1.0,
        top_k: 0,
        penalties: Penalties {
            presence_penalty: 0.5,
            ..Penalties::default()
        },
        seed: 3,
    }
}

async fn ask(agent: &Agent, request: &TextRequest) -> Result<TextResponse, ErrorBody> {
    let call = agent.client.post(format!("{}{TEXT_PATH}", agent.url));
    let answer = call.header(WEIGHTS_HEADER, "base").json(request).send().await.unwrap();
    match answer.status().as_u16() {
        200 => Ok(answer.json().await.unwrap()),
        status => {
            let error: ErrorBody = answer.json().await.unwrap();
            assert_eq!(error.status(), status);
            Err(error)
        }
    }
}

#[tokio::test]
async fn messages_tools_and_settings_reach_the_server_and_its_calls_come_back() {
    let (service, url) = service().await;
    let agent = Agent::guarding(chat(), &url, Some("secret\n"), 16).await;
    agent.wait_until_serving("base").await;
    service.asked.lock().unwrap().clear();
    let answer = ask(&agent, &conversation()).await.unwrap();
    let message = &answer.choices[0].message;
    let calls = vec![TextCall::new("call_9", "bash", "{\"command\": \"ls\"}")];
    assert_eq!(message.tool_calls, Some(calls));
    assert_eq!(message.reasoning_content.as_deref(), Some("Look first."));
    assert_eq!(answer.choices[0].finish_reason.as_deref(), Some("tool_calls"));
    assert_eq!(answer.usage.unwrap().completion_tokens, 7);
    let asked = service.asked.lock().unwrap();
    // The probe may have been repeated meanwhile.
    let asked = asked.iter().find(|asked| asked["max_tokens"] == 64).unwrap();
    let wanted = json!({
        "model": "teacher-1", "max_tokens": 64, "temperature": 0.7, "top_p": 1.0, "presence_penalty": 0.5, "seed": 3,
        "tools": [{"type": "function", "function": {"name": "bash", "parameters": {}}}],
        "messages": [
            {"role": "user", "content": "Mend it."},
            {"role": "assistant", "content": null, "tool_calls": [
                {"id": "call_0", "type": "function", "function": {"name": "bash", "arguments": "{\"command\": \"pwd\"}"}},
            ]},
            {"role": "tool", "content": "/testbed", "tool_call_id": "call_0"},
        ],
    });
    assert_eq!(asked, &wanted);
    assert!(service.keys.lock().unwrap().iter().all(|key| key == "Bearer secret"));
}

#[tokio::test]
async fn a_server_serves_once_it_has_answered_and_the_status_has_its_words_before() {
    let (service, url) = service().await;
    *service.fault.lock().unwrap() = Some((StatusCode::UNAUTHORIZED, "Incorrect API key provided"));
    let agent = Agent::guarding(chat(), &url, Some("wrong"), 16).await;
    let names_the_key = |message: &String| message.contains("Incorrect API key provided");
    let status = agent
        .wait_for(|status| status.message.as_ref().is_some_and(names_the_key))
        .await;
    assert_eq!(status.serving, None);
    assert!(status.message.unwrap().contains("apiKeySecretRef"));
    // A limit of the rate of requests says that the server is there.
    *service.fault.lock().unwrap() = Some((StatusCode::TOO_MANY_REQUESTS, "Rate limit reached"));
    agent.wait_until_serving("base").await;
}

#[tokio::test]
async fn faults_of_the_server_are_infrastructure_and_refusals_of_a_request_are_the_clients() {
    let (service, url) = service().await;
    let agent = Agent::guarding(chat(), &url, Some("secret"), 16).await;
    for (status, said, code, origin) in [
        (401, "no key", ErrorCode::EngineUnavailable, ErrorOrigin::Infrastructure),
        (
            402,
            "no money",
            ErrorCode::EngineMisbehaved,
            ErrorOrigin::Infrastructure,
        ),
        (
            404,
            "no such model",
            ErrorCode::EngineMisbehaved,
            ErrorOrigin::Infrastructure,
        ),
        (429, "slow down", ErrorCode::QueueFull, ErrorOrigin::Infrastructure),
        (500, "oops", ErrorCode::EngineMisbehaved, ErrorOrigin::Infrastructure),
        (
            503,
            "overloaded",
            ErrorCode::EngineUnavailable,
            ErrorOrigin::Infrastructure,
        ),
        (400, "bad content", ErrorCode::InvalidRequest, ErrorOrigin::Client),
        (
            400,
            "maximum context length is 8",
            ErrorCode::ContextTooLong,
            ErrorOrigin::Client,
        ),
    ] {
        *service.fault.lock().unwrap() = None;
        agent.wait_until_serving("base").await;
        *service.fault.lock().unwrap() = Some((StatusCode::from_u16(status).unwrap(), said));
        // A probe that met the fault has the replica serve nothing, until the next one.
        let error = ask_unprobed(&agent, &conversation()).await.unwrap_err();
        assert_eq!((error.code, error.fault), (code, origin), "{status}: {error}");
        assert!(error.message.contains(said), "{error}");
    }
}

/// Names no version, so that a probe in between does not matter.
async fn ask_unprobed(agent: &Agent, request: &TextRequest) -> Result<TextResponse, ErrorBody> {
    let call = agent.client.post(format!("{}{TEXT_PATH}", agent.url));
    let answer = call.json(request).send().await.unwrap();
    match answer.status().is_success() {
        true => Ok(answer.json().await.unwrap()),
        false => Err(answer.json().await.unwrap()),
    }
}

#[tokio::test]
async fn token_ids_are_refused_by_name_and_other_engines_refuse_text() {
    let (_, url) = service().await;
    let agent = Agent::guarding(chat(), &url, None, 16).await;
    agent.wait_until_serving("base").await;
    let error = agent.complete(&request(), Some("base")).await.unwrap_err();
    assert_eq!((error.code, error.fault), (ErrorCode::TextOnly, ErrorOrigin::Client));
    for kind in [vllm(), openai(), Kind::Embedded] {
        let fake = Fake::vllm().await;
        let agent = before(kind, &fake).await;
        let error = ask_unprobed(&agent, &conversation()).await.unwrap_err();
        assert_eq!(error.code, ErrorCode::InvalidRequest);
        assert!(error.message.contains("/v1/completions"), "{error}");
    }
}

#[tokio::test]
async fn the_route_is_for_drivers_through_two_agents_too_and_clients_have_their_own() {
    let (_, url) = service().await;
    let near = Agent::guarding(chat(), &url, None, 16).await;
    near.wait_until_serving("base").await;
    let token = near.issuer.token(&driver(), Service::EngineAgent).unwrap();
    let far = Agent::guarding(Kind::Agent, &near.url, Some(&token), 16).await;
    far.wait_until_serving("base").await;
    let error = far.complete(&request(), Some("base")).await.unwrap_err();
    assert_eq!(error.code, ErrorCode::TextOnly);
    let through_two = ask(&far, &conversation()).await;
    assert_eq!(through_two, ask(&near, &conversation()).await);
    assert!(through_two.is_ok());
    let token = near.issuer.token(&notebook(), Service::EngineAgent).unwrap();
    let call = bearing(&token).post(format!("{}{TEXT_PATH}", near.url));
    let answer = call.json(&conversation()).send().await.unwrap();
    assert_eq!(answer.status(), 403);
}

#[tokio::test]
async fn settings_that_openai_does_not_have_are_sent_only_if_they_are_set() {
    let fake = Fake::vllm().await;
    let agent = before(chat(), &fake).await;
    agent.wait_until_serving("base").await;
    let with = TextRequest {
        top_k: 5,
        max_tokens: 65,
        penalties: Penalties {
            min_p: 0.1,
            ..Penalties::default()
        },
        ..conversation()
    };
    for request in [conversation(), with] {
        fake.calls();
        ask(&agent, &request).await.unwrap();
        let limit = request.max_tokens;
        let mut calls = fake.calls();
        calls.retain(|(_, body)| body["max_tokens"] == limit);
        let asked = body_of(&calls, "/v1/chat/completions");
        let sent = (asked.get("top_k").is_some(), asked.get("min_p").is_some());
        assert_eq!(sent, (request.top_k > 0, request.top_k > 0));
    }
}

/// The conversation with settings that leave out what reasoning models refuse.
fn plain_conversation() -> TextRequest {
    TextRequest {
        temperature: 1.0,
        penalties: Penalties::default(),
        ..conversation()
    }
}

#[tokio::test]
async fn a_reasoning_model_refuses_the_old_limit_once_and_later_requests_cost_one_call() {
    let (service, url) = service().await;
    *service.refuses.lock().unwrap() = vec!["max_tokens", "seed", "temperature", "top_p"];
    let agent = Agent::guarding(chat(), &url, None, 16).await;
    agent.wait_until_serving("base").await;
    ask(&agent, &plain_conversation()).await.unwrap();
    let is_ours = |tried: &&Value| tried["messages"][0]["content"] == "Mend it.";
    let tried = service.tried.lock().unwrap().clone();
    let ours: Vec<&Value> = tried.iter().filter(is_ours).collect();
    assert_eq!(ours.len(), 1, "{ours:?}");
    assert_eq!(ours[0]["max_completion_tokens"], 64);
    for field in ["max_tokens", "seed", "temperature", "top_p"] {
        assert_eq!(ours[0].get(field), None, "{field}");
    }
    // The probe has met the refusal, once for all.
    assert_eq!(
        tried.iter().filter(|tried| tried.get("max_tokens").is_some()).count(),
        1
    );
    // A judge's questions are in the same form.
    let judged = ChatRequest {
        max_tokens: Some(65),
        ..judge_request()
    };
    agent.chat(&judged).await.unwrap();
    let asked = service.asked.lock().unwrap();
    assert!(asked.iter().any(|asked| asked["max_completion_tokens"] == 65));
}

fn judge_request() -> ChatRequest {
    serde_json::from_value(json!({"messages": [{"role": "user", "content": "good?"}], "seed": 1})).unwrap()
}

#[tokio::test]
async fn an_older_server_behind_the_same_url_gets_the_old_limit_again() {
    let (service, url) = service().await;
    *service.refuses.lock().unwrap() = vec!["max_tokens"];
    let agent = Agent::guarding(chat(), &url, None, 16).await;
    agent.wait_until_serving("base").await;
    *service.refuses.lock().unwrap() = vec!["max_completion_tokens"];
    ask(&agent, &conversation()).await.unwrap();
    let asked = service.asked.lock().unwrap();
    assert!(asked.iter().any(|asked| asked["max_tokens"] == 64));
}

#[tokio::test]
async fn a_setting_of_the_run_that_the_model_refuses_is_named_and_never_left_out() {
    let (service, url) = service().await;
    *service.refuses.lock().unwrap() = vec!["temperature", "presence_penalty"];
    let agent = Agent::guarding(chat(), &url, None, 16).await;
    agent.wait_until_serving("base").await;
    let hot = TextRequest {
        penalties: Penalties::default(),
        ..conversation()
    };
    let penalized = TextRequest {
        temperature: 1.0,
        ..conversation()
    };
    for (request, setting) in [(hot, "temperature"), (penalized, "presence_penalty")] {
        let error = ask(&agent, &request).await.unwrap_err();
        assert_eq!(
            (error.code, error.fault),
            (ErrorCode::SettingRefused, ErrorOrigin::Client)
        );
        assert_eq!(error.setting.as_deref(), Some(setting));
        assert!(error.message.contains("Unsupported parameter"), "{error}");
    }
    ask(&agent, &plain_conversation()).await.unwrap();
}

#[tokio::test]
async fn an_answer_that_reasoning_used_up_is_a_cut_answer_and_no_refusal() {
    let (service, url) = service().await;
    let said = "Could not finish the message because max_tokens or model output limit was reached. Please try again with \
                higher max_tokens.";
    *service.fault.lock().unwrap() = Some((StatusCode::BAD_REQUEST, said));
    let agent = Agent::guarding(chat(), &url, None, 16).await;
    agent.wait_until_serving("base").await;
    let answer = ask(&agent, &conversation()).await.unwrap();
    let choice = &answer.choices[0];
    assert_eq!(
        (choice.message.content.as_deref(), choice.finish_reason.as_deref()),
        (Some(""), Some("length"))
    );
}

#[tokio::test]
async fn a_pause_that_the_server_asks_for_reaches_the_driver_through_two_agents_too() {
    let (service, url) = service().await;
    let near = Agent::guarding(chat(), &url, None, 16).await;
    near.wait_until_serving("base").await;
    let token = near.issuer.token(&driver(), Service::EngineAgent).unwrap();
    let far = Agent::guarding(Kind::Agent, &near.url, Some(&token), 16).await;
    far.wait_until_serving("base").await;
    let date = httpdate::fmt_http_date(SystemTime::now() + Duration::from_secs(100));
    for (status, header, most) in [(429, "7", 7), (503, date.as_str(), 100)] {
        *service.retry_after.lock().unwrap() = Some(header.to_owned());
        *service.fault.lock().unwrap() = Some((StatusCode::from_u16(status).unwrap(), "slow down"));
        for agent in [&near, &far] {
            let call = agent.client.post(format!("{}{TEXT_PATH}", agent.url));
            let answer = call.json(&conversation()).send().await.unwrap();
            assert_eq!(answer.status().as_u16(), status);
            let header = answer.headers()[RETRY_AFTER].to_str().unwrap().to_owned();
            let error: ErrorBody = answer.json().await.unwrap();
            let seconds = error.retry_after_seconds.unwrap();
            assert_eq!(header, seconds.to_string());
            // A date is a moment, which comes nearer.
            assert!(seconds <= most && seconds * 2 > most, "{header}: {seconds}");
        }
    }
}
