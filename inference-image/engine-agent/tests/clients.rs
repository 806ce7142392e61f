//! Clients outside of runs: they sample, with limits, and nothing else.

use std::path::Path;
use std::time::Duration;

use grpo_auth::ServiceAccount;
use grpo_contracts::access::Service;
use grpo_engine_agent::Kind;
use grpo_engine_protocol::{CompletionRequest, CompletionResponse, ErrorBody, ErrorCode, WEIGHTS_HEADER};
use reqwest::{Client, Method, header};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::support::fake::Fake;
use crate::support::{
    Agent, CLIENT_PLACES, MAX_REQUEST_BYTES, Source, bearing, driver, engine, engines, model_of, notebook,
};

const CHAT: &str = "/v1/chat/completions";

fn as_account(agent: &Agent, account: &ServiceAccount) -> Client {
    bearing(&agent.issuer.token(account, Service::EngineAgent).unwrap())
}

async fn call(client: &Client, agent: &Agent, method: Method, path: &str, body: &Value) -> (u16, Value) {
    let request = client.request(method, format!("{}{path}", agent.url)).json(body);
    let answer = request.send().await.unwrap();
    let status = answer.status().as_u16();
    let text = answer.text().await.unwrap();
    (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
}

fn conversation() -> Value {
    json!({"model": "policy", "messages": [{"role": "user", "content": "How good was this turn?"}]})
}

/// A conversation at the engine, until it is released or ended. Returns its status and its answer; an answer 503 says
/// when to try again.
async fn held(fake: &Fake, agent: &Agent, account: &ServiceAccount) -> JoinHandle<(u16, Value)> {
    fake.hold();
    let running = fake.running();
    let (client, url) = (as_account(agent, account), format!("{}{CHAT}", agent.url));
    let asked = tokio::spawn(async move {
        let answer = client.post(url).json(&conversation()).send().await.unwrap();
        let status = answer.status().as_u16();
        let retry_after = answer
            .headers()
            .get(header::RETRY_AFTER)
            .map(|after| after.to_str().unwrap().to_owned());
        assert_eq!(retry_after.as_deref(), (status == 503).then_some("10"));
        (status, answer.json().await.unwrap())
    });
    until(|| fake.running() > running).await;
    asked
}

async fn until(holds: impl Fn() -> bool) {
    let held = async {
        while !holds() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), held).await.unwrap();
}

/// What a client is told whose request is ended, and one that comes meanwhile.
fn assert_unavailable((status, refused): (u16, Value), why: &str) {
    assert_eq!(
        (status, refused["code"].as_str()),
        (503, Some("EngineUnavailable")),
        "{refused}"
    );
    assert!(refused["message"].as_str().unwrap().contains(why), "{refused}");
}

fn sglang() -> Kind {
    Kind::Sglang { no_folders: None }
}

fn vllm() -> Kind {
    Kind::Vllm {
        no_folders: None,
        cpu: false,
    }
}

#[tokio::test]
async fn a_client_lists_models_and_samples() {
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../demo/model");
    let mut options = engine::options(&demo);
    options.max_context = Some(256);
    let engine = engine::start(options).await;
    let agent = Agent::before(&engine.url).await;
    agent.wait_until_serving("base").await;
    let client = as_account(&agent, &notebook());

    let (status, models) = call(&client, &agent, Method::GET, "/v1/models", &Value::Null).await;
    assert_eq!(status, 200);
    assert_eq!(models["data"][0]["object"], "model");

    // As OpenAI's Python library writes it.
    let mut asked = conversation();
    asked["max_completion_tokens"] = json!(8);
    asked["temperature"] = json!(0.5);
    asked["stop"] = Value::Null;
    asked["stream"] = json!(false);
    let (status, answer) = call(&client, &agent, Method::POST, CHAT, &asked).await;
    assert_eq!(status, 200, "{answer}");
    assert_eq!(answer["object"], "chat.completion");
    assert_eq!(answer["model"], "policy");
    assert!(answer["id"].as_str().unwrap().starts_with("chatcmpl-") && answer["created"].is_u64());
    let choice = &answer["choices"][0];
    assert_eq!(choice["message"]["role"], "assistant");
    assert!(choice["message"]["content"].is_string());
    assert!(["stop", "length"].contains(&choice["finish_reason"].as_str().unwrap()));
    let usage = &answer["usage"];
    let tokens = |name: &str| usage[name].as_u64().unwrap();
    assert!(tokens("completion_tokens") <= 8);
    assert_eq!(
        tokens("total_tokens"),
        tokens("prompt_tokens") + tokens("completion_tokens")
    );

    // Without a limit the rest of the context is its limit.
    let (status, answer) = call(&client, &agent, Method::POST, CHAT, &conversation()).await;
    assert_eq!(status, 200, "{answer}");

    let ids = CompletionRequest::of_tokens("policy", vec![4, 5, 6], 3, 1);
    let sent = client.post(format!("{}/v1/completions", agent.url)).json(&ids);
    let answer = sent.header(WEIGHTS_HEADER, "base").send().await.unwrap();
    let answer: CompletionResponse = answer.json().await.unwrap();
    assert_eq!((answer.weights_version.as_str(), answer.choices.len()), ("base", 1));
}

