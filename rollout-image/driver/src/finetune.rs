//! Mode Finetune: the driver makes batches of conversations, and the trainer steps on them; nothing is sampled.
//!
//! The batch of a step is a pure function of dataset, seed and number, so a restarted driver asks for the next step
//! with the same batch. Batches and their rows are in the store before the driver asks for a step: a trainer that
//! restarts from its last checkpoint computes the steps after it again. The trainer publishes weights with each
//! checkpoint.

pub mod conversations;

use self::conversations::{Conversation, Conversations};
use crate::config::{self, Checkpoint};
use crate::downloads::Downloads;
use crate::fault::{DriverError, TerminalFault};
use crate::progress::{Board, Topic};
use crate::shared_journal::SharedJournal;
use crate::start::Process;
use crate::take_over::{Owner, take_over};
use crate::tasks::selection::Sequence;
use crate::tasks::source::Source;
use crate::trainer::{TrainerClient, shown_waiting};
use grpo_auth::TokenFile;
use grpo_chat_template::ChatTemplate;
use grpo_contracts::RunConfig;
use grpo_contracts::access::Service;
use grpo_contracts::reason::Reason;
use grpo_crds::grpo_run::{Overlong, Resume, TaskOrder};
use grpo_crds::progress::Stage;
use grpo_records::Supervised;
use grpo_records::batch::StoredRows;
use grpo_records::store::sha256_hex;
use grpo_records::trainer::{CheckpointOrder, StepRequest, StepState};
use grpo_records::{Batch, Created, Event, Row, RunStore, TokenRow, Writer, paths, rows};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// The settings of a run in this mode.
#[derive(Clone, Debug)]
pub struct FinetuneSettings {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub resume: Resume,
    pub seed: u64,
    pub store_path: String,
    pub model: PathBuf,
    pub dataset: Source,
    pub resolved_only: bool,
    pub epochs: u32,
    /// Rows per step.
    pub batch: u32,
    /// Most tokens of a row.
    pub max_tokens: usize,
    pub overlong: Overlong,
    /// For rows without `enable_thinking`.
    pub thinking: bool,
    pub held_out: Option<HeldOut>,
    pub checkpoint: Checkpoint,
    pub trainer: String,
    /// How long the trainer may make no progress.
    pub patience: Duration,
}

/// Validation rows: no step trains on them.
#[derive(Clone, Debug)]
pub struct HeldOut {
    pub dataset: Source,
    /// Steps between two measurements.
    pub every: u32,
}

impl FinetuneSettings {
    /// Also reads the model's configuration: a model of the hub must be downloaded first.
    pub fn of(config: &RunConfig) -> Result<Self, TerminalFault> {
        let spec = &config.spec;
        config::executable(config)?;
        let missing = || TerminalFault::new(Reason::NoDataset, "mode Finetune needs finetune.dataset");
        let finetune = spec.finetune.as_ref().ok_or_else(missing)?;
        let positions = config::longest_context(Path::new(&config.model_path))?;
        let held_out = finetune.validation.as_ref().map(|validation| {
            Ok::<_, TerminalFault>(HeldOut {
                dataset: config::located(config, &validation.dataset)?,
                every: validation.every,
            })
        });
        Ok(Self {
            namespace: config.namespace.clone(),
            name: config.name.clone(),
            uid: config.uid.clone(),
            resume: spec.resume,
            seed: spec.seed,
            store_path: config.store_path.clone(),
            model: PathBuf::from(&config.model_path),
            dataset: config::located(config, &finetune.dataset)?,
            resolved_only: finetune.resolved_only,
            epochs: finetune.epochs,
            batch: finetune.batch,
            max_tokens: finetune
                .max_tokens
                .map_or(positions, |most| positions.min(most as usize)),
            overlong: finetune.overlong,
            thinking: finetune.thinking,
            held_out: held_out.transpose()?,
            checkpoint: Checkpoint {
                every: spec.checkpoint.every,
                keep: spec.checkpoint.keep,
            },
            trainer: config.endpoints.trainer.clone(),
            patience: config::TRAINER_PATIENCE,
        })
    }
}

