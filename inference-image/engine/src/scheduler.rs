//! The engine loop: one thread that owns every running row.
//!
//! An iteration of the loop takes in arrivals, admits waiting rows, lets every running row read its next tokens in one
//! forward pass, and samples. Rows come and go between passes (continuous batching); a prompt is read in pieces so that
//! it does not delay rows that sample. None of this changes an answer: see [`grpo_model::decode`].
//!
//! A new model serves every job taken in after it; running rows keep their model, which is dropped with the last of
//! them. An order to sleep drops the model, shared prefixes and scratch memory once no row is left; the next model
//! wakes the loop up.

use crate::inbox::{Arrivals, Inbox, Install, Order, asleep};
use crate::job::{Answer, AnswerRow, Job};
use crate::metrics::Metrics;
use crate::model::Model;
use crate::prefix::{BlockNumber, PrefixCache, piece};
use crate::sampling::SoFar;
use grpo_engine_protocol::{ErrorBody, ErrorCode, FinishReason};
use grpo_model::decode::{BLOCK_LEN, Chunk, Scratch, Sequence};
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::oneshot;

/// Prompt tokens read per pass, all rows together.
const PROMPT_TOKENS_PER_PASS: usize = 256;

/// State of the loop.
#[derive(Clone, Debug, Default)]
pub struct Report {
    pub version: String,
    pub sha256: String,
    pub draining: Vec<String>,
    /// Whether the memory of the model is given back. Version and checksum are then those of before.
    pub asleep: bool,
    pub running: usize,
    pub waiting: usize,
}

pub struct Scheduler {
    inbox: Arc<Inbox>,
    report: Arc<Mutex<Report>>,
    metrics: Arc<Metrics>,
    max_rows: usize,
    prefix_bytes: usize,
    kv_bytes: usize,
    weights: Weights,
    /// The signal of an order to sleep, until no row is left.
    pending_sleep: Option<oneshot::Sender<()>>,
    jobs: HashMap<JobNumber, OpenJob>,
    next_job: JobNumber,
    waiting: VecDeque<Row>,
    running: Vec<Row>,
    scratches: Vec<Scratch>,
}

/// The weights for new jobs.
enum Weights {
    Loaded {
        model: Arc<Model>,
        prefixes: PrefixCache,
    },
    /// Given back. There are no rows, because each of them would have a model.
    Asleep {
        version: String,
        sha256: String,
    },
}

type JobNumber = u64;

struct OpenJob {
    job: Job,
    rows: Vec<Option<AnswerRow>>,
    version: String,
}

struct Row {
    job: JobNumber,
    index: u32,
    model: Arc<Model>,
    sequence: Sequence,
    /// Numbers of the complete blocks of `sequence`, while they are shared.
    blocks: Vec<BlockNumber>,
    /// Prompt and sampled tokens.
    tokens: Vec<u32>,
    prompt_len: usize,
    logprobs: Vec<f32>,
    logits: Vec<f32>,
    /// Tokens to read in this pass.
    reading: usize,
    /// Bytes of its keys and values when it is as long as it may become.
    kv_bytes: usize,
}

impl Row {
    fn unread(&self) -> usize {
        self.tokens.len() - self.sequence.len()
    }
}

impl Scheduler {
    pub fn new(
        inbox: Arc<Inbox>,
        report: Arc<Mutex<Report>>,
        metrics: Arc<Metrics>,
        model: Arc<Model>,
        limits: SchedulerLimits,
    ) -> Self {
        let scratches = (0..limits.threads.max(1)).map(|_| Scratch::default()).collect();
        let prefixes = PrefixCache::new(limits.prefix_bytes / model.decoder.block_bytes().max(1));
        let scheduler = Self {
            inbox,
            report,
            metrics,
            max_rows: limits.max_rows.max(1),
            prefix_bytes: limits.prefix_bytes,
            kv_bytes: limits.kv_bytes,
            weights: Weights::Loaded { model, prefixes },
            pending_sleep: None,
            jobs: HashMap::new(),
            next_job: 0,
            waiting: VecDeque::new(),
            running: Vec::new(),
            scratches,
        };
        scheduler.tell();
        let limit = i64::try_from(scheduler.kv_bytes).unwrap_or(i64::MAX);
        scheduler.metrics.kv_limit_bytes.set(limit);
        scheduler
    }

