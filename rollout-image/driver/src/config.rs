//! The settings of a run, made from `run.json`. Most of this crate depends on these types and not on the spec.

mod context;
mod inputs;
mod patience;

pub use self::context::longest_context;
pub use self::inputs::Inputs;
use self::patience::GRADING_PATIENCE;
pub use self::patience::{Patience, TRAINER_PATIENCE};
use crate::agent::AgentKind;
use crate::agent::bash::Prompts;
use crate::agent::commands::CommandSurroundings;
use crate::agent::history::HistoryRule;
use crate::agent::limits::AgentLimits;
use crate::dynamic::Dynamic;
use crate::experts::Mixture;
use crate::fault::TerminalFault;
use crate::judge::JudgeSettings;
use crate::replicas::Endpoints;
use crate::retry::Budget;
use crate::reward::{self, RewardServiceSettings};
use crate::sampling;
use crate::tasks::selection::{self, Selection, Slice};
use crate::tasks::source::Source;
use grpo_contracts::RunConfig;
use grpo_contracts::reason::Reason;
use grpo_contracts::support;
use grpo_contracts::task_sets::{TRAIN, evaluation};
use grpo_crds::GrpoRunSpec;
use grpo_crds::agent::{Rows, Thinking};
use grpo_crds::algorithm::Estimator;
use grpo_crds::common::Period;
use grpo_crds::grpo_run::{self, InstanceIds, Mode, OnSync, Resume, RowFormat, TaskOrder};
use grpo_records::settings::{Cadence, LiveSettings};
pub use grpo_records::settings::{Checkpoint, Sampling};
use grpo_records::{ProcessRule, RewardRule, RowRule};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// How long the judge may take for one answer.
const JUDGING: Duration = Duration::from_secs(900);

/// All settings of a run.
#[derive(Clone, Debug)]
pub struct Settings {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub mode: Mode,
    pub resume: Resume,
    pub seed: u64,
    /// Of the settings that decide the numbers of an evaluation, apart from tasks and sampling.
    pub inputs: Inputs,
    /// Mount and path below it.
    pub store: (PathBuf, String),
    pub model: PathBuf,
    /// The mixture whose experts are recorded with every training episode.
    pub replay: Option<Arc<Mixture>>,
    pub train: Option<Training>,
    pub evaluate: Vec<Evaluation>,
    pub agent: AgentSettings,
    pub sampling: Sampling,
    pub checkpoint: Checkpoint,
    pub iterations: u32,
    pub prompts: u32,
    pub samples: u32,
    /// Most episodes at one time; `None`: by the size of the pool.
    pub concurrency: Option<u32>,
    pub max_staleness: u32,
    /// What happens to running training episodes when new weights are promoted.
    pub on_sync: OnSync,
    pub dynamic: Option<Dynamic>,
    /// Engines always serve the base model, and the run trains on its samples.
    pub frozen_sampler: bool,
    /// Engines that take turns with the trainer on the same devices.
    pub colocated: Option<ColocatedEngines>,
    pub reward: Reward,
    /// Scores single turns, if the run has a judge.
    pub judge: Option<JudgeSettings>,
    pub gateway: String,
    pub engines: Endpoints,
    pub trainer: String,
    /// The URL of this driver, for engine agents and relays.
    pub driver: String,
    pub patience: Patience,
}

/// The training set.
#[derive(Clone, Debug)]
pub struct Training {
    pub tasks: Selection,
    pub order: TaskOrder,
    pub seed: u64,
}

/// A named evaluation set.
#[derive(Clone, Debug)]
pub struct Evaluation {
    pub name: String,
    pub tasks: Selection,
    pub samples: u32,
    pub seed: u64,
    pub every: Option<u32>,
    pub at_start: bool,
    pub at_end: bool,
}

#[derive(Clone, Debug)]
pub struct AgentSettings {
    pub kind: AgentKind,
    pub limits: AgentLimits,
    pub commands: CommandSurroundings,
    /// `false`: the chat template switches reasoning off.
    pub thinking: bool,
    pub history: HistoryRule,
    /// Each turn is a training row of its own.
    pub rows_per_turn: bool,
}

