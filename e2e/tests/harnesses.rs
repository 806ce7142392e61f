//! Unmodified agents from the registries in sandboxes of a real cluster, with a sampled policy: for each agent one run
//! of 20 tasks, whose only step trains on all that was sampled. `make test-harnesses` makes images and runs this;
//! `make check-harnesses` is the same with a scripted policy, which resolves its tasks.
//!
//! The policy is the demo's model with more positions and with tools in its template. It answers nonsense to such
//! prompts, and many answers are cut, so most episodes end after one or two turns and no reward differs: the test is
//! about the path of the tokens, not about learning. Shown for each agent: the trained tokens are the sampled ones,
//! engine and trainer agree on the logprob of each of them, and each row has the cause that opened it.
//!
//! `GRPO_HARNESSES`: names from [`HARNESSES`], with commas between them; without it all run, one after the other.

mod measured;
mod tokens;

use self::measured::Measured;
use crate::support::{Result, Scene, repository, small_run, verified};
use grpo_bench_report::{Bench, Row};
use grpo_demo::follow;
use grpo_testing::cluster::manifest::RunManifest;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

const MODEL: &str = "grpo.dev/demo/long-model:1";
const FIGURES: &str = "bench/results/harnesses-sampled.json";
const TASKS: u32 = 20;
/// A group has two episodes at least.
const SAMPLES: u32 = 2;
/// Of one run. Some prompts have over 10,000 tokens.
const LIMIT: Duration = Duration::from_secs(90 * 60);
/// Fewer programs are a part of the figure.
const PROGRAMS: usize = 6;

/// An agent, as it is called.
#[derive(Clone, Copy)]
struct Harness {
    name: &'static str,
    /// The recipe and the image; two classes of one program have the same.
    program: &'static str,
    /// Absent: the manifest in `docs/images/others` has the command.
    preset: Option<&'static str>,
    api: &'static str,
    /// `make check-harnesses` sees it. A run's records do not tell it, because a stream has the same answer.
    streams: bool,
}

const fn chat(name: &'static str) -> Harness {
    Harness {
        name,
        program: name,
        preset: None,
        api: "ChatCompletions",
        streams: true,
    }
}

const MINI_SWE_AGENT: Harness = Harness {
    preset: Some("MiniSweAgent"),
    streams: false,
    ..chat("mini-swe-agent")
};

const HARNESSES: [Harness; 10] = [
    Harness {
        preset: Some("QwenCode"),
        ..chat("qwen-code")
    },
    MINI_SWE_AGENT,
    Harness {
        name: "mini-swe-agent-tools",
        preset: Some("MiniSweAgentTools"),
        ..MINI_SWE_AGENT
    },
    Harness {
        api: "Responses",
        ..chat("codex")
    },
    Harness {
        api: "GenerateContent",
        ..chat("gemini-cli")
    },
    chat("opencode"),
    chat("aider"),
    chat("pi"),
    chat("gptme"),
    // The Makefile leaves it out: its prompt may not fit into the model's 32,768 positions.
    Harness {
        api: "Messages",
        ..chat("claude-code")
    },
];

/// Those that `GRPO_HARNESSES` names.
fn chosen() -> Result<Vec<Harness>> {
    let Ok(names) = std::env::var("GRPO_HARNESSES") else {
        return Ok(HARNESSES.to_vec());
    };
    let known = || HARNESSES.map(|harness| harness.name).join(", ");
    let named = names.split(',').map(|name| {
        let harness = HARNESSES.into_iter().find(|harness| harness.name == name);
        harness.ok_or_else(|| format!("GRPO_HARNESSES names {name:?}; give some of {}", known()))
    });
    Ok(named.collect::<std::result::Result<_, _>>()?)
}

impl Harness {
    /// The agent of a manifest, with the image of the local cluster; and its version.
    fn agent(&self) -> Result<(Value, String)> {
        let images = repository().join("docs/images");
        let (mut agent, version) = match self.preset {
            Some(preset) => {
                let file = images.join(self.program).join("Dockerfile");
                let text = read(&file)?;
                let mut lines = text.lines();
                let version = lines.find_map(|line| line.strip_prefix("LABEL org.opencontainers.image.version="));
                let version = version.ok_or_else(|| format!("{} has no label with a version", file.display()))?;
                // Without `bare`, qwen-code's first request of 78 kB would leave no room for answers.
                let bare = preset == "QwenCode";
                (json!({"cli": {"preset": preset, "bare": bare}}), version.to_owned())
            }
            None => {
                let file = images.join(format!("others/{}.yaml", self.program));
                let mut recipe: Value = serde_yaml_ng::from_str(&read(&file)?)?;
                let agent = recipe["agent"].take();
                let image = agent["cli"]["image"].as_str().and_then(|image| image.rsplit_once(':'));
                let (_, version) = image.ok_or_else(|| format!("{} names no image with a tag", file.display()))?;
                let version = version.to_owned();
                (agent, version)
            }
        };
        agent["cli"]["image"] = json!(format!("grpo.dev/cli/{}:{version}", self.program));
        agent["limits"] = json!({"turns": 6, "commandTimeout": "20s", "episodeTimeout": "10m"});
        Ok((agent, version))
    }