    /// Runs until the inbox is closed.
    pub fn run(mut self) {
        loop {
            let idle = self.running.is_empty() && self.waiting.is_empty();
            // The inbox takes no more jobs since the order came, so it stays empty.
            if idle
                && self.inbox.waiting() == 0
                && let Some(done) = self.pending_sleep.take()
            {
                self.fall_asleep(done);
            }
            let room = self.max_rows.saturating_sub(self.waiting.len());
            let Some(Arrivals { jobs, orders }) = self.inbox.take(idle, room) else {
                return;
            };
            for order in orders {
                match order {
                    Order::Install(install) => self.switch_to(install),
                    Order::Sleep(done) => self.pending_sleep = Some(done),
                }
            }
            for job in jobs {
                self.open(job);
            }
            self.drop_abandoned_rows();
            self.admit();
            self.plan();
            self.read();
            self.sample();
            self.tell();
        }
    }

    fn switch_to(&mut self, install: Install) {
        let prefixes = PrefixCache::new(self.prefix_bytes / install.model.decoder.block_bytes().max(1));
        self.weights = Weights::Loaded {
            model: install.model,
            prefixes,
        };
        self.tell();
        // Ignores a missing receiver; the version serves anyway.
        let _ = install.done.send(());
    }

    /// Drops all that rows need. With the settings of the image, the allocator maps blocks of weights, keys and values
    /// apart, so dropping them returns them to the system.
    fn fall_asleep(&mut self, done: oneshot::Sender<()>) {
        if let Weights::Loaded { model, .. } = &self.weights {
            self.weights = Weights::Asleep {
                version: model.version.clone(),
                sha256: model.sha256.clone(),
            };
        }
        self.scratches.fill_with(Scratch::default);
        self.tell();
        let _ = done.send(());
    }

    fn open(&mut self, job: Job) {
        let Weights::Loaded { model, .. } = &self.weights else {
            let _ = job.reply.send(Err(asleep()));
            return;
        };
        let version = &model.version;
        if let Some(wanted) = job.wanted.as_ref().filter(|wanted| *wanted != version) {
            let _ = job.reply.send(Err(ErrorBody::wrong_weights(Some(version), wanted)));
            return;
        }
        let number = self.next_job;
        self.next_job += 1;
        let prompts = job
            .prompts
            .iter()
            .flat_map(|prompt| std::iter::repeat_n(prompt, job.samples as usize));
        let kv_bytes = |prompt: &Vec<u32>| {
            let longest = (prompt.len() + job.max_tokens).min(model.max_context);
            longest.div_ceil(BLOCK_LEN) * model.decoder.block_bytes()
        };
        let rows = prompts.enumerate().map(|(index, prompt)| Row {
            job: number,
            index: index as u32,
            model: model.clone(),
            sequence: Sequence::new(),
            blocks: Vec::new(),
            tokens: prompt.clone(),
            prompt_len: prompt.len(),
            logprobs: Vec::new(),
            logits: Vec::new(),
            reading: 0,
            kv_bytes: kv_bytes(prompt),
        });
        let before = self.waiting.len();
        self.waiting.extend(rows);
        let rows = vec![None; self.waiting.len() - before];
        self.jobs.insert(
            number,
            OpenJob {
                version: version.clone(),
                rows,
                job,
            },
        );
    }

    /// Drops the rows of callers that hung up and of failed jobs.
    fn drop_abandoned_rows(&mut self) {
        self.jobs.retain(|_, open| !open.job.reply.is_closed());
        self.waiting.retain(|row| self.jobs.contains_key(&row.job));
        self.running.retain(|row| self.jobs.contains_key(&row.job));
    }

