//! Runs with a command-line agent: a real process in a simulated sandbox, with real sockets to the recording endpoint.

mod dataset;
mod faults;
mod outages;

use crate::world::{STOP, Silence, World, rows_of_steps};
use grpo_crds::agent::{Agent, CliAgent};
use grpo_crds::grpo_run::Mode;
use grpo_driver::agent::AgentKind;
use grpo_driver::config::Settings;
use grpo_records::folder::{RunFolder, counting};
use grpo_records::{
    Branch, EndedEpisode, EpisodeEnd, EpisodeMeta, EpisodeScope, Outcome, TurnAction, TurnRecord, VoidReason, paths,
};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// An answer with one call.
fn call(command: &str) -> String {
    let arguments = serde_json::json!({"n": 1.0, "command": command});
    format!("Next.\n<tool_call>\n{{\"name\": \"bash\", \"arguments\": {arguments}}}\n</tool_call>")
}

/// Looks `looks` times, fixes the bug, and says that it is done.
fn mends_after(looks: usize) -> impl Fn(&str, u64) -> String + Send + Sync + 'static {
    move |prompt, _| match prompt.matches("<|im_start|>assistant\n").count() - 1 {
        done if done < looks => call(&format!("echo look {done}")),
        done if done == looks => call("sed -i 's/a - b/a + b/' a.py"),
        _ => "Done.".to_owned(),
    }
}

pub fn agent(mode: &str) -> AgentKind {
    agent_that(mode, "Train")
}

fn agent_that(mode: &str, side_conversations: &str) -> AgentKind {
    let client = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cli_agent/client.py");
    let cli: CliAgent = serde_json::from_value(serde_json::json!({
        "image": "img",
        "command": ["python3", client, mode, "{{ prompt }}"],
        "sideConversations": side_conversations,
    }))
    .unwrap();
    let spec = Agent {
        cli: Some(cli),
        ..Agent::default()
    };
    AgentKind::of(&spec).unwrap()
}

/// A run of one episode in one iteration.
async fn world(mode: &str, looks: usize) -> (World, Settings) {
    let world = World::new(1).await;
    *world.engine.policy.lock().unwrap() = Box::new(mends_after(looks));
    let mut settings = world.settings();
    settings.agent.kind = agent(mode);
    settings.agent.limits.turns = 100;
    settings.agent.limits.context_tokens = 100_000;
    settings.iterations = 1;
    settings.prompts = 1;
    settings.samples = 2;
    settings.evaluate.clear();
    (world, settings)
}

pub fn episodes(folder: &RunFolder) -> Vec<(EpisodeMeta, EndedEpisode)> {
    let all = counting(folder.episodes(&EpisodeScope::Iteration { iteration: 1 }).unwrap());
    let all = all.into_iter().map(|episode| {
        let ended = folder.ended(&episode.path).unwrap().unwrap();
        (episode.meta, ended)
    });
    all.collect()
}

/// Checks of every history: each sampled token in one mask, and prompts equal to the engine's.
pub fn rows_are_what_was_sampled(world: &World, episodes: &[(EpisodeMeta, EndedEpisode)]) {
    let asked = world.engine.asked.lock().unwrap();
    let mut prompts: Vec<&[u32]> = Vec::new();
    for (meta, ended) in episodes {
        let turns = ended.turns().unwrap();
        let sampled: usize = turns.iter().map(|turn| turn.sampled.len()).sum();
        let masked: usize = ended.rows.iter().map(|row| row.sampled()).sum();
        assert_eq!((sampled, masked), (meta.sampled_tokens, meta.sampled_tokens));
        prompts.extend(
            turns
                .iter()
                .map(|turn| &ended.rows[turn.row as usize].tokens[..turn.prompt_length]),
        );
    }
    let mut given: Vec<&[u32]> = asked.iter().map(|(prompt, ..)| &prompt[..]).collect();
    prompts.sort();
    given.sort();
    assert!(
        prompts == given,
        "{} prompts recorded, {} sampled",
        prompts.len(),
        given.len()
    );
}