    fn run(&self, agent: Value) -> Result<RunManifest> {
        let sandboxes = json!({
            "requests": {"cpu": "10m", "ephemeral-storage": "64Mi"},
            "limits": {"cpu": "1", "memory": "512Mi", "ephemeral-storage": "1Gi"},
        });
        Ok(small_run(self.name)?
            .with("/model", json!({"image": {"reference": MODEL}}))
            .with("/agent", agent)
            .with("/tasks/evaluate", json!([]))
            .with("/tasks/train/select", json!({"limit": TASKS}))
            .with("/rollout/iterations", json!(1))
            .with("/rollout/prompts", json!(TASKS))
            .with("/rollout/samples", json!(SAMPLES))
            // If all rewards are equal, no token has a loss, and the trainer would compute no logprob to compare.
            .with("/algorithm/entropyCoefficient", json!(0.001))
            // Episodes of an agent have a long beginning in common, which a pack of many rows computes once.
            .with("/trainer", json!({"nodes": 1, "maxTokensPerGpu": 32_768}))
            .with("/sandboxes/pool/max", json!(4))
            .with("/sandboxes/pool/resources", sandboxes))
    }

    /// Runs the agent; an error if the run fails, or if its records do not support its claims.
    async fn measured(&self, agent: Value) -> Result<Measured> {
        let scene = Scene::new(&format!("harness-{}", self.name)).await?;
        let run = self.run(agent)?;
        scene.apply(&run).await?;
        let ended = follow::follow(&scene.runs(), run.name(), LIMIT).await;
        let ended = match ended {
            Ok(ended) => ended,
            Err(error) => {
                // A run that is only slow must not slow the next agents down. Its namespace stays for inspection.
                scene.apply(&run.with("/suspend", json!(true))).await?;
                return Err(error.into());
            }
        };
        let folder = scene.store_of(&ended.run).await?;
        verified(&folder)?;
        let measured = Measured::of(&folder)?;
        scene.say(&format!("{measured:?}, {:.0} s", ended.seconds));
        if measured.apis != BTreeSet::from([self.api.to_owned()]) {
            return Err(format!("it speaks {:?}, not {} alone", measured.apis, self.api).into());
        }
        scene.clear().await?;
        Ok(measured)
    }

    fn rows(&self, measured: &Measured) -> Vec<Row> {
        let streams = if self.streams { "streamed" } else { "whole" };
        let name = format!("19.1 {}, {}, {streams}, sampled policy", self.name, self.api);
        let count = |what: &str, value: usize, unit: &str, bar| {
            Row::new(format!("{name}: {what}"), Some(value as f64), unit, bar)
        };
        let tokens = measured.tokens;
        vec![
            count("tasks trained on", measured.tasks.len(), "tasks", Some(">= 20")),
            count("turns", measured.turns, "turns", None),
            count("tokens trained on", tokens.trained, "tokens", Some("> 0")),
            count(
                "trained tokens that were not sampled",
                tokens.trained_not_sampled,
                "tokens",
                Some("= 0"),
            ),
            count(
                "sampled tokens that are not trained on",
                tokens.sampled_not_trained,
                "tokens",
                Some("= 0"),
            ),
            count(
                "trained tokens that the trainer did not compute",
                measured.not_computed,
                "tokens",
                Some("= 0"),
            ),
            count(
                "trained tokens whose logprobs differ by more than 1e-3",
                measured.gaps_over,
                "tokens",
                Some("= 0"),
            ),
            Row::significant(format!("{name}: largest gap"), f64::from(measured.gap_max), "nat", None),
            count(
                "rows, each with its cause, beyond the first of an episode",
                measured.rows_beyond_the_first(),
                "rows",
                None,
            ),
        ]
    }
}

fn read(file: &Path) -> Result<String> {
    std::fs::read_to_string(file).map_err(|error| format!("reading {}: {error}", file.display()).into())
}

/// Adds rows to the file of figures, in which they replace those of the same agent.
fn keep(rows: &[Row], versions: &[String]) -> Result<()> {
    let file = repository().join(FIGURES);
    let bench = Bench::of_this_machine(rows).with_versions(versions);
    Ok(bench.merged_with(&file).write(&file)?)
}

#[tokio::test]
#[ignore = "needs a cluster with the agents' images: make test-harnesses"]
async fn what_is_sampled_for_each_unmodified_agent_is_trained_on_once() -> Result<()> {
    let chosen = chosen()?;
    let (mut programs, mut apis) = (BTreeSet::new(), BTreeSet::new());
    let (mut rows, mut failed) = (Vec::new(), Vec::new());
    for harness in &chosen {
        let (agent, version) = harness.agent()?;
        match harness.measured(agent).await {
            Ok(measured) => {
                let own = harness.rows(&measured);
                keep(&own, &[format!("{} {version}", harness.program)])?;
                rows.extend(own);
                programs.insert(harness.program);
                apis.insert(harness.api);
            }
            Err(error) => failed.push(format!("{}: {error}", harness.name)),
        }
    }
    let wanted: BTreeSet<&str> = chosen.iter().map(|harness| harness.program).collect();
    if wanted.len() >= PROGRAMS {
        let all = [
            Row::new(
                "19.1: agents with a sampled policy",
                Some(programs.len() as f64),
                "agents",
                Some(">= 6"),
            ),
            Row::new("19.1: their APIs", Some(apis.len() as f64), "APIs", Some(">= 3")),
        ];
        keep(&all, &[])?;
        rows.extend(all);
    }
    for row in &rows {
        println!("{}", serde_json::to_string(row)?);
    }
    let missed: Vec<&Row> = rows.iter().filter(|row| !row.meets_its_bar()).collect();
    assert!(failed.is_empty() && missed.is_empty(), "{failed:#?} {missed:#?}");
    Ok(())
}