/// A run of this mode in progress.
pub struct Finetune {
    settings: FinetuneSettings,
    store: RunStore,
    writer: Writer,
    pub journal: Arc<SharedJournal>,
    trainer: TrainerClient,
    board: Board,
    note: watch::Sender<Option<String>>,
    rows: Vec<(u32, Conversation)>,
    /// Stored in a file.
    held_out: Vec<Row>,
    steps: u32,
}

impl Finetune {
    /// Reads the rows and takes over the store; sends no request to the trainer.
    pub async fn start(
        settings: FinetuneSettings,
        process: &Process,
        store: RunStore,
        board: Board,
        downloads: &Downloads<'_>,
    ) -> Result<Self, DriverError> {
        let template = template(&settings)?;
        let read = read("finetune.dataset", &settings.dataset, &template, &settings, downloads).await?;
        let held_out = match &settings.held_out {
            Some(held_out) => {
                let name = "finetune.validation.dataset";
                Some(self::read(name, &held_out.dataset, &template, &settings, downloads).await?)
            }
            None => None,
        };
        let sets = [
            ("finetune.dataset", Some(&read)),
            ("finetune.validation.dataset", held_out.as_ref()),
        ];
        let said = sets.iter().filter_map(|(name, set)| set.as_ref()?.message(name));
        let said = said.collect::<Vec<_>>().join("; ");
        board.say(Topic::Tasks, (!said.is_empty()).then_some(said));

        let writer = Writer::driver(process.attempt);
        let journal = own(&settings, &store, &writer, &read, held_out.as_ref()).await?;
        let trainer = TrainerClient::new(&settings.trainer, settings.patience)
            .map_err(|error| DriverError::Other(format!("setting up HTTP: {error}")))?;
        let places = read.rows.len() as u64 * u64::from(settings.epochs);
        let steps = u32::try_from(places.div_ceil(u64::from(settings.batch))).map_err(|_| {
            let message = format!("{places} rows in all epochs are more steps than a run has: raise finetune.batch");
            TerminalFault::new(Reason::DatasetTooLarge, message)
        })?;
        board.change(|progress| progress.iterations = Some(steps));
        let trainer = trainer.of_driver(process.epoch(&settings.uid));
        let mut this = Self {
            trainer: trainer.with_token(TokenFile::in_folder(&process.tokens, Service::Trainer)),
            settings,
            store,
            writer,
            journal,
            board,
            note: watch::channel(None).0,
            rows: read.rows,
            held_out: Vec::new(),
            steps,
        };
        if let Some(held_out) = held_out {
            this.held_out = this.stored(&paths::held_out(), held_out.rows).await?;
        }
        Ok(this)
    }

    /// Runs to the end.
    pub async fn go(&self) -> Result<(), DriverError> {
        self.board.begin(Stage::Starting);
        shown_waiting(&self.board, &self.note, |note| self.trainer.ready(note)).await?;
        self.board.end(Stage::Starting);
        let done = self.journal.read(|state| state.finished_iterations()).await;
        for k in done + 1..=self.steps {
            self.step(k).await?;
        }
        self.board.say(Topic::Trainer, None);
        self.journal.succeeded().await
    }