async fn ran(mode: &str, looks: usize) -> (World, Vec<(EpisodeMeta, EndedEpisode)>) {
    let (world, settings) = world(mode, looks).await;
    world.go(settings, 1).await.unwrap();
    let folder = world.verified().await;
    let episodes = episodes(&folder);
    assert_eq!(episodes.len(), 2);
    rows_are_what_was_sampled(&world, &episodes);
    world.nothing_ran_twice();
    let rows: usize = episodes.iter().map(|(_, ended)| ended.rows.len()).sum();
    assert_eq!(rows_of_steps(&folder), [rows], "all rows are trained on");
    (world, episodes)
}

pub fn branches(ended: &EndedEpisode) -> Vec<Branch> {
    let turns = ended.record.turns.iter();
    turns
        .filter_map(|turn: &TurnRecord| turn.request.as_ref()?.branch)
        .collect()
}

#[tokio::test]
async fn thirty_turns_are_one_row_and_the_patch_is_graded() {
    let (_, episodes) = ran("linear", 28).await;
    for (meta, ended) in &episodes {
        assert_eq!((meta.turns, ended.rows.len()), (30, 1));
        assert_eq!((&meta.outcome, meta.end), (&Outcome::Resolved, EpisodeEnd::Submitted));
        assert_eq!(branches(ended), [Branch::First]);
        let turns = ended.record.turns.iter();
        let of_requests: usize = turns.map(|turn| turn.prompt_length + turn.sampled_length).sum();
        let merged = ended.rows[0].tokens.len();
        assert!(
            of_requests >= 10 * merged,
            "{of_requests} tokens in a row for each request, {merged} in one"
        );
        let process = ended.record.process.as_ref().unwrap();
        assert_eq!((process.exit_code, process.replays), (Some(0), 0), "{process:?}");
    }
}

#[tokio::test]
async fn a_stream_carries_the_same_answers() {
    let (_, episodes) = ran("stream", 3).await;
    for (meta, ended) in &episodes {
        assert_eq!(
            (&meta.outcome, meta.turns, ended.rows.len()),
            (&Outcome::Resolved, 5, 1)
        );
    }
}

#[tokio::test]
async fn a_compaction_opens_a_row_and_its_question_continues_one() {
    let (_, episodes) = ran("compact", 5).await;
    for (_, ended) in &episodes {
        assert_eq!(branches(ended), [Branch::First, Branch::ChangedHistory]);
        assert_eq!(ended.rows.len(), 2);
    }
}

#[tokio::test]
async fn a_side_conversation_is_a_row_of_its_own() {
    let (_, episodes) = ran("sub-agent", 3).await;
    for (_, ended) in &episodes {
        assert_eq!(branches(ended), [Branch::First, Branch::Conversation]);
    }
}

#[tokio::test]
async fn an_answer_that_the_agents_own_limit_cuts_ends_nothing_and_its_row_can_continue() {
    let (_, episodes) = ran("title", 3).await;
    for (meta, ended) in &episodes {
        assert_eq!(
            (&meta.outcome, meta.end, meta.turns),
            (&Outcome::Resolved, EpisodeEnd::Submitted, 7)
        );
        assert_eq!(branches(ended), [Branch::First, Branch::Conversation]);
        for title in &ended.record.turns[..2] {
            assert_eq!((title.finish.as_str(), title.sampled_length), ("length", 1));
            assert_eq!(title.action, TurnAction::answer());
        }
        // The template closes the turn that the limit cut.
        let (row, cut) = (&ended.rows[0], ended.record.turns[0].prompt_length);
        assert_eq!(row.turns, [0, 1]);
        assert_eq!((row.mask[cut], row.tokens[cut + 1], row.mask[cut + 1]), (1, STOP, 0));
    }
}

