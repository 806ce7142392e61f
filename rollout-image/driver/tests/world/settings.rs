//! The settings of a run in a [`World`].

use super::{PAUSES, World, model};
use grpo_driver::agent::AgentKind;
use grpo_driver::agent::bash::Prompts;
use grpo_driver::agent::commands::CommandSurroundings;
use grpo_driver::agent::history::HistoryRule;
use grpo_driver::agent::limits::AgentLimits;
use grpo_driver::config::{
    AgentSettings, Checkpoint, ColocatedEngines, Evaluation, Inputs, Patience, Reward, Sampling, Settings, Training,
};
use grpo_driver::replicas::Endpoints;
use grpo_driver::retry::Budget;
use grpo_driver::tasks::selection::Selection;
use grpo_driver::tasks::source::Source;
use grpo_records::RewardRule;
use std::time::Duration;

impl World {
    pub fn settings(&self) -> Settings {
        let selection = Selection {
            source: Source::File(self.tasks.clone()),
            ..Selection::default()
        };
        Settings {
            namespace: "ns".into(),
            name: "run".into(),
            uid: "uid-1".into(),
            mode: grpo_crds::grpo_run::Mode::Train,
            resume: grpo_crds::grpo_run::Resume::Auto,
            seed: 7,
            inputs: Inputs {
                sha256: "00".into(),
                earlier: "0e".into(),
            },
            store: (self.mount.path().to_owned(), "ns/run".into()),
            model: model(),
            replay: None,
            train: Some(Training {
                tasks: selection.clone(),
                order: grpo_crds::grpo_run::TaskOrder::Shuffled,
                seed: 7,
            }),
            evaluate: vec![Evaluation {
                name: "fixed".into(),
                tasks: selection,
                samples: 1,
                seed: 7,
                every: None,
                at_start: true,
                at_end: true,
            }],
            agent: AgentSettings {
                kind: AgentKind::Bash(Prompts::default()),
                limits: AgentLimits {
                    turns: 6,
                    command_timeout: Duration::from_secs(10),
                    episode_timeout: Duration::from_secs(60),
                    context_tokens: 1024,
                    prompt_tokens: None,
                    episode_tokens: None,
                    output_bytes: 4096,
                },
                commands: CommandSurroundings::default(),
                thinking: true,
                history: HistoryRule::default(),
                rows_per_turn: false,
            },
            sampling: Sampling {
                temperature: 1.0,
                top_p: 1.0,
                top_k: 0,
                max_tokens_per_call: 256,
                penalties: Default::default(),
            },
            checkpoint: Checkpoint { every: 10, keep: 2 },
            iterations: 2,
            prompts: 2,
            samples: 4,
            concurrency: Some(4),
            max_staleness: 0,
            on_sync: grpo_crds::grpo_run::OnSync::Drain,
            dynamic: None,
            frozen_sampler: false,
            colocated: None,
            reward: Reward {
                rule: RewardRule {
                    resolved: 1.0,
                    unresolved: 0.0,
                    shaping: None,
                    asks: false,
                },
                service: None,
                grade_timeout: Duration::from_secs(20),
            },
            judge: None,
            gateway: self.gateway_url.clone(),
            engines: Endpoints::Fixed(vec![self.engine_address]),
            trainer: self.trainer_url.clone(),
            driver: self.driver_url.clone(),
            patience: Patience {
                gateway: Duration::from_secs(20),
                images: Duration::from_secs(60),
                engines: Budget {
                    request: Duration::from_secs(10),
                    total: Duration::from_secs(20),
                },
                weights: Duration::from_secs(60),
                grading: Duration::from_secs(20),
                trainer: Duration::from_secs(20),
                waiting: Duration::from_secs(1800),
                pauses: PAUSES,
                lease_ttl: Duration::from_secs(30),
                void_retries: 2,
            },
        }
    }

    /// Settings of a run whose trainer and engine share their devices.
    pub fn colocated(&self) -> Settings {
        self.trainer.shares_with.lock().unwrap().push(self.engine.clone());
        Settings {
            colocated: Some(ColocatedEngines { replicas: 1 }),
            ..self.settings()
        }
    }
}