    /// Rows enter in their order while there are places, and memory for the longest that all of them may become: a row
    /// that runs never has to leave. One that is larger than the memory runs alone.
    fn admit(&mut self) {
        let mut taken: usize = self.running.iter().map(|row| row.kv_bytes).sum();
        while self.running.len() < self.max_rows
            && let Some(row) = self.waiting.front()
            && (self.running.is_empty() || taken.saturating_add(row.kv_bytes) <= self.kv_bytes)
        {
            taken = taken.saturating_add(row.kv_bytes);
            self.running.extend(self.waiting.pop_front());
        }
        self.metrics.kv_bytes.set(taken as i64);
    }

    /// Decides how many tokens each row reads: one if it samples, a share of the budget if it reads its prompt.
    fn plan(&mut self) {
        let mut budget = PROMPT_TOKENS_PER_PASS;
        let mut being_read = HashSet::new();
        let Weights::Loaded { model, prefixes } = &mut self.weights else {
            return;
        };
        for row in &mut self.running {
            row.reading = row.unread();
            if row.reading <= 1 {
                continue;
            }
            let shared = Arc::ptr_eq(&row.model, model);
            if shared && row.sequence.at_block_boundary() {
                let reused = reuse(prefixes, row);
                self.metrics.prefix_tokens.inc_by(reused as u64);
                // Waits for a block that another row is reading now, rather than read it twice.
                let place = piece(&row.tokens, row.sequence.len()).map(|piece| (last_block(row), piece));
                if place.is_some_and(|place| !being_read.insert(place)) {
                    row.reading = 0;
                    continue;
                }
            }
            row.reading = row.unread().min(budget.max(usize::from(row.unread() == 1)));
            budget = budget.saturating_sub(row.reading);
        }
    }

    /// One forward pass per model in use, each over all of its rows.
    fn read(&mut self) {
        let mut models: Vec<Arc<Model>> = Vec::new();
        for row in &self.running {
            if !models.iter().any(|model| Arc::ptr_eq(model, &row.model)) {
                models.push(row.model.clone());
            }
        }
        for model in models {
            let rows = self
                .running
                .iter_mut()
                .filter(|row| row.reading > 0 && Arc::ptr_eq(&row.model, &model));
            let mut chunks: Vec<Chunk<'_>> = rows
                .map(|row| {
                    let (start, to_the_end) = (row.sequence.len(), row.reading == row.unread());
                    Chunk {
                        tokens: &row.tokens[start..start + row.reading],
                        sequence: &mut row.sequence,
                        logits: to_the_end.then_some(&mut row.logits),
                    }
                })
                .collect();
            model.decoder.forward(&mut chunks, &mut self.scratches);
        }
        let Weights::Loaded { model, prefixes } = &mut self.weights else {
            return;
        };
        for row in self.running.iter_mut().filter(|row| row.reading > 0) {
            let shared = Arc::ptr_eq(&row.model, model);
            let (tokens, blocks) = (&row.tokens, &mut row.blocks);
            row.sequence.close_full_blocks(|index, block| {
                let before = index
                    .checked_sub(1)
                    .map_or(Some(0), |before| blocks.get(before).copied());
                match (shared, before, piece(tokens, index * BLOCK_LEN)) {
                    (true, Some(before), Some(piece)) => {
                        let (number, block) = prefixes.share((before, piece), block);
                        blocks.push(number);
                        block
                    }
                    _ => block,
                }
            });
        }
        self.metrics.passes.inc();
    }