#[tokio::test]
async fn a_call_that_the_agents_own_limit_cuts_ends_the_episode_before_the_agent_sees_it() {
    let (world, settings) = world("limited", 3).await;
    *world.engine.policy.lock().unwrap() =
        Box::new(|prompt, _| match prompt.matches("<|im_start|>assistant\n").count() {
            1 => call("sed -i 's/a - b/a + b/' a.py"),
            _ => call(&"rm a.py; ".repeat(20)),
        });
    world.go(settings, 1).await.unwrap();
    let folder = world.verified().await;
    for (meta, ended) in episodes(&folder) {
        assert_eq!(
            (meta.outcome, meta.end, meta.turns),
            (Outcome::Resolved, EpisodeEnd::AnswerCut, 2)
        );
        assert_eq!(ended.record.turns[1].action, TurnAction::truncated());
    }
}

#[tokio::test]
async fn a_side_conversation_is_recorded_and_not_trained_on_where_the_run_skips_them() {
    for (side_conversations, trained) in [("Train", 4), ("Skip", 2)] {
        let (world, mut settings) = world("aside", 3).await;
        settings.agent.kind = agent_that("aside", side_conversations);
        world.go(settings, 1).await.unwrap();
        let folder = world.verified().await;
        let episodes = episodes(&folder);
        rows_are_what_was_sampled(&world, &episodes);
        for (_, ended) in &episodes {
            assert_eq!(branches(ended), [Branch::First, Branch::Conversation]);
        }
        assert_eq!(rows_of_steps(&folder), [trained], "{side_conversations}");
    }
}

#[tokio::test]
async fn a_changed_answer_is_not_trained_on_where_it_was_changed() {
    let (_, episodes) = ran("changed", 4).await;
    for (_, ended) in &episodes {
        assert_eq!(branches(ended), [Branch::First, Branch::ChangedAnswer]);
        // Both rows begin with the same ids; only the first row trains on the answer in them.
        let first = &ended.rows[0];
        let shared = first
            .tokens
            .iter()
            .zip(&ended.rows[1].tokens)
            .take_while(|(a, b)| a == b)
            .count();
        assert!(first.mask[..shared].contains(&1));
        assert!(!ended.rows[1].mask[..shared].contains(&1));
    }
}

#[tokio::test]
async fn a_retry_gets_the_recorded_answer_and_nothing_is_sampled_twice() {
    for mode in ["retry", "hang-up"] {
        let (_, episodes) = ran(mode, 3).await;
        for (meta, ended) in &episodes {
            assert_eq!((meta.turns, ended.rows.len()), (5, 1), "{mode}");
            let process = ended.record.process.as_ref().unwrap();
            assert_eq!(process.exit_code, Some(0), "{}", process.log);
            // A client that hangs up may be gone before its request arrives.
            assert!(process.replays == 5 || mode == "hang-up", "{}", process.replays);
        }
    }
}

#[tokio::test]
async fn an_agent_that_its_model_never_answered_is_no_reward_and_the_run_says_why() {
    let (world, settings) = world("silent", 3).await;
    let fault = world.go(settings, 1).await.unwrap_err();
    let why = "the agent's model had answered nothing: it ended with exit code 3";
    assert!(fault.to_string().contains(why), "{fault}");
    let metas = world.metas().await;
    assert!(metas.len() >= 2);
    for meta in &metas {
        assert_eq!((&meta.outcome, meta.turns), (&Outcome::void(VoidReason::TaskBroken), 0));
    }
    let folder = world.verified().await;
    let ended = folder.ended(&metas[0].key.dir(metas[0].attempt)).unwrap().unwrap();
    assert_eq!(ended.record.process.unwrap().exit_code, Some(3));
}