#[tokio::test]
async fn a_client_orders_no_weights_and_reads_nothing_of_a_run() {
    let base = model_of(1);
    let engine = engine::start(engine::options(base.path())).await;
    let agent = Agent::before(&engine.url).await;
    agent.wait_until_serving("base").await;
    let client = as_account(&agent, &notebook());
    let order = serde_json::to_value(Source::start().await.publish("a-v1", 2).0).unwrap();
    for (method, path, body) in [
        (Method::PUT, "/agent/v1/weights", &order),
        (Method::PUT, "/agent/v1/prefetch", &order),
        (Method::PUT, "/agent/v1/sleep", &json!({"asleep": true})),
        (Method::GET, "/agent/v1/status", &Value::Null),
        (
            Method::GET,
            "/agent/v1/chunks/base/model.safetensors/0?sha256=0",
            &Value::Null,
        ),
        (Method::GET, "/agent/v1/no-such-route", &Value::Null),
        (Method::GET, "/", &Value::Null),
    ] {
        let (status, refused) = call(&client, &agent, method, path, body).await;
        assert_eq!(status, 403, "{path}: {refused}");
        assert_eq!(refused["code"], "Forbidden", "{path}");
        assert!(refused["message"].as_str().unwrap().contains(CHAT), "{refused}");
    }
    // The kubelet's key drains a replica, and no token does.
    let (status, _) = call(&client, &agent, Method::GET, "/agent/v1/drain", &Value::Null).await;
    assert_eq!(status, 403);
    let unchanged = agent.status().await;
    assert_eq!((unchanged.wanted, unchanged.serving.as_deref()), (None, Some("base")));
}

#[tokio::test]
async fn an_account_that_is_no_client_samples_nothing() {
    let fake = Fake::vllm().await;
    let agent = Agent::guarding(vllm(), &fake.url, None, 16).await;
    agent.wait_until_serving("base").await;
    fake.calls();
    let anonymous = Client::builder().no_proxy().build().unwrap();
    let other = as_account(&agent, &ServiceAccount::new("eval", "other"));
    let same_name = as_account(&agent, &ServiceAccount::new("team", "notebook"));
    let of_the_pool = as_account(&agent, &engines());
    for (client, wanted) in [(anonymous, 401), (other, 403), (same_name, 403), (of_the_pool, 403)] {
        let (status, refused) = call(&client, &agent, Method::POST, CHAT, &conversation()).await;
        assert_eq!(status, wanted, "{refused}");
    }
    assert!(fake.calls().iter().all(|(path, _)| path != CHAT));
}

#[tokio::test]
async fn clients_that_use_all_their_places_leave_the_others_to_the_driver() {
    let fake = Fake::vllm().await;
    let agent = Agent::guarding(vllm(), &fake.url, None, CLIENT_PLACES + 1).await;
    agent.wait_until_serving("base").await;
    let client = as_account(&agent, &notebook());
    fake.hold();
    let mut running = Vec::new();
    for place in 1..=CLIENT_PLACES {
        let (client, agent) = (client.clone(), agent.clone());
        running.push(tokio::spawn(async move {
            call(&client, &agent, Method::POST, CHAT, &conversation()).await
        }));
        while fake.running() < place {
            tokio::task::yield_now().await;
        }
    }
    let (status, refused) = call(&client, &agent, Method::POST, CHAT, &conversation()).await;
    assert_eq!(
        (status, refused["code"].as_str()),
        (429, Some("QueueFull")),
        "{refused}"
    );
    assert!(refused["message"].as_str().unwrap().contains("clients"), "{refused}");
    let (status, _) = call(&client, &agent, Method::GET, "/v1/models", &Value::Null).await;
    assert_eq!(status, 429);

    let of_the_run = {
        let (client, agent) = (as_account(&agent, &driver()), agent.clone());
        tokio::spawn(async move { call(&client, &agent, Method::POST, CHAT, &conversation()).await })
    };
    while fake.running() <= CLIENT_PLACES {
        tokio::task::yield_now().await;
    }
    fake.let_go();
    running.push(of_the_run);
    for answered in running {
        let (status, answer) = answered.await.unwrap();
        assert_eq!(status, 200, "{answer}");
    }
    // A place is free again as soon as its request has its answer.
    let freed = async {
        while call(&client, &agent, Method::POST, CHAT, &conversation()).await.0 != 200 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), freed).await.unwrap();
}

