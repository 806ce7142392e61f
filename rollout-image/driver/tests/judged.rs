//! Turns that a judge scores, in whole runs: its prompts, its votes, and the rewards.

use crate::world::{self, World, serve};
use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Json, Response};
use axum::routing::post;
use grpo_crds::grpo_run::ProcessReward;
use grpo_driver::config::Settings;
use grpo_driver::judge::JudgeSettings;
use grpo_driver::replicas::Endpoints;
use grpo_driver::retry::Budget;
use grpo_engine_protocol::{ChatAnswer, ChatChoice, ChatRequest, ChatResponse, ChatRole};
use grpo_records::{Batch, JudgedTurn, Outcome, ProcessRule, TurnScore, VoidReason, Vote, VoteEnd, paths};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

type Answers = fn(&ChatRequest, usize) -> Result<String, StatusCode>;

struct FakeJudge {
    asked: Mutex<Vec<ChatRequest>>,
    answers: Mutex<Answers>,
}

impl FakeJudge {
    async fn start(answers: Answers) -> (Arc<Self>, SocketAddr) {
        let judge = Arc::new(Self {
            asked: Mutex::default(),
            answers: Mutex::new(answers),
        });
        let router = Router::new().route("/v1/chat/completions", post(answer));
        (judge.clone(), serve(router.with_state(judge)).await)
    }
}

async fn answer(State(judge): State<Arc<FakeJudge>>, Json(request): Json<ChatRequest>) -> Response {
    let number = {
        let mut asked = judge.asked.lock().unwrap();
        asked.push(request.clone());
        asked.len()
    };
    match judge.answers.lock().unwrap()(&request, number) {
        Err(status) => status.into_response(),
        Ok(text) => {
            let finish = match text.ends_with(CUT) {
                true => "length",
                false => "stop",
            };
            let answer = ChatResponse {
                model: "judge".into(),
                choices: vec![ChatChoice {
                    index: 0,
                    message: ChatAnswer::text(text),
                    finish_reason: Some(finish.into()),
                }],
                usage: None,
            };
            Json(answer).into_response()
        }
    }
}

/// The end of an answer that was cut off.
const CUT: &str = "Wait,";

/// Likes turns that fix the file, dislikes turns that look; every third vote is unreadable.
fn by_command(request: &ChatRequest, _: usize) -> Result<String, StatusCode> {
    let prompt = &request.messages[1].content;
    let step = prompt.split("Agent's full response:").nth(1).unwrap();
    Ok(match request.seed.unwrap() % 3 {
        0 => "I cannot say.".into(),
        _ if step.contains("sed -i") => "Not \\boxed{-1}, it mends the file: \\boxed{1}".into(),
        _ => "\\boxed{-1}".into(),
    })
}

/// Whether a question is about a turn. Other ones have no text of the policy.
fn is_of_a_turn(request: &ChatRequest) -> bool {
    request.messages[1].content.contains("Agent's full response:")
}

const VOTES: u32 = 12;

/// One iteration of one task with four samples that look, change the file and submit.
fn settings(world: &World, judge: SocketAddr, step_wise: bool) -> Settings {
    let spec: ProcessReward = serde_json::from_value(serde_json::json!({
        "poolRef": {"name": "judge"}, "votes": VOTES, "coefficient": 0.5, "concurrency": 3
    }))
    .unwrap();
    let mut settings = world.settings();
    settings.iterations = 1;
    settings.prompts = 1;
    settings.agent.rows_per_turn = step_wise;
    settings.judge = Some(JudgeSettings {
        rule: ProcessRule {
            coefficient: 0.5,
            min_votes: spec.min_votes,
            step_wise,
        },
        endpoints: Endpoints::Fixed(vec![judge]),
        budget: Budget {
            request: Duration::from_secs(10),
            total: Duration::from_secs(20),
        },
        spec,
    });
    settings
}

fn score(turn: u32, score: f32) -> TurnScore {
    TurnScore {
        turn,
        score: Some(score),
    }
}