/// Engines that take turns with the trainer on the same devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ColocatedEngines {
    /// All of these sleep before the trainer gets the devices.
    pub replicas: u32,
}

impl ColocatedEngines {
    fn of(spec: &GrpoRunSpec) -> Option<Self> {
        let trainer = spec.trainer.as_ref().filter(|_| spec.mode.needs_trainer())?;
        let pool = spec.inference.pool.as_ref().filter(|_| trainer.colocate)?;
        Some(Self {
            replicas: pool.replicas,
        })
    }
}

impl Settings {
    /// How an episode becomes rows of a batch.
    pub fn row_rule(&self) -> RowRule {
        RowRule {
            agent: self.agent.kind.recorded(),
            per_turn: self.agent.rows_per_turn,
            process: self.judge.as_ref().map(|judge| judge.rule),
        }
    }
}

#[derive(Clone, Debug)]
pub struct Reward {
    pub rule: RewardRule,
    /// The service that decides the final reward, if the run has one.
    pub service: Option<RewardServiceSettings>,
    pub grade_timeout: Duration,
}

/// Refuses features that this version does not execute. Call it before any download.
pub fn executable(config: &RunConfig) -> Result<(), TerminalFault> {
    match support::unsupported(&config.spec).as_slice() {
        [] => Ok(()),
        unsupported => Err(TerminalFault::new(Reason::NotSupported, support::in_words(unsupported))),
    }
}

impl Settings {
    /// Also reads the model's configuration: a model of the hub must be downloaded first.
    pub fn of(config: &RunConfig) -> Result<Self, TerminalFault> {
        let spec = &config.spec;
        executable(config)?;
        let rollout = &spec.rollout;
        let train = spec.tasks.train.as_ref().map(|set| {
            Ok::<_, TerminalFault>(Training {
                tasks: selection(config, &SetSpec::from(set))?,
                order: set.order,
                seed: set.seed.unwrap_or(spec.seed),
            })
        });
        let evaluate = spec.tasks.evaluate.iter().map(|set| {
            Ok::<_, TerminalFault>(Evaluation {
                name: set.name.clone(),
                tasks: selection(config, &SetSpec::from(set))?,
                samples: set.samples,
                seed: set.seed.unwrap_or(spec.seed),
                every: set.every,
                at_start: set.at_start,
                at_end: set.at_end,
            })
        });
        Ok(Self {
            namespace: config.namespace.clone(),
            name: config.name.clone(),
            uid: config.uid.clone(),
            mode: spec.mode,
            resume: spec.resume,
            seed: spec.seed,
            inputs: inputs::checksums(spec),
            store: (PathBuf::from(RunConfig::STORE_MOUNT), config.store_path.clone()),
            model: PathBuf::from(&config.model_path),
            replay: Mixture::of_run(spec, Path::new(&config.model_path))?.map(Arc::new),
            train: train.transpose()?,
            evaluate: evaluate.collect::<Result<_, _>>()?,
            frozen_sampler: support::samples_frozen(spec),
            colocated: ColocatedEngines::of(spec),
            agent: agent(config)?,
            sampling: sampling::of(&rollout.sampling),
            checkpoint: Checkpoint {
                every: spec.checkpoint.every,
                keep: spec.checkpoint.keep,
            },
            iterations: rollout.iterations,
            prompts: rollout.prompts,
            samples: rollout.samples,
            concurrency: rollout.concurrency,
            max_staleness: rollout.max_staleness,
            on_sync: rollout.on_sync,
            dynamic: rollout.dynamic.as_ref().map(Dynamic::of),
            reward: Reward {
                rule: reward::rule(&spec.reward),
                service: (spec.reward.http.as_ref()).map(|http| reward::service(http, GRADING_PATIENCE)),
                grade_timeout: duration(spec.reward.grade_timeout),
            },
            judge: judge(config),
            gateway: config.endpoints.gateway.clone(),
            engines: Endpoints::Name {
                host: config.endpoints.engines_host.clone(),
                port: config.endpoints.engines_port,
            },
            trainer: config.endpoints.trainer.clone(),
            driver: config.endpoints.driver.clone(),
            patience: Patience {
                void_retries: spec.failure_policy.void_retries,
                ..Patience::default()
            },
        })
    }
}