/// Otherwise a policy could make its failure void by never ending its first answer.
#[tokio::test]
async fn a_first_answer_that_outlives_the_episodes_time_is_the_policys() {
    let (world, mut settings) = world("linear", 3).await;
    // Its proofs that it works.
    *world.engine.policy.lock().unwrap() = Box::new(|_, _| "Yes.".to_owned());
    *world.engine.silence.lock().unwrap() = Some(Silence::SamplesLong);
    settings.mode = Mode::Evaluate;
    settings.evaluate = world.settings().evaluate;
    settings.agent.limits.episode_timeout = Duration::from_secs(3);
    settings.patience.engines.request = Duration::from_millis(200);
    settings.patience.engines.total = Duration::from_millis(500);
    world.go(settings, 1).await.unwrap();
    for meta in world.metas().await {
        assert_eq!(
            (meta.outcome, meta.end, meta.turns),
            (Outcome::Unresolved, EpisodeEnd::EpisodeTimeout, 0)
        );
    }
    world.verified().await;
}

#[tokio::test]
async fn limits_end_an_episode_at_the_endpoint_and_its_patch_counts() {
    for (turns, context, end) in [(3, 100_000, EpisodeEnd::TurnLimit), (100, 700, EpisodeEnd::ContextFull)] {
        let (world, mut settings) = world("linear", 20).await;
        *world.engine.policy.lock().unwrap() = Box::new(|_, _| call("sed -i 's/a - b/a + b/' a.py"));
        settings.agent.limits.turns = turns;
        settings.agent.limits.context_tokens = context;
        world.go(settings, 1).await.unwrap();
        let folder = world.verified().await;
        for (meta, _) in episodes(&folder) {
            assert_eq!((meta.outcome, meta.end), (Outcome::Resolved, end));
            assert!(meta.truncated && meta.turns > 1);
        }
    }
}

#[tokio::test]
async fn a_call_that_cannot_be_read_ends_the_episode_before_the_agent_sees_it() {
    let (world, settings) = world("linear", 3).await;
    *world.engine.policy.lock().unwrap() =
        Box::new(|prompt, _| match prompt.matches("<|im_start|>assistant\n").count() {
            1 => call("sed -i 's/a - b/a + b/' a.py"),
            _ => "<tool_call>\n{\"name\": \"bash\", \"arguments\": {\"command\": \"rm a.py".to_owned(),
        });
    world.go(settings, 1).await.unwrap();
    let folder = world.verified().await;
    for (meta, ended) in episodes(&folder) {
        assert_eq!(
            (meta.outcome, meta.end, meta.turns),
            (Outcome::Resolved, EpisodeEnd::MalformedCall, 2)
        );
        assert!(ended.record.turns[1].action.malformed().is_some());
    }
}

#[tokio::test]
async fn an_episode_that_outlives_its_time_ends_with_the_patch_it_has() {
    let (world, mut settings) = world("linear", 3).await;
    *world.engine.policy.lock().unwrap() = Box::new(|_, _| call("sed -i 's/a - b/a + b/' a.py; sleep 60"));
    settings.agent.limits.episode_timeout = Duration::from_secs(12);
    world.go(settings, 1).await.unwrap();
    let folder = world.verified().await;
    for (meta, ended) in episodes(&folder) {
        assert_eq!(
            (meta.outcome, meta.end),
            (Outcome::Resolved, EpisodeEnd::EpisodeTimeout)
        );
        assert_eq!(ended.record.process.unwrap().killed.as_deref(), Some("Request"));
    }
}

/// Ends a driver in the fourth answer of an agent. `cuts`: its relays end first, so nothing that the driver says while
/// it ends reaches the agent.
async fn ended_in_an_answer(mode: &str, cuts: bool) -> (World, Settings) {
    let (world, mut settings) = world(mode, 6).await;
    settings.concurrency = Some(1);
    let (reached, mut asked) = tokio::sync::watch::channel(0);
    let mends = mends_after(6);
    let answers = AtomicU32::new(0);
    *world.engine.policy.lock().unwrap() = Box::new(move |prompt, seed| {
        reached.send_replace(answers.fetch_add(1, Ordering::Relaxed));
        mends(prompt, seed)
    });
    let run = world.start(settings.clone(), 1).await.unwrap();
    tokio::select! {
        ended = run.go() => panic!("the run ended before its driver could be killed: {ended:?}"),
        () = async {
            asked.wait_for(|asked| *asked >= 3).await.unwrap();
            if cuts {
                world.gateway.relays.cut();
            }
        } => {}
    }
    drop(run);
    (world, settings)
}