#[tokio::test]
async fn turns_are_judged_and_rewards_are_the_verdicts_and_the_mean_score() {
    let world = World::new(1).await;
    let (judge, at) = FakeJudge::start(by_command).await;
    world.go(settings(&world, at, false), 1).await.unwrap();
    let folder = world.verified().await;
    assert_eq!(folder.row_rule("uid-1").process.map(|rule| rule.coefficient), Some(0.5));
    let mut judged = 0;
    for meta in world.metas().await {
        let Some(process) = &meta.process else {
            assert!(meta.key.group == 0 && format!("{:?}", meta.key.scope).contains("Evaluation"));
            continue;
        };
        let mends = meta.outcome == Outcome::Resolved;
        let (second, reward) = if mends { (1.0, 1.0) } else { (-1.0, -0.5) };
        // The turn that submits is not judged.
        assert_eq!(process.turns, [score(0, -1.0), score(1, second)]);
        assert_eq!(
            (process.outcome, meta.reward),
            (f32::from(u8::from(mends)), Some(reward))
        );
        let file = paths::judged(&meta.key.dir(meta.attempt), 1);
        let votes: JudgedTurn = world.store().read(&file).await.unwrap();
        assert_eq!(votes.votes.len(), VOTES as usize);
        assert!(
            votes
                .votes
                .iter()
                .any(|vote| vote.vote.is_none() && vote.text == "I cannot say.")
        );
        judged += 1;
    }
    assert_eq!(judged, 4);
    let batch: Batch = world.store().read(&paths::batch(1)).await.unwrap();
    assert!(
        batch.groups[0]
            .rewards
            .iter()
            .all(|reward| [1.0, -0.5].contains(reward))
    );
    let asked = judge.asked.lock().unwrap();
    assert_eq!(asked.len(), 4 * 2 * VOTES as usize);
    let seeds: BTreeSet<_> = asked.iter().map(|request| request.seed).collect();
    assert_eq!(seeds.len(), asked.len(), "no two votes share their dice");
    assert!(asked.iter().all(|request| request.messages[0].role == ChatRole::System));
    let prompt = &asked[0].messages[1].content;
    assert!(prompt.starts_with("## Issue Description\nFix task-0.\n"), "{prompt}");
}

#[tokio::test]
async fn each_turn_has_its_own_reward_where_turns_are_compared_step_by_step() {
    let world = World::new(1).await;
    let (_, at) = FakeJudge::start(|request, number| {
        // The first turns of the episodes get no readable vote.
        match request.messages[1].content.contains("(step 1)") {
            true => Ok("?".into()),
            false => by_command(request, number),
        }
    })
    .await;
    world.go(settings(&world, at, true), 1).await.unwrap();
    world.verified().await;
    let metas = world.metas().await;
    let batch: Batch = world.store().read(&paths::batch(1)).await.unwrap();
    // Turns 1 and 2: turn 0 has no score, so nothing to compare.
    assert_eq!(batch.rows.len(), 4 * 2);
    for row in &batch.rows {
        let meta = metas
            .iter()
            .find(|meta| meta.process.is_some() && meta.key.name() == row.episode);
        let process = meta.unwrap().process.as_ref().unwrap();
        let own = match row.turn {
            Some(1) if process.outcome == 1.0 => 1.5,
            Some(1) => -0.5,
            // The turn that submits has the verdict's reward.
            Some(2) => process.outcome,
            other => panic!("turn {other:?}"),
        };
        assert_eq!(row.reward, own);
    }
}

#[tokio::test]
async fn a_judge_that_is_away_for_a_while_costs_time_and_no_vote() {
    let world = World::new(1).await;
    let (_, at) = FakeJudge::start(|request, number| match number {
        0..20 => Err(StatusCode::SERVICE_UNAVAILABLE),
        _ => by_command(request, number),
    })
    .await;
    world.go(settings(&world, at, false), 1).await.unwrap();
    world.verified().await;
    for meta in world.metas().await {
        let scores = meta.process.iter().flat_map(|process| &process.turns);
        assert!(scores.clone().all(|turn| turn.score.is_some()), "{:?}", meta.process);
    }
}