    /// Samples the next token of every row that has read all of its tokens.
    fn sample(&mut self) {
        for row in &mut self.running {
            if row.reading == 0 || row.unread() > 0 {
                continue;
            }
            let Some(open) = self.jobs.get(&row.job) else { continue };
            let so_far = SoFar {
                row: row.index,
                tokens: &row.tokens,
                prompt: row.prompt_len,
            };
            match open.job.sampling.sample(&row.logits, so_far) {
                Ok(sampled) => {
                    row.tokens.push(sampled.token);
                    row.logprobs.push(sampled.logprob);
                    self.metrics.generation_tokens.inc();
                }
                Err(error) => {
                    let message = format!(
                        "{error} after {} tokens under weights {}: the weights are broken, load an earlier version",
                        row.tokens.len(),
                        open.version
                    );
                    if let Some(open) = self.jobs.remove(&row.job) {
                        let _ = open
                            .job
                            .reply
                            .send(Err(ErrorBody::new(ErrorCode::NonFiniteLogits, message)));
                    }
                }
            }
        }
        let jobs = &mut self.jobs;
        let metrics = &self.metrics;
        self.running.retain_mut(|row| {
            let Some(open) = jobs.get_mut(&row.job) else {
                return false;
            };
            let Some(answer) = finished(row, &open.job) else {
                return true;
            };
            metrics.prompt_tokens.inc_by(row.prompt_len as u64);
            if let Some(place) = open.rows.get_mut(row.index as usize) {
                *place = Some(answer);
            }
            if open.rows.iter().all(Option::is_some)
                && let Some(done) = jobs.remove(&row.job)
            {
                let rows = done.rows.into_iter().flatten().collect();
                let _ = done.job.reply.send(Ok(Answer {
                    version: done.version,
                    rows,
                }));
            }
            false
        });
    }

    fn tell(&self) {
        let (current, version, sha256) = match &self.weights {
            Weights::Loaded { model, .. } => (Some(model), &model.version, &model.sha256),
            Weights::Asleep { version, sha256 } => (None, version, sha256),
        };
        let mut draining: Vec<String> = Vec::new();
        for row in self.running.iter().chain(&self.waiting) {
            let earlier = current.is_none_or(|current| !Arc::ptr_eq(&row.model, current));
            if earlier && !draining.contains(&row.model.version) {
                draining.push(row.model.version.clone());
            }
        }
        let report = Report {
            version: version.clone(),
            sha256: sha256.clone(),
            draining,
            asleep: current.is_none(),
            running: self.running.len(),
            waiting: self.waiting.len(),
        };
        self.metrics.running.set(report.running as i64);
        *self.report.lock().unwrap_or_else(PoisonError::into_inner) = report;
    }
}

/// Limits of the scheduler.
pub struct SchedulerLimits {
    pub max_rows: usize,
    pub threads: usize,
    pub prefix_bytes: usize,
    /// For keys and values of running rows.
    pub kv_bytes: usize,
}

/// Lets a row reuse the cached blocks of its prompt. At least one token is left to read, for its logits.
fn reuse(prefixes: &mut PrefixCache, row: &mut Row) -> usize {
    let before = row.sequence.len();
    while row.unread() > BLOCK_LEN
        && let Some(piece) = piece(&row.tokens, row.sequence.len())
        && let Some((number, block)) = prefixes.find(&(last_block(row), piece))
        && row.sequence.adopt(block)
    {
        row.blocks.push(number);
    }
    row.sequence.len() - before
}

fn last_block(row: &Row) -> BlockNumber {
    row.blocks.last().copied().unwrap_or(0)
}

/// The row's answer, if its last token ended it.
fn finished(row: &mut Row, job: &Job) -> Option<AnswerRow> {
    let sampled = row.tokens.len() - row.prompt_len;
    let last = *row.tokens.last().filter(|_| sampled > 0 && row.unread() > 0)?;
    let asked_to_stop = job.stop_tokens.contains(&last);
    let ended = !job.ignore_eos && row.model.end_tokens.contains(&last);
    let finish = match (asked_to_stop || ended, sampled >= job.max_tokens) {
        (true, _) => FinishReason::Stop,
        (false, true) => FinishReason::Length,
        (false, false) => return None,
    };
    Some(AnswerRow {
        tokens: row.tokens.split_off(row.prompt_len),
        logprobs: std::mem::take(&mut row.logprobs),
        finish,
        stop_token: (finish == FinishReason::Stop).then_some(last),
    })
}
