//! Starts a run from its configuration: opens the store, reads the tasks, checks that all of it can work, starts
//! background work.

use crate::config::Settings;
use crate::downloads::{self, Downloads};
use crate::engine::Engines;
use crate::episode::Episodes;
use crate::fault::{DriverError, TerminalFault};
use crate::grade::Grader;
use crate::grader_worker::GraderWorker;
use crate::iterate::{self, Run};
use crate::judge::Judge;
use crate::live::{self, Live};
use crate::metrics::Metrics;
use crate::places::Places;
use crate::probe::Probe;
use crate::progress::{Board, Topic};
use crate::recording::sessions::Sessions;
use crate::replicas::Gate;
use crate::replicas::switch::asleep::Turn;
use crate::replicas::switch::{self, View};
use crate::retry::Budget;
use crate::reward::service::RewardService;
use crate::rollout::Rollouts;
use crate::sandbox::Gateway;
use crate::shared_journal::SharedJournal;
use crate::take_over::{Measured, Owner, take_over};
use crate::tasks::{self, Task, TaskSet, overlong, report};
use crate::trainer::TrainerClient;
use futures::StreamExt;
use grpo_auth::TokenFile;
use grpo_chat_template::ChatTemplate;
use grpo_contracts::access::Service;
use grpo_contracts::driver_epoch::DriverEpoch;
use grpo_contracts::reason::Reason;
use grpo_contracts::task_sets;
use grpo_crds::grpo_run::Mode;
use grpo_engine_protocol::BASE_VERSION;
use grpo_hub::HubSettings;
use grpo_records::{EpisodeMeta, Event, RunState, RunStore, StoreError, Writer, paths};
use std::path::PathBuf;
use std::sync::Arc;
use tokio::sync::{Mutex, watch};

/// The settings of this process, which are not in `run.json`.
#[derive(Clone, Debug)]
pub struct Process {
    /// Attempt of the driver's pod group.
    pub attempt: u32,
    pub grader_worker: PathBuf,
    pub grader_site: PathBuf,
    /// The folder with this pod's tokens.
    pub tokens: PathBuf,
    /// The hub that datasets are downloaded from.
    pub hub: HubSettings,
    /// Sessions of command-line agents; [`crate::recording::server`] serves them.
    pub sessions: Sessions,
    /// The source of changes while the run runs.
    pub changes: live::Source,
}

impl Process {
    /// The epoch of this driver's orders; `run`: the run's uid.
    pub fn epoch(&self, run: &str) -> DriverEpoch {
        DriverEpoch {
            run: run.to_owned(),
            attempt: self.attempt,
        }
    }
}

/// Opens the run's store.
pub fn store(settings: &Settings) -> Result<RunStore, DriverError> {
    let (mount, root) = &settings.store;
    Ok(RunStore::open(mount, root)?)
}