/// The agent's process survives; the next driver answers its requests from where the first one stopped.
#[tokio::test]
async fn a_driver_that_ends_in_an_answer_is_followed_by_one_that_continues_the_episode() {
    for cuts in [true, false] {
        let (world, settings) = ended_in_an_answer("linear", cuts).await;
        world.go(settings, 2).await.unwrap();
        let folder = world.verified().await;
        for (meta, ended) in episodes(&folder) {
            assert_eq!(
                (meta.outcome, meta.turns, meta.attempt),
                (Outcome::Resolved, 8, 1),
                "cuts: {cuts}"
            );
            assert_eq!(branches(&ended), [Branch::First]);
        }
        world.nothing_ran_twice();
    }
}

#[tokio::test]
async fn an_agent_that_ends_while_no_driver_answers_it_is_followed_by_another_attempt() {
    let (world, settings) = ended_in_an_answer("impatient", true).await;
    let agent_ended = || {
        let state = world.gateway.state.lock().unwrap();
        let mut agents = state.results.iter().filter(|((_, id), _)| id == "agent");
        agents.any(|(_, result)| result.initialized())
    };
    while !agent_ended() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    world.go(settings, 2).await.unwrap();
    let folder = world.verified().await;
    let mut ended: Vec<_> = episodes(&folder)
        .into_iter()
        .map(|(meta, _)| (meta.attempt, meta.outcome, meta.turns))
        .collect();
    ended.sort_by_key(|(attempt, ..)| *attempt);
    assert_eq!(ended, [(1, Outcome::Resolved, 8), (2, Outcome::Resolved, 8)]);
    assert!(world.state().await.voids.is_empty());
}

#[tokio::test]
async fn an_end_that_a_driver_saw_counts_though_the_agent_asks_the_next_driver_nothing() {
    let (world, mut settings) = world("linear", 1).await;
    settings.concurrency = Some(1);
    // Another driver's patch stops the first one between the end and its own patch.
    let scope = paths::scope(&EpisodeScope::Iteration { iteration: 1 });
    let (root, blocked) = (world.dir(), Arc::new(Mutex::new(None)));
    let (mends, blocks) = (mends_after(1), blocked.clone());
    *world.engine.policy.lock().unwrap() = Box::new(move |prompt, seed| {
        let answer = mends(prompt, seed);
        let mut blocks = blocks.lock().unwrap();
        if answer == "Done." && blocks.is_none() {
            let mut episodes = std::fs::read_dir(root.join(&scope)).unwrap();
            let episode = episodes.next().unwrap().unwrap().file_name();
            let episode = episode.into_string().unwrap();
            let patch = root.join(paths::patch(&format!("{scope}/{episode}")));
            std::fs::write(&patch, "another driver's").unwrap();
            *blocks = Some(patch);
        }
        answer
    });
    let stopped = world.go(settings.clone(), 1).await.unwrap_err().to_string();
    assert!(stopped.contains("patch.diff"), "{stopped}");
    std::fs::remove_file(blocked.lock().unwrap().take().unwrap()).unwrap();
    *world.engine.policy.lock().unwrap() = Box::new(mends_after(1));

    world.go(settings, 2).await.unwrap();
    let folder = world.verified().await;
    let episodes = episodes(&folder);
    assert_eq!(episodes.len(), 2);
    for (meta, ended) in episodes {
        assert_eq!(
            (meta.outcome, meta.end, meta.turns, meta.attempt),
            (Outcome::Resolved, EpisodeEnd::Submitted, 3, 1)
        );
        assert_eq!(ended.record.process.unwrap().exit_code, Some(0));
    }
}
