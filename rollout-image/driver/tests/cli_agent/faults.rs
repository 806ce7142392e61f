//! Misbehaviour of an agent at its endpoint, and faults beneath the endpoint: in each API, whole or streamed.
//!
//! Nothing that the agent does causes a void: its episode ends with a verdict on the patch. The agent does not notice
//! faults beneath the endpoint, except for the time that they take.

use super::{call, rows_are_what_was_sampled};
use crate::world::{Silence, World};
use grpo_crds::agent::{Agent, CliAgent};
use grpo_crds::grpo_run::Mode;
use grpo_driver::agent::AgentKind;
use grpo_driver::config::Settings;
use grpo_records::folder::{RunFolder, counting};
use grpo_records::{EndedEpisode, EpisodeEnd, EpisodeMeta, Outcome};
use serde_json::json;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

const APIS: [&str; 3] = ["chat", "responses", "messages"];
const FORMS: [&str; 2] = ["whole", "streamed"];
/// By the names in `misbehaving.py`.
const FAULTS: [(&str, Outcome, EpisodeEnd); 26] = [
    // First, because the others run during its wait.
    ("hangs", Outcome::Resolved, EpisodeEnd::EpisodeTimeout),
    ("garbage", Outcome::Resolved, EpisodeEnd::Submitted),
    ("no-text", Outcome::Resolved, EpisodeEnd::Submitted),
    ("nothing", Outcome::Resolved, EpisodeEnd::Submitted),
    ("no-object", Outcome::Resolved, EpisodeEnd::Submitted),
    ("deep", Outcome::Resolved, EpisodeEnd::Submitted),
    ("large", Outcome::Resolved, EpisodeEnd::Submitted),
    ("wrong-types", Outcome::Resolved, EpisodeEnd::Submitted),
    ("no-messages", Outcome::Resolved, EpisodeEnd::Submitted),
    ("unknown-role", Outcome::Resolved, EpisodeEnd::Submitted),
    ("pictures", Outcome::Resolved, EpisodeEnd::Submitted),
    ("counts", Outcome::Resolved, EpisodeEnd::Submitted),
    ("other-api", Outcome::Resolved, EpisodeEnd::Submitted),
    ("special-text", Outcome::Resolved, EpisodeEnd::Submitted),
    ("settings", Outcome::Resolved, EpisodeEnd::Submitted),
    ("flood", Outcome::Resolved, EpisodeEnd::Submitted),
    ("repeats", Outcome::Resolved, EpisodeEnd::Submitted),
    ("hang-up", Outcome::Resolved, EpisodeEnd::Submitted),
    ("half-a-body", Outcome::Resolved, EpisodeEnd::Submitted),
    ("talks", Outcome::Resolved, EpisodeEnd::Submitted),
    ("forks", Outcome::Resolved, EpisodeEnd::Submitted),
    ("fails", Outcome::Resolved, EpisodeEnd::Submitted),
    ("dies", Outcome::Resolved, EpisodeEnd::Submitted),
    ("rows", Outcome::Unresolved, EpisodeEnd::RowLimit),
    ("cut", Outcome::Unresolved, EpisodeEnd::Submitted),
    ("no-fault", Outcome::Resolved, EpisodeEnd::Submitted),
];

/// An evaluation with a task for each of `lines`: its API, its form and its agent's behaviour.
async fn world_of(lines: &[[&str; 3]]) -> (World, Settings) {
    let world = World::new(lines.len()).await;
    // Fixes the bug with its first answer in a conversation about a task.
    *world.engine.policy.lock().unwrap() =
        Box::new(|prompt, _| match prompt.matches("<|im_start|>assistant\n").count() {
            1 if prompt.contains("Fix task-") => call("sed -i 's/a - b/a + b/' a.py"),
            _ => "Done.".to_owned(),
        });
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cli_agent/misbehaving.py");
    let choose = lines.iter().enumerate().map(|(at, [api, form, does])| {
        format!("{{% if task.instance_id == 'task-{at}' %}}{api} {form} {does}{{% endif %}}")
    });
    let choose: String = choose.collect();
    let start = format!("exec python3 {} $0 \"$1\"", program.display());
    let cli: CliAgent = serde_json::from_value(json!({
        "image": "img", "command": ["bash", "-c", start, choose, "{{ prompt }}"],
    }))
    .unwrap();
    let spec = Agent {
        cli: Some(cli),
        ..Agent::default()
    };
    let mut settings = world.settings();
    settings.agent.kind = AgentKind::of(&spec).unwrap();
    settings.agent.limits.turns = 100;
    settings.agent.limits.context_tokens = 100_000;
    settings.mode = Mode::Evaluate;
    settings.concurrency = Some(8);
    (world, settings)
}

