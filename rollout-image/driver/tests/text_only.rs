//! Runs that are sampled from a server that speaks only text, behind a simulated agent: the messages that it gets, the
//! episodes that are recorded, and its faults.

use crate::world::{World, model_with, serve};
use crate::{cli_agent, tools};
use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Json, Response};
use axum::routing::{get, post, put};
use grpo_crds::grpo_run::Mode;
use grpo_driver::config::Settings;
use grpo_driver::replicas::Endpoints;
use grpo_engine_protocol::{
    AgentStatus, BASE_VERSION, ErrorBody, ErrorCode, TEXT_PATH, TextCall, TextChoice, TextMessage, TextRequest,
    TextResponse,
};
use grpo_records::dataset::message_rows;
use grpo_records::folder::RunFolder;
use grpo_records::{EndedEpisode, EpisodeEnd, EpisodeMeta, Outcome, VoidReason};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// With tools and calls, in the form of Qwen3's.
const TEMPLATE: &str = include_str!("harnesses/chat_template.jinja");

/// The answer to the n-th request, from 0.
type Answers = Box<dyn Fn(&TextRequest, usize) -> Result<TextMessage, ErrorBody> + Send + Sync>;

/// An engine agent whose server speaks only text.
struct TextAgent {
    asked: Mutex<Vec<TextRequest>>,
    /// When each request came.
    tried: Mutex<Vec<Instant>>,
    answers: Answers,
}

impl TextAgent {
    async fn start(
        answers: impl Fn(&TextRequest, usize) -> Result<TextMessage, ErrorBody> + Send + Sync + 'static,
    ) -> (Arc<Self>, Endpoints) {
        let agent = Arc::new(Self {
            asked: Mutex::default(),
            tried: Mutex::default(),
            answers: Box::new(answers),
        });
        let router = Router::new()
            .route("/v1/completions", post(complete))
            .route(TEXT_PATH, post(text))
            .route("/agent/v1/weights", put(|| async { StatusCode::ACCEPTED }))
            .route("/agent/v1/status", get(status))
            .with_state(agent.clone());
        (agent, Endpoints::Fixed(vec![serve(router).await]))
    }
}

fn refused(code: ErrorCode) -> ErrorBody {
    ErrorBody::new(code, format!("said {code:?}"))
}

fn refusal(error: ErrorBody) -> Response {
    (StatusCode::from_u16(error.status()).unwrap(), Json(error)).into_response()
}

async fn complete() -> Response {
    refusal(refused(ErrorCode::TextOnly))
}

async fn status() -> Json<AgentStatus> {
    Json(AgentStatus::serving(BASE_VERSION))
}

async fn text(State(agent): State<Arc<TextAgent>>, Json(request): Json<TextRequest>) -> Response {
    let number = {
        let mut tried = agent.tried.lock().unwrap();
        tried.push(Instant::now());
        tried.len() - 1
    };
    match (agent.answers)(&request, number) {
        Err(error) => refusal(error),
        Ok(message) => {
            agent.asked.lock().unwrap().push(request);
            let calls = message.tool_calls.is_some();
            let finish = if calls { "tool_calls" } else { "stop" };
            Json(TextResponse {
                choices: vec![TextChoice {
                    message,
                    finish_reason: Some(finish.to_owned()),
                }],
                usage: None,
            })
            .into_response()
        }
    }
}

/// How many answers a conversation has.
fn answers_in(request: &TextRequest) -> usize {
    let messages = request.messages.iter();
    messages.filter(|message| message.role == "assistant").count()
}

fn says(content: &str) -> TextMessage {
    TextMessage::new("assistant", content)
}

fn calls(name: &str, arguments: &Value) -> TextMessage {
    TextMessage {
        tool_calls: Some(vec![TextCall::new("theirs", name, arguments.to_string())]),
        ..says("Next.")
    }
}

/// Looks, mends the file and submits, in bash blocks.
fn in_bash(request: &TextRequest) -> TextMessage {
    says(match answers_in(request) {
        0 => "Go.\n```bash\ncat $F\n```",
        1 => "```bash\nsed -i 's/a - b/a + b/' $F; echo 1 passed\n```",
        _ => "```bash\necho SUBMIT\n```",
    })
}

/// One evaluation of one task.
fn evaluating(mut settings: Settings, engines: Endpoints) -> Settings {
    settings.mode = Mode::Evaluate;
    settings.engines = engines;
    settings
}

/// The only episode of a run that has ended.
async fn only(world: &World) -> (EpisodeMeta, EndedEpisode) {
    let folder: RunFolder = world.verified().await;
    let metas = world.metas().await;
    assert_eq!(metas.len(), 1, "{metas:?}");
    let meta = metas.into_iter().next().unwrap();
    let ended = folder.ended(&meta.key.dir(meta.attempt)).unwrap().unwrap();
    (meta, ended)
}