impl Settings {
    /// The settings that may change during the run.
    pub fn live(&self) -> LiveSettings {
        LiveSettings {
            iterations: self.iterations,
            sampling: self.sampling,
            checkpoint: self.checkpoint,
            evaluate: self.evaluate.iter().map(Evaluation::cadence).collect(),
        }
    }
}

impl Evaluation {
    fn cadence(&self) -> Cadence {
        Cadence {
            set: self.name.clone(),
            every: self.every,
            at_start: self.at_start,
            at_end: self.at_end,
        }
    }
}

/// The run's sets by their names in reports, the training set first. Does not need the model.
pub fn selections(config: &RunConfig) -> Result<Vec<(String, Selection)>, TerminalFault> {
    executable(config)?;
    let tasks = &config.spec.tasks;
    let train = tasks.train.iter().map(|set| (TRAIN.to_owned(), SetSpec::from(set)));
    let evaluate = tasks
        .evaluate
        .iter()
        .map(|set| (evaluation(&set.name), SetSpec::from(set)));
    let sets = train.chain(evaluate);
    sets.map(|(name, set)| Ok((name, selection(config, &set)?))).collect()
}

/// The common fields of training and evaluation sets.
struct SetSpec<'a> {
    dataset: &'a grpo_run::Dataset,
    format: RowFormat,
    image: Option<&'a String>,
    select: &'a grpo_run::Select,
    overrides: Option<&'a grpo_run::PromptOverrides>,
    revealed: &'a [grpo_run::HiddenField],
}

impl<'a> From<&'a grpo_run::TaskSet> for SetSpec<'a> {
    fn from(set: &'a grpo_run::TaskSet) -> Self {
        Self {
            dataset: &set.dataset,
            format: set.format,
            image: set.image.as_ref(),
            select: &set.select,
            overrides: set.prompt_overrides.as_ref(),
            revealed: &set.prompt_fields,
        }
    }
}

impl<'a> From<&'a grpo_run::EvaluationSet> for SetSpec<'a> {
    fn from(set: &'a grpo_run::EvaluationSet) -> Self {
        Self {
            dataset: &set.dataset,
            format: set.format,
            image: set.image.as_ref(),
            select: &set.select,
            overrides: set.prompt_overrides.as_ref(),
            revealed: &set.prompt_fields,
        }
    }
}

pub fn located(config: &RunConfig, dataset: &grpo_run::Dataset) -> Result<Source, TerminalFault> {
    let location = config.dataset(dataset).ok_or_else(|| {
        TerminalFault::new(
            Reason::DatasetNotMounted,
            "a dataset of the run is mounted nowhere in run.json: the operator that wrote it does not know its source",
        )
    })?;
    Ok(location.into())
}

fn statements(config: &RunConfig, overrides: &grpo_run::PromptOverrides) -> Result<Option<Source>, TerminalFault> {
    if let Some(dataset) = &overrides.dataset {
        return located(config, dataset).map(Some);
    }
    let Some(text) = &overrides.config_map_ref else {
        return Ok(None);
    };
    let file = config.config_map(text).ok_or_else(|| {
        let message = format!(
            "the statements in key {} of ConfigMap {} are mounted nowhere in run.json",
            text.key, text.name
        );
        TerminalFault::new(Reason::PromptOverridesInvalid, message)
    })?;
    Ok(Some(Source::File(file)))
}

