//! Agents from the registries, unmodified, each on twenty tasks through the driver: the endpoint answers their
//! requests, and each sampled token is trained on once. `make check-harnesses` (`e2e/agents/harnesses.sh`) makes their
//! files and runs this in a namespace that has these files at `/opt/agent` and no network but loopback.

mod measured;
mod policy;
mod tasks;

use self::measured::{Measured, Tokens};
use crate::cli_agent::{branches, episodes, rows_are_what_was_sampled};
use crate::world::{self, World, rows_of_steps};
use grpo_crds::agent::{Agent, CliAgent};
use grpo_crds::common::EnvVariable;
use grpo_driver::agent::AgentKind;
use grpo_driver::config::Settings;
use grpo_records::{Branch, EpisodeEnd, Outcome};
use serde_json::json;
use std::path::Path;
use std::time::Duration;

const SAMPLES: u32 = 2;

/// An agent and its expected results.
struct Harness {
    name: &'static str,
    version: String,
    cli: CliAgent,
    api: &'static str,
    streams: bool,
    /// Allowed reasons for rows beyond the first.
    branches: &'static [Branch],
}

fn recipe(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../docs/images")
        .join(file);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The text after `name` in a recipe.
fn version(file: &str, name: &str) -> String {
    let text = recipe(file);
    let line = text.lines().find_map(|line| line.trim().strip_prefix(name));
    line.unwrap_or_else(|| panic!("{file} has no {name}")).to_owned()
}

impl Harness {
    fn preset(name: &'static str, version: String, preset: &str, bare: bool) -> Self {
        let cli = json!({"preset": preset, "image": "i", "bare": bare});
        Self::of(name, version, serde_json::from_value(cli).unwrap())
    }

    /// With the command line from `docs/images/others`.
    fn other(name: &'static str) -> Self {
        let text = recipe(&format!("others/{name}.yaml"));
        let manifest: serde_json::Value = serde_yaml_ng::from_str(&text).unwrap();
        let spec: Agent = serde_json::from_value(manifest["agent"].clone()).unwrap();
        let cli = spec.cli.unwrap();
        let version = cli.image.rsplit(':').next().unwrap().to_owned();
        Self::of(name, version, cli)
    }

    fn of(name: &'static str, version: String, mut cli: CliAgent) -> Self {
        // Sandboxes of these tests share one home, this machine's.
        cli.env.push(EnvVariable {
            name: "HOME".into(),
            value: "/tmp/grpo".into(),
        });
        Self {
            name,
            version,
            cli,
            api: "ChatCompletions",
            streams: true,
            branches: &[],
        }
    }

    fn with_api(mut self, name: &'static str, api: &'static str, provider: &str) -> Self {
        let words = self.cli.command.iter_mut().flatten();
        words
            .filter(|word| *word == "completions")
            .for_each(|word| *word = provider.to_owned());
        (self.name, self.api) = (name, api);
        self
    }

    fn settings(&self, world: &World) -> Settings {
        let spec = Agent {
            cli: Some(self.cli.clone()),
            ..Agent::default()
        };
        let mut settings = world.settings();
        settings.agent.kind = AgentKind::of(&spec).unwrap();
        settings.model = world::model_with(include_str!("chat_template.jinja"), world.mount.path());
        settings.agent.limits.turns = 30;
        settings.agent.limits.context_tokens = 1 << 20;
        settings.agent.limits.episode_timeout = Duration::from_secs(300);
        settings.sampling.max_tokens_per_call = 8192;
        settings.iterations = 1;
        settings.prompts = tasks::BUGS.len() as u32;
        settings.samples = SAMPLES;
        settings.concurrency = Some(3);
        settings.evaluate.clear();
        settings.reward.grade_timeout = Duration::from_secs(120);
        settings.patience.grading = Duration::from_secs(240);
        settings
    }

    /// Every task is worked on; the rows hold the sampled tokens.
    async fn works(self) {
        assert!(
            Path::new("/opt/agent/bin").exists(),
            "the agents' files are not at /opt/agent: use make check-harnesses"
        );
        let world = World::of(&tasks::files(), tasks::rows).await;
        *world.engine.policy.lock().unwrap() = Box::new(policy::answer);
        world.go(self.settings(&world), 1).await.unwrap();
        let folder = world.verified().await;
        let episodes = episodes(&folder);
        assert_eq!(episodes.len(), tasks::BUGS.len() * SAMPLES as usize);
        let mut measured = Measured::new(self.name, &self.version, self.api, self.streams);
        let mut unexplained = Vec::new();
        for (meta, ended) in &episodes {
            let what = || {
                let log = ended.record.process.as_ref().map(|process| process.log.as_str());
                format!("{} of {}: {}", self.name, meta.key.instance, log.unwrap_or_default())
            };
            assert_eq!(
                (&meta.outcome, meta.end),
                (&Outcome::Resolved, EpisodeEnd::Submitted),
                "{}",
                what()
            );
            let causes = branches(ended);
            assert_eq!(causes.first(), Some(&Branch::First), "{}", what());
            let causes_here = causes.iter().skip(1).filter(|cause| !self.branches.contains(cause));
            unexplained.extend(causes_here.map(|cause| format!("{cause:?} in {}", meta.key.instance)));
            assert_eq!(causes.len(), ended.rows.len(), "each row has its cause: {}", what());
            let requests = ended.record.turns.iter().filter_map(|turn| turn.request.as_ref());
            assert!(requests.clone().all(|request| request.api == self.api), "{}", what());
            measured.add(ended, requests);
        }
        assert!(
            unexplained.is_empty(),
            "{}: rows that it should not open: {unexplained:?}",
            self.name
        );
        rows_are_what_was_sampled(&world, &episodes);
        world.nothing_ran_twice();
        assert_eq!(rows_of_steps(&folder), [measured.rows], "all rows are trained on");
        let tokens = Tokens::of(&world, &folder, &episodes);
        measured.tokens = tokens;
        assert_eq!(
            (tokens.trained_not_sampled, tokens.sampled_not_trained),
            (0, 0),
            "{tokens:?}"
        );
        for passed in world.gateway.relays.passed.lock().unwrap().iter() {
            assert_eq!(
                passed.status, 200,
                "{} {}: {}",
                passed.method, passed.path, passed.refusal
            );
            measured.pass(passed);
        }
        measured.write();
    }
}

fn qwen_code(name: &'static str, bare: bool) -> Harness {
    Harness::preset(name, version("qwen-code/tree.sh", "QWEN_CODE="), "QwenCode", bare)
}

fn mini_swe_agent(name: &'static str, preset: &str) -> Harness {
    let version = version("mini-swe-agent/requirements.txt", "mini-swe-agent==");
    Harness {
        streams: false,
        ..Harness::preset(name, version, preset, false)
    }
}

macro_rules! harnesses {
    ($($test:ident: $harness:expr,)*) => {$(
        #[tokio::test]
        #[ignore = "make check-harnesses"]
        async fn $test() {
            $harness.works().await;
        }
    )*};
}

harnesses! {
    qwen_code_works_and_trains_on_what_it_sampled: qwen_code("qwen-code", false),
    qwen_code_bare_works_and_trains_on_what_it_sampled: qwen_code("qwen-code, bare", true),
    // It drops an answer without a block.
    mini_swe_agent_with_blocks_works_and_trains_on_what_it_sampled: Harness {
        branches: &[Branch::LeftOutAnswer],
        ..mini_swe_agent("mini-swe-agent, blocks", "MiniSweAgent")
    },
    mini_swe_agent_with_its_tool_works_and_trains_on_what_it_sampled: mini_swe_agent("mini-swe-agent, tool", "MiniSweAgentTools"),
    codex_works_and_trains_on_what_it_sampled: Harness { api: "Responses", ..Harness::other("codex") },
    claude_code_works_and_trains_on_what_it_sampled: Harness { api: "Messages", ..Harness::other("claude-code") },
    gemini_cli_works_and_trains_on_what_it_sampled:
        Harness { api: "GenerateContent", ..Harness::other("gemini-cli") },
    opencode_works_and_trains_on_what_it_sampled: Harness::other("opencode"),
    pi_works_and_trains_on_what_it_sampled: Harness::other("pi"),
    pi_by_responses_works_and_trains_on_what_it_sampled:
        Harness::other("pi").with_api("pi, responses", "Responses", "responses"),
    pi_by_messages_works_and_trains_on_what_it_sampled:
        Harness::other("pi").with_api("pi, messages", "Messages", "messages"),
    // It puts added files before the conversation.
    aider_works_and_trains_on_what_it_sampled: Harness {
        branches: &[Branch::ChangedHistory],
        ..Harness::other("aider")
    },
    // It also asks for a title of the conversation.
    gptme_works_and_trains_on_what_it_sampled: Harness {
        branches: &[Branch::Conversation],
        ..Harness::other("gptme")
    },
}