#[tokio::test]
async fn a_client_gets_one_row_per_request() {
    let fake = Fake::vllm().await;
    let agent = Agent::guarding(vllm(), &fake.url, None, 16).await;
    agent.wait_until_serving("base").await;
    fake.calls();
    let client = as_account(&agent, &notebook());
    let url = format!("{}/v1/completions", agent.url);
    for (body, field) in [
        (json!({"prompt": [1, 2], "n": 2}), "n is 2"),
        (json!({"prompt": [[1, 2], [3]]}), "n is 2"),
        (json!({"prompt": [1, 2], "n": 0}), "n is 0"),
        (json!({"prompt": [1, 2], "best_of": 4}), "best_of"),
    ] {
        let answer = client.post(&url).json(&body).send().await.unwrap();
        let error: ErrorBody = answer.json().await.unwrap();
        assert_eq!(error.code, ErrorCode::InvalidRequest, "{body}");
        assert!(error.message.contains(field), "{error}");
    }
    let long = client.post(&url).body(vec![b' '; MAX_REQUEST_BYTES + 1]);
    assert_eq!(long.send().await.unwrap().status(), 413);
    assert!(fake.paths().is_empty());
}

#[tokio::test]
async fn a_load_of_full_weights_ends_clients_requests_and_waits_for_those_of_the_run() {
    for (kind, fake) in [(vllm(), Fake::vllm().await), (sglang(), Fake::sglang().await)] {
        let source = Source::start().await;
        let agent = Agent::guarding(kind, &fake.url, None, 16).await;
        agent.wait_until_serving("base").await;
        fake.end_rows_before_a_pause();
        let of_the_run = held(&fake, &agent, &driver()).await;
        let of_a_client = held(&fake, &agent, &notebook()).await;
        fake.calls();
        agent.order(&source.publish("a-v1", 2).0).await;
        assert_unavailable(
            of_a_client.await.unwrap(),
            "ended before its answer was complete: the engine loads new weights",
        );
        // The engine aborts it, since its connection is closed.
        until(|| fake.running() == 1).await;
        assert!(!of_the_run.is_finished(), "the run's own request was ended");
        let client = as_account(&agent, &notebook());
        let refused = call(&client, &agent, Method::POST, CHAT, &conversation()).await;
        assert_unavailable(refused, "the engine loads new weights of a run");
        assert_eq!(
            call(&client, &agent, Method::GET, "/v1/models", &Value::Null).await.0,
            200
        );
        assert_ne!(agent.status().await.serving.as_deref(), Some("a-v1"));

        fake.let_go();
        assert_eq!(of_the_run.await.unwrap().0, 200);
        agent.wait_until_serving("a-v1").await;
        let (status, answer) = call(&client, &agent, Method::POST, CHAT, &conversation()).await;
        assert_eq!(status, 200, "{answer}");
    }
}

#[tokio::test]
async fn a_clients_request_does_not_keep_the_engine_awake() {
    for (kind, fake) in [(vllm(), Fake::vllm().await), (sglang(), Fake::sglang().await)] {
        let agent = Agent::guarding(kind, &fake.url, None, 16).await;
        agent.wait_until_serving("base").await;
        let of_a_client = held(&fake, &agent, &notebook()).await;
        agent.sleep(true).await;
        assert_unavailable(
            of_a_client.await.unwrap(),
            "ended before its answer was complete: the engine falls asleep",
        );
        agent.wait_until_asleep().await;
        assert!(fake.crashes().is_empty(), "{:?}", fake.crashes());
        let client = as_account(&agent, &notebook());
        let refused = call(&client, &agent, Method::POST, CHAT, &conversation()).await;
        assert_unavailable(refused, "the engine is asleep");
        fake.let_go();
        agent.sleep(false).await;
        agent.wait_until_serving("base").await;
        assert_eq!(call(&client, &agent, Method::POST, CHAT, &conversation()).await.0, 200);
    }
}

#[tokio::test]
async fn clients_sample_while_an_adapter_is_loaded() {
    for (kind, fake) in [(vllm(), Fake::vllm().await), (sglang(), Fake::sglang().await)] {
        let source = Source::start().await;
        let agent = Agent::guarding(kind, &fake.url, None, 16).await;
        agent.wait_until_serving("base").await;
        let before = held(&fake, &agent, &notebook()).await;
        fake.calls();
        fake.hold_adapters(true);
        agent.order(&source.publish_adapter("a-v1")).await;
        until(|| fake.paths().contains(&"/load_lora_adapter".to_owned())).await;
        let meanwhile = held(&fake, &agent, &notebook()).await;
        fake.hold_adapters(false);
        agent.wait_until_serving("a-v1").await;
        assert_eq!(fake.running(), 2, "a request was ended");
        fake.let_go();
        for asked in [before, meanwhile] {
            assert_eq!(asked.await.unwrap().0, 200);
        }
    }
}