/// A message by what a model reads of it: calls by name and arguments, not by their ids.
fn read(message: &Value) -> Value {
    let calls = message["tool_calls"].as_array().cloned().unwrap_or_default();
    let calls: Vec<Value> = calls
        .iter()
        .map(|call| {
            let function = &call["function"];
            let arguments: Value = serde_json::from_str(function["arguments"].as_str().unwrap()).unwrap();
            json!([function["name"], arguments])
        })
        .collect();
    json!([message["role"], message["content"], calls])
}

/// The episode is marked, and its exported messages are those that the server got and gave.
fn is_a_teachers(agent: &TextAgent, meta: &EpisodeMeta, ended: &EndedEpisode) {
    assert!(meta.untrainable && meta.outcome == Outcome::Resolved, "{meta:?}");
    assert!(ended.record.turns.iter().all(|turn| turn.is_text_only()));
    let mut logprobs = ended.rows.iter().flat_map(|row| &row.logprobs);
    assert!(logprobs.all(|logprob| *logprob == 0.0));
    let found = message_rows(meta, &ended.record.turns);
    assert_eq!((found.rows.len(), found.left_out), (1, 0));
    let exported: Vec<Value> = found.rows[0]["messages"].as_array().unwrap().iter().map(read).collect();
    let asked = agent.asked.lock().unwrap();
    let last = asked.last().unwrap();
    let sent = last
        .messages
        .iter()
        .map(|message| serde_json::to_value(message).unwrap());
    let sent: Vec<Value> = sent.map(|message| read(&message)).collect();
    assert_eq!(exported[..sent.len().min(exported.len())], sent);
    assert!(
        exported.len() <= sent.len() + 1,
        "only the last answer was not sent back"
    );
    assert_eq!((last.max_tokens > 0, last.temperature), (true, 1.0));
}

#[tokio::test]
async fn the_bash_loop_is_answered_in_text() {
    let world = World::new(1).await;
    let (agent, engines) = TextAgent::start(|request, _| Ok(in_bash(request))).await;
    world.go(evaluating(world.settings(), engines), 1).await.unwrap();
    let (meta, ended) = only(&world).await;
    assert_eq!(meta.turns, 3);
    is_a_teachers(&agent, &meta, &ended);
    let asked = agent.asked.lock().unwrap();
    assert!(asked.iter().all(|request| request.tools.is_empty()));
    assert!(world.engine.asked.lock().unwrap().is_empty());
}