/// The votes on every judged turn.
async fn votes(world: &World) -> Vec<Vote> {
    let mut found = Vec::new();
    for meta in world.metas().await {
        for turn in meta.process.iter().flat_map(|process| &process.turns) {
            let file = paths::judged(&meta.key.dir(meta.attempt), turn.turn);
            found.extend(world.store().read::<JudgedTurn>(&file).await.unwrap().votes);
        }
    }
    found
}

/// Neither lost nor refused.
async fn every_vote_counts(world: &World) {
    let votes = votes(world).await;
    assert_eq!(votes.len(), 4 * 2 * VOTES as usize);
    let missing = votes.iter().find(|vote| vote.lost.is_some() || vote.refused.is_some());
    assert_eq!(missing, None);
}

#[tokio::test]
async fn an_outage_begins_with_its_first_failure_however_long_the_judge_had_no_request_before() {
    let world = World::new(1).await;
    // The evaluation before the first iteration, and the first turn, take longer than an outage may.
    *world.engine.policy.lock().unwrap() = Box::new(|prompt, seed| match prompt.matches("assistant\n").count() {
        1 => "Look.\n```bash\nsleep 3; cat $F\n```".to_owned(),
        _ => world::half_right(prompt, seed),
    });
    let (_, at) = FakeJudge::start(|request, number| match number {
        // As many as there are requests at one time.
        0..=3 => Err(StatusCode::SERVICE_UNAVAILABLE),
        _ => by_command(request, number),
    })
    .await;
    let mut settings = settings(&world, at, false);
    settings.judge.as_mut().unwrap().budget.total = Duration::from_secs(3);
    world.go(settings, 1).await.unwrap();
    world.verified().await;
    every_vote_counts(&world).await;
}

#[tokio::test]
async fn an_answer_that_is_no_completion_is_an_outage_and_the_question_is_asked_again() {
    let world = World::new(1).await;
    // A server that starts, or a page where people log in: status 200, and no completion.
    let (_, at) = FakeJudge::start(|request, number| match number {
        // As many as there are requests at one time.
        0..4 => Err(StatusCode::OK),
        _ => by_command(request, number),
    })
    .await;
    world.go(settings(&world, at, false), 1).await.unwrap();
    world.verified().await;
    every_vote_counts(&world).await;
}

#[tokio::test]
async fn an_episode_of_which_the_judge_lost_every_score_is_void_and_never_a_reward() {
    lost_with(|_, _| Err(StatusCode::SERVICE_UNAVAILABLE), "503 Service Unavailable").await;
}

#[tokio::test]
async fn an_episode_whose_judge_never_answers_with_a_completion_is_void() {
    lost_with(
        |_, _| Err(StatusCode::OK),
        "200 OK, but the answer is no chat completion",
    )
    .await;
}

/// A whole run without any vote. `words`: of the messages.
async fn lost_with(answers: Answers, words: &str) {
    let world = World::new(1).await;
    let (_, at) = FakeJudge::start(answers).await;
    let mut settings = settings(&world, at, false);
    settings.patience.void_retries = 1;
    settings.judge.as_mut().unwrap().budget.total = Duration::from_secs(1);
    let ended = world.go(settings, 1).await.unwrap_err().to_string();
    assert!(
        ended.contains("4 of 4 are void; for example JudgeUnavailable"),
        "{ended}"
    );
    let judged = world
        .metas()
        .await
        .into_iter()
        .filter(|meta| !format!("{:?}", meta.key.scope).contains("Evaluation"));
    let judged: Vec<_> = judged.collect();
    assert_eq!(judged.len(), 4 * 2);
    for meta in &judged {
        assert_eq!(meta.outcome, Outcome::void(VoidReason::JudgeUnavailable));
        assert_eq!(meta.reward, None);
        let message = meta.message.as_deref().unwrap();
        assert!(message.contains(words), "{message}");
    }
}