    async fn step(&self, k: u32) -> Result<(), DriverError> {
        self.board.begin(Stage::Training);
        self.board.change(|progress| progress.iteration = Some(k));
        let batch = self.batch_of(k).await?;
        let Checkpoint { every, keep } = self.settings.checkpoint;
        let request = StepRequest {
            checkpoint: Some(CheckpointOrder {
                write: k.is_multiple_of(every.max(1)) || k == self.steps,
                keep,
            }),
            ..batch
        };
        let done = shown_waiting(&self.board, &self.note, |note| self.trainer.step(k, &request, note)).await?;
        let (weights, manifest_sha256) = self.published(&done).await?;
        if let Some(metrics) = &done.metrics {
            self.board.change(|progress| progress.loss = Some(metrics.loss));
            tracing::info!(step = k, of = self.steps, loss = metrics.loss, held_out = ?metrics.held_out_loss, "step done");
        }
        self.board.change(|progress| progress.weights = Some(weights.clone()));
        let event = Event::StepDone {
            step: k,
            weights,
            manifest_sha256,
        };
        self.journal.record(event).await?;
        self.board.end(Stage::Training);
        Ok(())
    }

    /// The last published version.
    async fn published(&self, done: &StepState) -> Result<(String, String), DriverError> {
        if let (Some(weights), Some(sha256)) = (&done.weights, &done.manifest_sha256) {
            return Ok((weights.clone(), sha256.clone()));
        }
        let state = self.trainer.state().await.map_err(DriverError::Other)?;
        Ok((state.weights, state.manifest_sha256))
    }

    /// The stored batch of a step; made if missing.
    async fn batch_of(&self, k: u32) -> Result<StepRequest, DriverError> {
        let path = paths::batch(k);
        let known = self
            .journal
            .read(|state| state.iterations.get(&k).and_then(|one| one.batch_sha256.clone()));
        if let Some(sha256) = known.await {
            return Ok(order(path, sha256));
        }
        let batch = Batch {
            rows: self.stored(&paths::conversations(k), self.chosen(k)).await?,
            supervised: Some(Supervised {
                steps: self.steps,
                held_out: match self.measures(k) {
                    true => self.held_out.clone(),
                    false => Vec::new(),
                },
            }),
            ..Batch::new(self.writer.clone(), self.settings.uid.clone(), k, k)
        };
        let sha256 = match self.store.create(&path, &batch).await? {
            Created::Written { sha256 } => sha256,
            // An earlier driver wrote it and crashed before the journal entry.
            Created::Existed => sha256_hex(&self.store.bytes(&path).await?),
        };
        let event = Event::BatchWritten {
            iteration: k,
            step: k,
            sha256: sha256.clone(),
            rows: batch.rows.len() as u32,
        };
        self.journal.record(event).await?;
        Ok(order(path, sha256))
    }

    /// The rows of step `k` (from 1): the next ones in the passes over the dataset. The last step may have fewer.
    fn chosen(&self, k: u32) -> Vec<(u32, Conversation)> {
        let (rows, batch) = (self.rows.len(), self.settings.batch as usize);
        let mut sequence = Sequence::new(TaskOrder::Shuffled, self.settings.seed, rows);
        let first = (k as usize - 1) * batch;
        let end = (first + batch).min(rows * self.settings.epochs as usize);
        let chosen = (first..end).map(|place| self.rows[sequence.at(place) as usize].clone());
        chosen.collect()
    }

    /// Whether the loss on held-out rows is measured after step `k`.
    fn measures(&self, k: u32) -> bool {
        let every = self.settings.held_out.as_ref().map(|held_out| held_out.every);
        every.is_some_and(|every| k.is_multiple_of(every.max(1)) || k == self.steps)
    }

    /// Writes conversations unless they exist, and returns them as rows of a batch.
    async fn stored(&self, path: &str, conversations: Vec<(u32, Conversation)>) -> Result<Vec<Row>, DriverError> {
        let heads: Vec<(u32, bool)> = conversations
            .iter()
            .map(|(position, row)| (*position, row.truncated))
            .collect();
        let ids = conversations.into_iter();
        let ids: Vec<TokenRow> = ids
            .map(|(_, row)| TokenRow::of_conversation(row.tokens, &row.learnt))
            .collect();
        let bytes = rows::encode(&ids).map_err(|error| DriverError::Other(format!("writing {path}: {error}")))?;
        let sha256 = sha256_hex(&bytes);
        if self.store.create_bytes(path, bytes).await? == Created::Existed
            && sha256_hex(&self.store.bytes(path).await?) != sha256
        {
            let message = format!(
                "{path} in the store has other rows: the model's tokenizer or chat template has changed since; give this run another store.path"
            );
            return Err(TerminalFault::new(Reason::TasksChanged, message).into());
        }
        let file = StoredRows {
            file: path.to_owned(),
            sha256,
        };
        let named = (0..).zip(heads);
        Ok(named
            .map(|(row, (position, truncated))| Row::of_conversation(&file, row, position, truncated))
            .collect())
    }
}