fn selection(config: &RunConfig, set: &SetSpec<'_>) -> Result<Selection, TerminalFault> {
    let select = set.select;
    let list = |ids: &Option<InstanceIds>| ids.as_ref().map_or(Ok(Vec::new()), |ids| instances(config, ids));
    let pattern = select.pattern.as_deref().map(selection::pattern).transpose();
    let pattern = pattern.map_err(|error| {
        let message = format!("select.pattern is no regular expression: {error}");
        TerminalFault::new(Reason::PatternInvalid, message)
    })?;
    Ok(Selection {
        source: located(config, set.dataset)?,
        format: set.format,
        image: set.image.cloned(),
        overrides: set
            .overrides
            .map_or(Ok(None), |overrides| statements(config, overrides))?,
        revealed: set.revealed.to_vec(),
        instances: match list(&select.instance_ids)? {
            // An empty list would select every row.
            names if names.is_empty() && select.instance_ids.is_some() => {
                let message = "select.instanceIds has no name: its list is empty";
                return Err(TerminalFault::new(Reason::InstanceIdsUnreadable, message));
            }
            names => names,
        },
        exclude: list(&select.exclude)?,
        pattern,
        repos: select.repos.iter().flatten().chain(&select.repo).cloned().collect(),
        shuffle: select.shuffle_seed,
        slice: select.slice.map(|slice| Slice {
            index: slice.index as usize,
            of: slice.of as usize,
        }),
        limit: select.limit.map(|limit| limit as usize),
    })
}

/// Instance ids from the spec or from a mounted list: one a line; lines that begin with # are comments.
fn instances(config: &RunConfig, ids: &InstanceIds) -> Result<Vec<String>, TerminalFault> {
    let Some(list) = &ids.config_map_ref else {
        return Ok(ids.inline.clone().unwrap_or_default());
    };
    let unreadable = |what: String| {
        let message = format!("the list in key {} of ConfigMap {}: {what}", list.key, list.name);
        TerminalFault::new(Reason::InstanceIdsUnreadable, message)
    };
    let file = config.config_map(list);
    let file = file.ok_or_else(|| unreadable("it is mounted nowhere in run.json".to_owned()))?;
    let text = std::fs::read_to_string(&file).map_err(|error| unreadable(error.to_string()))?;
    let names = text
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with('#'));
    Ok(names.map(str::to_owned).collect())
}

fn agent(config: &RunConfig) -> Result<AgentSettings, TerminalFault> {
    let agent = &config.spec.agent;
    let kind = match AgentKind::of(agent) {
        // Mode Validate has no policy, and the API requires no agent.
        Err(_) if config.spec.mode == Mode::Validate => AgentKind::Bash(Prompts::default()),
        kind => kind?,
    };
    let history = HistoryRule::of(&agent.context);
    Ok(AgentSettings {
        rows_per_turn: match agent.context.rows {
            Some(rows) => rows == Rows::PerTurn,
            None => !history.only_grows(),
        },
        history,
        commands: CommandSurroundings::of(agent, kind.has_edit_tool()),
        thinking: agent.context.thinking != Thinking::Off,
        limits: AgentLimits {
            turns: agent.limits.turns,
            command_timeout: duration(agent.limits.command_timeout),
            episode_timeout: duration(agent.limits.episode_timeout),
            context_tokens: match agent.limits.context_tokens {
                Some(tokens) => tokens as usize,
                None => context::default_context(config)?,
            },
            prompt_tokens: agent.limits.prompt_tokens.map(|tokens| tokens as usize),
            episode_tokens: agent.limits.episode_tokens.map(|tokens| tokens as usize),
            output_bytes: kind.output_bytes(),
        },
        kind,
    })
}

/// Only training episodes are judged.
fn judge(config: &RunConfig) -> Option<JudgeSettings> {
    let spec = config
        .spec
        .reward
        .process
        .as_ref()
        .filter(|_| config.spec.mode == Mode::Train)?;
    Some(JudgeSettings {
        endpoints: Endpoints::Name {
            host: config.endpoints.judge_host.clone()?,
            port: config.endpoints.engines_port,
        },
        rule: ProcessRule {
            coefficient: spec.coefficient as f32,
            min_votes: spec.min_votes,
            step_wise: config.spec.algorithm.advantage.estimator == Estimator::StepWise,
        },
        budget: Budget {
            request: JUDGING,
            total: GRADING_PATIENCE,
        },
        spec: spec.clone(),
    })
}

fn duration(period: Period) -> Duration {
    period.duration()
}

#[cfg(test)]
mod tests;