#[tokio::test]
async fn a_question_that_the_judge_refuses_is_asked_once_and_makes_no_episode_void() {
    let world = World::new(1).await;
    let (judge, at) = FakeJudge::start(|request, _| match is_of_a_turn(request) {
        true => Err(StatusCode::BAD_REQUEST),
        false => Ok("Yes.".into()),
    })
    .await;
    world.go(settings(&world, at, false), 1).await.unwrap();
    world.verified().await;
    for meta in world.metas().await {
        let scores = meta.process.iter().flat_map(|process| &process.turns);
        assert!(meta.outcome.is_verdict() && scores.clone().all(|turn| turn.score.is_none()));
        assert_eq!(
            meta.reward,
            Some(f32::from(u8::from(meta.outcome == Outcome::Resolved)))
        );
    }
    let asked = judge.asked.lock().unwrap();
    let of_turns = asked.iter().filter(|request| is_of_a_turn(request)).count();
    assert_eq!(of_turns, 4 * 2 * VOTES as usize);
}

#[tokio::test]
async fn a_judge_that_refuses_every_question_ends_the_run() {
    let world = World::new(1).await;
    let (judge, at) = FakeJudge::start(|_, _| Err(StatusCode::BAD_REQUEST)).await;
    let ended = world.go(settings(&world, at, false), 1).await.unwrap_err().to_string();
    for part in [
        "EngineRefuses",
        "refuses every question",
        "400 Bad Request",
        "chat template",
    ] {
        assert!(ended.contains(part), "{ended}");
    }
    let asked = judge.asked.lock().unwrap();
    let neutral = asked.iter().find(|request| !is_of_a_turn(request)).unwrap();
    assert_eq!(neutral.messages.len(), 2, "with the system message of every question");
}

#[tokio::test]
async fn a_box_in_an_answer_that_was_cut_off_or_in_reasoning_is_no_vote() {
    let world = World::new(1).await;
    let (_, at) = FakeJudge::start(|request, _| {
        Ok(match request.seed.unwrap() % 2 {
            0 => format!("The agent wrote \\boxed{{1}}. {CUT}"),
            _ => "<think>\nThe agent wrote \\boxed{1}.\n</think>\nIt fails.".into(),
        })
    })
    .await;
    world.go(settings(&world, at, false), 1).await.unwrap();
    world.verified().await;
    let votes = votes(&world).await;
    assert_eq!(votes.len(), 4 * 2 * VOTES as usize);
    for vote in &votes {
        assert_eq!((vote.vote, vote.end()), (None, VoteEnd::Unreadable), "{vote:?}");
        assert_eq!(vote.cut, vote.text.ends_with(CUT), "{vote:?}");
    }
    for meta in world.metas().await {
        let verdict = f32::from(u8::from(meta.outcome == Outcome::Resolved));
        assert_eq!(meta.reward, Some(verdict), "without scores the verdict counts");
    }
}

#[tokio::test]
async fn a_driver_that_comes_back_asks_for_no_vote_again() {
    let world = World::new(1).await;
    let (judge, at) = FakeJudge::start(by_command).await;
    world.go(settings(&world, at, false), 1).await.unwrap();
    let before: Vec<_> = world.metas().await.iter().map(|meta| meta.process.clone()).collect();
    // Simulates a crash between the votes and the verdicts: also removes the batch and the later entries.
    for meta in world.metas().await.iter().filter(|meta| meta.process.is_some()) {
        std::fs::remove_file(world.dir().join(paths::meta(&meta.key.dir(meta.attempt)))).unwrap();
    }
    std::fs::remove_file(world.dir().join(paths::batch(1))).unwrap();
    let journal = world.dir().join(paths::JOURNAL);
    let mut entries: Vec<_> = std::fs::read_dir(journal)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    entries.sort();
    let started = entries.iter().position(|entry| {
        let text = std::fs::read_to_string(entry).unwrap();
        text.contains("IterationStarted") || text.contains("iterationStarted")
    });
    for entry in &entries[started.unwrap() + 1..] {
        std::fs::remove_file(entry).unwrap();
    }
    let asked = judge.asked.lock().unwrap().len();
    world.go(settings(&world, at, false), 2).await.unwrap();
    world.verified().await;
    assert_eq!(judge.asked.lock().unwrap().len(), asked);
    let after: Vec<_> = world.metas().await.iter().map(|meta| meta.process.clone()).collect();
    assert_eq!(after, before);
}