#[tokio::test]
async fn the_tools_loop_carries_out_calls_that_came_as_calls() {
    let (world, mut settings) = tools::world_of(&[tools::program()], r#"{"directoryTree": false}"#).await;
    let folder = tempfile::tempdir().unwrap();
    settings.model = model_with(TEMPLATE, folder.path());
    let (agent, engines) = TextAgent::start(|request, _| {
        Ok(match answers_in(request) {
            0 => {
                let code = "    total = a + b";
                let arguments = json!({"path": "solution.py", "start": 2, "end": 2, "new_code": code});
                calls("rewrite", &arguments)
            }
            _ => calls("eval", &json!({})),
        })
    })
    .await;
    world.go(evaluating(settings, engines), 1).await.unwrap();
    let (meta, ended) = only(&world).await;
    is_a_teachers(&agent, &meta, &ended);
    let asked = agent.asked.lock().unwrap();
    let tools: Value = serde_json::from_str(&asked[0].tools).unwrap();
    assert!(tools.to_string().contains("rewrite"), "{tools}");
    // The result refers to the call before it.
    let [.., called, result] = &asked[1].messages[..] else {
        panic!("{:?}", asked[1]);
    };
    let id = &called.tool_calls.as_ref().unwrap()[0].id;
    assert_eq!((result.role.as_str(), result.tool_call_id.as_ref()), ("tool", Some(id)));
}

#[tokio::test]
async fn a_command_line_agent_is_answered_in_text() {
    let world = World::new(1).await;
    let (agent, engines) = TextAgent::start(|request, _| {
        Ok(match answers_in(request) {
            0 => calls("bash", &json!({"command": "echo look"})),
            1 => calls("bash", &json!({"command": "sed -i 's/a - b/a + b/' a.py"})),
            _ => says("Done."),
        })
    })
    .await;
    let mut settings = evaluating(world.settings(), engines);
    settings.model = model_with(TEMPLATE, world.mount.path());
    settings.agent.kind = cli_agent::agent("linear");
    settings.agent.limits.turns = 100;
    settings.agent.limits.context_tokens = 100_000;
    world.go(settings, 1).await.unwrap();
    let (meta, ended) = only(&world).await;
    assert_eq!((meta.turns, ended.rows.len()), (3, 1));
    is_a_teachers(&agent, &meta, &ended);
}

#[tokio::test]
async fn faults_of_the_server_are_waited_for_and_never_a_reward() {
    let world = World::new(1).await;
    let faults = [
        ErrorCode::QueueFull,
        ErrorCode::EngineUnavailable,
        ErrorCode::EngineMisbehaved,
    ];
    let (agent, engines) = TextAgent::start(move |request, number| match faults.get(number) {
        Some(fault) => Err(refused(*fault)),
        None => Ok(in_bash(request)),
    })
    .await;
    world.go(evaluating(world.settings(), engines), 1).await.unwrap();
    let (meta, ended) = only(&world).await;
    is_a_teachers(&agent, &meta, &ended);
    assert!(meta.waited_millis > 0);
}

#[tokio::test]
async fn a_server_that_asks_for_a_pause_gets_no_request_before_its_end() {
    let asked = Duration::from_secs(2);
    let world = World::new(1).await;
    let (agent, engines) = TextAgent::start(move |request, number| match number {
        1 => Err(ErrorBody {
            retry_after_seconds: Some(asked.as_secs()),
            ..refused(ErrorCode::QueueFull)
        }),
        _ => Ok(in_bash(request)),
    })
    .await;
    world.go(evaluating(world.settings(), engines), 1).await.unwrap();
    let (meta, ended) = only(&world).await;
    is_a_teachers(&agent, &meta, &ended);
    let tried = agent.tried.lock().unwrap();
    // Three turns, and one request again.
    assert_eq!(tried.len(), 4);
    let waited = tried[2] - tried[1];
    assert!(waited >= asked, "{waited:?}");
    assert!(u128::from(meta.waited_millis) >= asked.as_millis(), "{meta:?}");
}

#[tokio::test]
async fn a_setting_that_the_server_refuses_ends_the_run_and_is_named_also_in_a_later_turn() {
    for turn in [0, 2] {
        let world = World::new(1).await;
        let (_, engines) = TextAgent::start(move |request, _| match answers_in(request) == turn {
            true => Err(ErrorBody {
                setting: Some("top_p".to_owned()),
                ..refused(ErrorCode::SettingRefused)
            }),
            false => Ok(in_bash(request)),
        })
        .await;
        let fault = world.go(evaluating(world.settings(), engines), 1).await.unwrap_err();
        let words = fault.to_string();
        for part in ["said SettingRefused", "spec.rollout.sampling.topP"] {
            assert!(words.contains(part), "{turn}: {words}");
        }
        assert!(world.metas().await.is_empty(), "it has no verdict");
    }
}

#[tokio::test]
async fn a_conversation_that_the_server_takes_no_further_ends_with_a_verdict_and_not_void() {
    for (code, end) in [
        (ErrorCode::InvalidRequest, EpisodeEnd::AnswerCut),
        (ErrorCode::ContextTooLong, EpisodeEnd::ContextFull),
        (ErrorCode::BodyTooLarge, EpisodeEnd::ContextFull),
    ] {
        let world = World::new(1).await;
        // The third turn; the second has mended the file.
        let (_, engines) = TextAgent::start(move |request, _| match answers_in(request) {
            2 => Err(refused(code)),
            _ => Ok(in_bash(request)),
        })
        .await;
        world.go(evaluating(world.settings(), engines), 1).await.unwrap();
        let (meta, ended) = only(&world).await;
        assert_eq!((meta.outcome, meta.turns), (Outcome::Resolved, 2), "{code:?}");
        assert_eq!(ended.record.end, end, "{code:?}");
    }
}

#[tokio::test]
async fn a_first_prompt_that_the_server_refuses_after_it_answered_others_makes_its_attempt_void() {
    let world = World::new(2).await;
    // The first prompt of the task that comes later, once.
    let is_refused = AtomicBool::new(false);
    let (agent, engines) = TextAgent::start(move |request, number| {
        let is_first = answers_in(request) == 0;
        match is_first && number > 0 && !is_refused.swap(true, Ordering::Relaxed) {
            true => Err(refused(ErrorCode::InvalidRequest)),
            false => Ok(in_bash(request)),
        }
    })
    .await;
    let mut settings = evaluating(world.settings(), engines);
    settings.concurrency = Some(1);
    world.go(settings, 1).await.unwrap();
    let outcomes: Vec<Outcome> = world.metas().await.into_iter().map(|meta| meta.outcome).collect();
    let voids = outcomes
        .iter()
        .filter(|outcome| **outcome == Outcome::void(VoidReason::EngineUnavailable));
    assert_eq!(voids.count(), 1, "{outcomes:?}");
    assert!(outcomes.len() > 1 && !agent.asked.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_run_whose_settings_the_server_refuses_ends_with_its_words() {
    let world = World::new(1).await;
    let (_, engines) = TextAgent::start(|_, _| Err(refused(ErrorCode::InvalidRequest))).await;
    let fault = world.go(evaluating(world.settings(), engines), 1).await.unwrap_err();
    let words = fault.to_string();
    for part in ["said InvalidRequest", "rollout.sampling"] {
        assert!(words.contains(part), "{words}");
    }
}

#[tokio::test]
async fn a_run_that_trains_ends_before_it_has_an_answer_in_text() {
    let world = World::new(1).await;
    let (agent, engines) = TextAgent::start(|request, _| Ok(in_bash(request))).await;
    let mut settings = world.settings();
    settings.engines = engines;
    settings.evaluate.clear();
    settings.frozen_sampler = true;
    settings.max_staleness = 1;
    let fault = world.go(settings, 1).await.unwrap_err();
    assert!(fault.to_string().contains("said TextOnly"), "{fault}");
    assert!(agent.asked.lock().unwrap().is_empty());
}