fn episodes(folder: &RunFolder) -> Vec<(EpisodeMeta, EndedEpisode)> {
    let scopes = folder.scopes().unwrap();
    let all = scopes
        .iter()
        .flat_map(|scope| counting(folder.episodes(scope).unwrap()));
    let ended = all.map(|episode| {
        let ended = folder.ended(&episode.path).unwrap().unwrap();
        (episode.meta, ended)
    });
    ended.collect()
}

/// Outcome, end and attempt of each line's episode, and its agent's log.
fn ends(
    lines: &[[&str; 3]],
    episodes: &[(EpisodeMeta, EndedEpisode)],
) -> BTreeMap<String, ((Outcome, EpisodeEnd, u32), String)> {
    let ends = episodes.iter().map(|(meta, ended)| {
        let at: usize = meta.key.instance.strip_prefix("task-").unwrap().parse().unwrap();
        let log = ended
            .record
            .process
            .as_ref()
            .map(|process| process.log.chars().take(2000).collect());
        let end = (meta.outcome.clone(), meta.end, meta.attempt);
        (lines[at].join(" "), (end, log.unwrap_or_default()))
    });
    ends.collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_that_an_agent_does_to_its_endpoint_is_a_void() {
    let faults = FAULTS.iter().enumerate();
    let lines = faults.flat_map(|(at, (does, ..))| {
        let apis = APIS.into_iter().enumerate();
        apis.map(move |(n, api)| [api, FORMS[(at + n) % 2], *does])
    });
    let lines: Vec<[&str; 3]> = lines.collect();
    let (world, mut settings) = world_of(&lines).await;
    settings.agent.limits.episode_timeout = Duration::from_secs(40);
    world.go(settings, 1).await.unwrap();
    let episodes = episodes(&world.verified().await);
    let ends = ends(&lines, &episodes);
    for (does, outcome, end) in &FAULTS {
        for line in lines.iter().filter(|line| line[2] == *does).map(|line| line.join(" ")) {
            let (found, log) = &ends[&line];
            assert_eq!(*found, (outcome.clone(), *end, 1), "{line}\n{log}");
        }
    }
    rows_are_what_was_sampled(&world, &episodes);
    world.nothing_ran_twice();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_or_an_engine_that_is_killed_in_an_answer_costs_time_and_nothing_else() {
    let lines = APIS.map(|api| FORMS.map(|form| [api, form, "no-fault"])).concat();
    let (world, settings) = world_of(&lines).await;
    let mends = std::mem::replace(
        &mut *world.engine.policy.lock().unwrap(),
        Box::new(|_, _| String::new()),
    );
    let (reached, mut count) = tokio::sync::watch::channel(0);
    let asked = AtomicU32::new(0);
    *world.engine.policy.lock().unwrap() = Box::new(move |prompt, seed| {
        reached.send_replace(asked.fetch_add(1, Ordering::Relaxed));
        mends(prompt, seed)
    });
    let engine = world.engine.clone();
    let faults = async {
        count.wait_for(|asked| *asked >= 3).await.unwrap();
        world.gateway.relays.cut();
        count.wait_for(|asked| *asked >= 6).await.unwrap();
        *engine.silence.lock().unwrap() = Some(Silence::Crashes);
        while !*engine.booting.lock().unwrap() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        *engine.silence.lock().unwrap() = None;
        count.wait_for(|asked| *asked >= 9).await.unwrap();
        world.gateway.relays.cut();
    };
    let (ended, ()) = tokio::join!(world.go(settings, 1), faults);
    ended.unwrap();
    let episodes = episodes(&world.verified().await);
    for (line, (end, log)) in ends(&lines, &episodes) {
        assert_eq!(end, (Outcome::Resolved, EpisodeEnd::Submitted, 1), "{line}\n{log}");
    }
    rows_are_what_was_sampled(&world, &episodes);
    world.nothing_ran_twice();
}