/// Builds the run; no episode and no step has begun yet.
pub async fn run(
    settings: Settings,
    process: &Process,
    store: RunStore,
    board: Board,
    metrics: Arc<Metrics>,
) -> Result<Arc<Run>, DriverError> {
    let writer = Writer::driver(process.attempt);
    let downloads = Downloads {
        settings: process.hub.clone(),
        store: &store,
        cache: downloads::cache(&settings.store),
        board: &board,
    };
    let worker = GraderWorker::new(&process.grader_worker, &process.grader_site);
    let http = |error: reqwest::Error| DriverError::Other(format!("setting up HTTP: {error}"));
    let patience = settings.patience;
    let gateway =
        Gateway::new(&settings.gateway, &settings.name, patience.gateway, patience.lease_ttl).map_err(http)?;
    let gateway = gateway
        .with_image_patience(patience.images)
        .with_token(TokenFile::in_folder(&process.tokens, Service::Gateway));
    let grading = Budget {
        request: patience.gateway,
        total: patience.grading,
    };
    let epoch = format!("{} attempt {}", settings.uid, process.attempt);
    let probe = Probe::new(gateway.clone(), grading, patience.pauses, &epoch);
    let mut sets: Vec<TaskSet> = Vec::new();
    let training = settings
        .train
        .iter()
        .map(|training| (task_sets::TRAIN.to_owned(), &training.tasks));
    let evaluations = settings.evaluate.iter();
    let evaluations = evaluations.map(|set| (task_sets::evaluation(&set.name), &set.tasks));
    for (name, selection) in training.chain(evaluations) {
        let files = downloads.files(&selection.source).await?;
        let statements = downloads.statements(selection.overrides.as_ref()).await?;
        sets.push(tasks::load(&name, selection, &files, &statements, &worker, &probe).await?);
    }
    let template = ChatTemplate::load(&settings.model)
        .map_err(|error| TerminalFault::new(Reason::TemplateUnusable, error.to_string()))?;
    if !settings.agent.thinking {
        template.check_thinking_switch().map_err(|error| {
            let message = format!("agent.context.thinking is Off, but {error}");
            TerminalFault::new(Reason::TemplateUnusable, message)
        })?;
    }
    let limits = &settings.agent.limits;
    let agent = settings
        .agent
        .kind
        .agent(limits, settings.agent.thinking, &settings.agent.history)?;
    if let Some(limit) = limits.prompt_tokens {
        for set in &mut sets {
            overlong::leave_out(set, limit, |task| agent.first_prompt(&template, task))?;
        }
    }
    say_rows(&board, &sets, &gateway).await;
    let all: Vec<Task> = sets.iter().flat_map(|set| &set.tasks).cloned().collect();
    let (of_rows, of_sets) = (tasks::checksum(&sets), tasks::checksum_of_sets(&sets));
    // An evaluation that has begun nothing yet may be corrected.
    let (_, evaluated) = store.names_in(paths::EVALUATIONS).await?;
    let owner = Owner {
        uid: &settings.uid,
        resume: settings.resume,
        store_path: &settings.store.1,
        tasks_sha256: &of_rows,
        sets_sha256: Some(&of_sets),
        measured: (settings.mode == Mode::Evaluate && !evaluated.is_empty()).then_some(Measured {
            inputs: &settings.inputs,
            sampling: settings.sampling,
        }),
        selected: "other tasks than tasks.train and tasks.evaluate select",
    };
    // The last faults that need no store: after them, a store says that this driver works.
    agent.rehearse(&template, limits, &all)?;
    let token = || TokenFile::in_folder(&process.tokens, Service::EngineAgent);
    let judge = settings
        .judge
        .as_ref()
        .map(|judge| Judge::new(judge, token(), metrics.clone()).map(Arc::new));
    let rewards = settings.reward.service.as_ref().map(RewardService::new);
    let started = started(&settings, &of_rows, &of_sets, all.len());
    let journal = take_over(&store, &writer, owner, started).await?;
    for set in &sets {
        report::keep(&store, set).await?;
    }
    let live = take_up_settings(&settings, process, &journal).await?;

    let engines = Engines::new(settings.engines.clone(), &settings.name, patience.engines).map_err(http)?;
    let engines = engines.with_token(TokenFile::in_folder(&process.tokens, Service::EngineAgent));
    let engines = engines.of_driver(process.epoch(&settings.uid));
    let trainer = TrainerClient::new(&settings.trainer, patience.trainer).map_err(http)?;
    let trainer = trainer.with_token(TokenFile::in_folder(&process.tokens, Service::Trainer));
    let trainer = trainer.of_driver(process.epoch(&settings.uid));
    let grader = Grader::new(
        gateway.clone(),
        worker,
        settings.reward.grade_timeout,
        grading,
        patience.pauses,
        epoch,
    )?;
    remember_verdicts(&store, &journal, &grader).await?;
    show_what_was(&board, &journal).await;
    board.change(|progress| progress.iterations = Some(live.now().iterations));

    let (target, target_seen) = watch::channel(None);
    let (view, view_seen) = watch::channel(View::default());
    let turn = settings.colocated.map(|colocated| Turn {
        view: view_seen.clone(),
        target: target_seen.clone(),
        replicas: colocated.replicas as usize,
    });
    let trainer = trainer.colocated(turn.clone());
    tokio::spawn(switch::follow(engines.clone(), target_seen, view, metrics.clone()));
    let episodes = Arc::new(Episodes {
        settings: settings.clone(),
        store: store.clone(),
        writer: writer.clone(),
        gateway,
        engines,
        template: Arc::new(template),
        sessions: process.sessions.clone(),
        agent,
        grader,
        judge: judge.transpose()?,
        rewards,
        gate: Gate::default(),
        grading: watch::channel(0).0,
        bases: Default::default(),
        starts: Default::default(),
    });
    let mut shared = sets
        .into_iter()
        .map(|set| set.tasks.into_iter().map(Arc::new).collect::<Vec<_>>());
    let train_tasks = settings.train.as_ref().and_then(|_| shared.next()).unwrap_or_default();
    let evaluation_tasks = shared.collect();
    Ok(Arc::new(Run {
        settings,
        store,
        writer,
        rollouts: Rollouts {
            episodes,
            journal: journal.clone(),
            metrics: metrics.clone(),
            places: Places::default(),
        },
        journal,
        live,
        trainer,
        board,
        metrics,
        wanted: watch::channel(BASE_VERSION.to_owned()).0,
        promoting: Mutex::default(),
        target,
        view: view_seen,
        turn,
        note: watch::channel(None).0,
        train_tasks,
        evaluation_tasks,
    }))
}