fn order(batch: String, sha256: String) -> StepRequest {
    StepRequest {
        batch,
        sha256,
        checkpoint: None,
        iterations: None,
    }
}

fn template(settings: &FinetuneSettings) -> Result<Arc<ChatTemplate>, TerminalFault> {
    let unusable = |message: String| TerminalFault::new(Reason::TemplateUnusable, message);
    let template = ChatTemplate::load(&settings.model).map_err(|error| unusable(error.to_string()))?;
    if !settings.thinking {
        template
            .check_thinking_switch()
            .map_err(|error| unusable(format!("finetune.thinking is false, but {error}")))?;
    }
    Ok(Arc::new(template))
}

/// Reads a dataset on a blocking thread: a large one takes minutes.
async fn read(
    name: &'static str,
    source: &Source,
    template: &Arc<ChatTemplate>,
    settings: &FinetuneSettings,
    downloads: &Downloads<'_>,
) -> Result<Conversations, DriverError> {
    let files = downloads.files(source).await?;
    downloads.board.say(Topic::Tasks, Some(format!("reading {name}")));
    let (template, settings) = (template.clone(), settings.clone());
    let read = tokio::task::spawn_blocking(move || conversations::read(name, &files, &template, &settings));
    let read = read
        .await
        .map_err(|error| DriverError::Other(format!("reading {name}: {error}")))?;
    Ok(read?)
}

/// Takes over the store; refuses other rows or settings than it began with.
async fn own(
    settings: &FinetuneSettings,
    store: &RunStore,
    writer: &Writer,
    read: &Conversations,
    held_out: Option<&Conversations>,
) -> Result<Arc<SharedJournal>, DriverError> {
    let all = read
        .checksums
        .iter()
        .chain(held_out.iter().flat_map(|set| &set.checksums));
    // The rows of a step depend on these too.
    let of_settings = format!(
        "{} {} {} {} {:?} {} {}",
        settings.seed,
        settings.epochs,
        settings.batch,
        settings.max_tokens,
        settings.overlong,
        settings.resolved_only,
        settings.thinking
    );
    let all: Vec<&str> = all.map(String::as_str).chain([of_settings.as_str()]).collect();
    let checksum = sha256_hex(all.join("\n").as_bytes());
    // A row at the border may move from one set to the other.
    let held_out = held_out.map(|set| set.checksums.join("\n"));
    let of_held_out = sha256_hex(held_out.unwrap_or_default().as_bytes());
    let owner = Owner {
        uid: &settings.uid,
        resume: settings.resume,
        store_path: &settings.store_path,
        tasks_sha256: &checksum,
        sets_sha256: Some(&of_held_out),
        measured: None,
        selected: "other rows, another seed or other settings than finetune has",
    };
    let started = Event::RunStarted {
        run: settings.uid.clone(),
        namespace: settings.namespace.clone(),
        name: settings.name.clone(),
        seed: settings.seed,
        tasks_sha256: checksum.clone(),
        tasks: read.rows.len() as u32,
        agent: Default::default(),
        rows_per_turn: false,
        process: None,
        reward: None,
        sets_sha256: Some(of_held_out.clone()),
        inputs_sha256: None,
    };
    take_over(store, writer, owner, started).await
}