/// Reports the rows, which were skipped, and which install packages that graders cannot get.
async fn say_rows(board: &Board, sets: &[TaskSet], gateway: &Gateway) {
    sets.iter().for_each(|set| report::log(&set.report));
    let without_index = match sets.iter().any(|set| set.report.installing.count > 0) {
        false => false,
        true => match gateway.package_index_url().await {
            Ok(url) => url.is_none(),
            Err(error) => {
                tracing::warn!(%error, "whether graders reach a package index is not known; the run begins all the same");
                false
            }
        },
    };
    let said: Vec<String> = sets
        .iter()
        .filter_map(|set| report::message(&set.report, without_index))
        .collect();
    board.say(Topic::Tasks, (!said.is_empty()).then(|| said.join("; ")));
}

fn started(settings: &Settings, of_rows: &str, of_sets: &str, tasks: usize) -> Event {
    Event::RunStarted {
        run: settings.uid.clone(),
        namespace: settings.namespace.clone(),
        name: settings.name.clone(),
        seed: settings.seed,
        tasks_sha256: of_rows.to_owned(),
        sets_sha256: Some(of_sets.to_owned()),
        tasks: tasks as u32,
        agent: settings.agent.kind.recorded(),
        rows_per_turn: settings.agent.rows_per_turn,
        process: settings.judge.as_ref().map(|judge| judge.rule),
        reward: Some(settings.reward.rule.clone()),
        inputs_sha256: (settings.mode == Mode::Evaluate).then(|| settings.inputs.sha256.clone()),
    }
}

/// Settings that an earlier driver applied stay in force until new work begins.
async fn take_up_settings(
    settings: &Settings,
    process: &Process,
    journal: &SharedJournal,
) -> Result<Live, DriverError> {
    let given = settings.live();
    journal
        .record_if(|state| {
            state.settings.is_none().then(|| Event::SettingsTaken {
                settings: given.clone(),
            })
        })
        .await?;
    let known = journal.read(|state| state.settings.clone()).await;
    Ok(Live::new(process.changes.clone(), given, known))
}

/// Makes recorded verdicts available to identical patches.
async fn remember_verdicts(store: &RunStore, journal: &SharedJournal, grader: &Grader) -> Result<(), DriverError> {
    let folders: Vec<String> = journal.read(|s| s.verdicts.keys().cloned().collect()).await;
    let metas = store.read_each::<EpisodeMeta, _>(folders.into_iter().map(|folder| paths::meta(&folder)));
    let mut metas = std::pin::pin!(metas);
    while let Some(meta) = metas.next().await {
        let meta = match meta {
            Ok(meta) => meta,
            // The journal entry counts for this run; only the reuse of the verdict is lost.
            Err(StoreError::Missing { .. }) => continue,
            Err(error) => return Err(error.into()),
        };
        grader.remember(&meta).await;
    }
    Ok(())
}

async fn show_what_was(board: &Board, journal: &SharedJournal) {
    let of = |state: &RunState| {
        (
            state.finished_iterations(),
            state.voids.values().sum::<u64>() as u32,
            iterate::evaluations_shown(state),
        )
    };
    let (iteration, void, evaluations) = journal.read(of).await;
    board.change(|progress| {
        progress.iteration = Some(iteration);
        progress.void = Some(void);
    });
    evaluations
        .into_iter()
        .for_each(|evaluation| board.evaluated(evaluation));
}
