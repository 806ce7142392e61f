//! The arguments of `kubectl grpo`, checked before any request to a cluster.

mod names;
pub mod plan;
pub mod tools;
pub mod ui;

pub use self::names::run_name;

use self::names::set_name;
use self::plan::{Complete, Completion, PlanOptions, Wait};
use self::tools::{Copy, Prepull, Tasks, Validated};
use self::ui::Ui;
use clap::{Args, Parser, Subcommand, ValueEnum};
use grpo_records::Outcome;
use jiff::SignedDuration;
use std::path::PathBuf;

/// GrpoRuns (grpo.dev) for people.
#[derive(Parser, Debug)]
#[command(name = "kubectl grpo", bin_name = "kubectl grpo", version)]
pub struct Arguments {
    #[command(flatten)]
    pub cluster: ClusterOptions,
    #[command(subcommand)]
    pub what: What,
}

/// Which cluster and namespace, as kubectl's own options say it.
#[derive(Args, Debug, Default)]
pub struct ClusterOptions {
    /// Namespace of the run. Default: that of the kubeconfig's context.
    #[arg(long, short, global = true)]
    pub namespace: Option<String>,
    /// Context of the kubeconfig.
    #[arg(long, global = true)]
    pub context: Option<String>,
    /// The kubeconfig. Default: $KUBECONFIG, or ~/.kube/config.
    #[arg(long, global = true)]
    pub kubeconfig: Option<PathBuf>,
}

#[derive(Subcommand, Debug)]
pub enum What {
    /// Where a run is, how it goes, and what it waits for; without a name, all runs.
    Status(Status),
    /// Episodes with their outcomes. Without --iteration or --set: the newest iteration.
    Episodes(Episodes),
    /// One episode turn by turn: prompt, the policy's words, what came back, verdict, patch.
    Show(Show),
    /// A viewer in the browser: curves, iterations, groups, episodes token by token. Or a folder with all of it.
    Ui(Ui),
    /// Logs of all parts of a run, interleaved by time.
    Logs(Logs),
    /// What would become of manifests: whether they are accepted, pods with GPUs, memory, downloads, disk, and nodes
    /// where they fit. Nothing is created, and no cluster is needed.
    Plan(PlanOptions),
    /// What a reason of a condition, event, fault or void means, its cause and the next step; without a reason, all of
    /// them. No cluster is needed.
    Explain(Explain),
    /// Runs side by side: fields of their specs that differ, results, evaluations.
    Compare(Compare),
    /// Wait until a run has ended. Exit status 0: it succeeded; 3: it failed; 4: it has not ended after --timeout.
    Wait(Wait),
    /// Ids, images and rows that a run has or would have, and the rows that are skipped.
    Tasks(Tasks),
    /// The tasks that a run of mode Validate found fit, as a list for `select.instanceIds`; the others are comments in
    /// it, with what was found.
    Validated(Validated),
    /// Have nodes pull images before a run needs them.
    Prepull(Prepull),
    /// Copy records and weights out of a run's store.
    Copy(Copy),
    /// Write one sample of each task in the files of other projects: preds.json and predictions.jsonl, which swebench
    /// reads, <id>/<id>.traj.json of mini-swe-agent, <id>/trajectory.json (ATIF). Without --iteration or --set: the
    /// newest iteration.
    Export(Export),
    /// A script by which a shell completes commands and flags: `source <(kubectl grpo completion bash)`.
    Completion(Completion),
    /// What may follow on a command line, for kubectl's completion.
    #[command(hide = true)]
    Complete(Complete),
}

#[derive(Args, Debug)]
pub struct Status {
    #[arg(value_parser = run_name)]
    pub run: Option<String>,
    /// Runs of all namespaces.
    #[arg(long, short = 'A', conflicts_with = "run")]
    pub all_namespaces: bool,
    /// Show it again whenever it changes, until the run is over.
    #[arg(long, short, requires = "run")]
    pub watch: bool,
}

#[derive(Args, Debug)]
pub struct Explain {
    /// As `kubectl describe` shows it, such as StoreMissing; upper and lower case are alike.
    pub reason: Option<String>,
}

#[derive(Args, Debug)]
pub struct Compare {
    /// Two runs or more.
    #[arg(value_parser = run_name, num_args = 2..=8, required = true, value_name = "RUN")]
    pub runs: Vec<String>,
}

/// Where records are read.
#[derive(Args, Debug, Default)]
pub struct RecordsOptions {
    /// A folder with a copy of the run's store (it contains journal/) instead of a cluster.
    #[arg(long, value_name = "DIR")]
    pub from: Option<PathBuf>,
    /// Image for the pod that reads the store of a run without a driver. Default: that of the run's last driver.
    #[arg(long, value_name = "IMAGE")]
    pub reader_image: Option<String>,
}

/// Which part of a run.
#[derive(Args, Debug, Default, Clone)]
pub struct Part {
    /// Episodes of this iteration.
    #[arg(long, value_name = "N", conflicts_with = "set")]
    pub iteration: Option<u32>,
    /// Episodes of this set of tasks.evaluate.
    #[arg(long, value_name = "NAME", value_parser = set_name)]
    pub set: Option<String>,
    /// Only evaluations of this version of the weights.
    #[arg(long, value_name = "VERSION", requires = "set", value_parser = set_name)]
    pub weights: Option<String>,
}

#[derive(Args, Debug)]
pub struct Episodes {
    #[arg(value_parser = run_name, required_unless_present = "from")]
    pub run: Option<String>,
    #[command(flatten)]
    pub part: Part,
    /// Only these outcomes.
    #[arg(long, value_delimiter = ',')]
    pub outcome: Vec<Wanted>,
    /// At most so many rows.
    #[arg(long, default_value_t = 200)]
    pub limit: usize,
    #[command(flatten)]
    pub records: RecordsOptions,
}

#[derive(Args, Debug)]
pub struct Show {
    /// The run, and any part of the episode's name or folder that names it. With --from the run may be left out.
    #[arg(value_names = ["RUN", "EPISODE"], num_args = 1..=2, required = true)]
    pub names: Vec<String>,
    #[command(flatten)]
    pub part: Part,
    /// Every sampled token id with its logprob, too.
    #[arg(long)]
    pub tokens: bool,
    /// What the judge of turns said on each of them, word by word, too.
    #[arg(long)]
    pub votes: bool,
    #[command(flatten)]
    pub records: RecordsOptions,
}

impl Show {
    /// The run, if one is needed, and the text that identifies the episode.
    pub fn checked(&self) -> Result<(Option<String>, String), String> {
        match (self.names.as_slice(), &self.records.from) {
            ([episode], Some(_)) => Ok((None, episode_words(episode)?)),
            ([run, episode], _) => Ok((Some(run_name(run)?), episode_words(episode)?)),
            _ => Err("name a run and an episode: `kubectl grpo show RUN EPISODE`; `kubectl grpo episodes RUN` lists episodes".into()),
        }
    }
}

#[derive(Args, Debug)]
pub struct Export {
    /// The run, and a folder of this machine. With --from the run may be left out.
    #[arg(value_names = ["RUN", "DEST"], num_args = 1..=2, required = true)]
    pub names: Vec<String>,
    #[command(flatten)]
    pub part: Part,
    /// Which sample of each task, from 0.
    #[arg(long, value_name = "K", default_value_t = 0)]
    pub sample: u32,
    /// A dataset for finetune.dataset of mode Finetune in place of these files: DEST/messages.jsonl or
    /// DEST/tokens.jsonl, with all samples that have a verdict.
    #[arg(long, value_enum, conflicts_with = "sample")]
    pub format: Option<DatasetFormat>,
    #[command(flatten)]
    pub records: RecordsOptions,
}

/// The form of a dataset's rows.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum DatasetFormat {
    /// Messages and tools, for any model.
    Messages,
    /// The recorded ids and their mask, for a model with the same tokenizer and chat template.
    Tokens,
}

impl DatasetFormat {
    /// The file's name.
    pub fn file(self) -> &'static str {
        match self {
            Self::Messages => "messages.jsonl",
            Self::Tokens => "tokens.jsonl",
        }
    }
}

impl Export {
    /// The run, if one is needed, and the folder.
    pub fn checked(&self) -> Result<(Option<String>, PathBuf), String> {
        match (self.names.as_slice(), &self.records.from) {
            ([dest], Some(_)) => Ok((None, dest.into())),
            ([run, dest], _) => Ok((Some(run_name(run)?), dest.into())),
            _ => Err("name a run and a folder: `kubectl grpo export RUN DEST`".into()),
        }
    }
}

#[derive(Args, Debug)]
pub struct Logs {
    #[arg(value_parser = run_name)]
    pub run: String,
    /// Go on as lines are written, and with pods that come later.
    #[arg(long, short)]
    pub follow: bool,
    /// Only lines of the last while, such as 10m.
    #[arg(long, value_parser = while_ago)]
    pub since: Option<SignedDuration>,
    /// Of each part only the last lines.
    #[arg(long)]
    pub tail: Option<u32>,
    /// Only these parts: driver, trainer, engine, agent, gateway.
    #[arg(long, value_delimiter = ',')]
    pub part: Vec<LogPart>,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogPart {
    Driver,
    Trainer,
    Engine,
    Agent,
    Gateway,
}

/// An outcome as one asks for it.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    Resolved,
    Unresolved,
    Void,
    /// Without a verdict yet, or given up.
    Unfinished,
}

impl Wanted {
    pub fn is(self, outcome: Option<&Outcome>) -> bool {
        match self {
            Self::Resolved => outcome == Some(&Outcome::Resolved),
            Self::Unresolved => outcome == Some(&Outcome::Unresolved),
            Self::Void => matches!(outcome, Some(Outcome::Void { .. })),
            Self::Unfinished => outcome.is_none(),
        }
    }
}

/// Part of an episode's folder.
pub fn episode_words(text: &str) -> Result<String, String> {
    let plain = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'_' | b'-' | b'/');
    let climbs = text.split('/').any(|part| part == "..");
    match !text.is_empty() && text.len() <= 512 && text.bytes().all(plain) && !climbs {
        true => Ok(text.to_owned()),
        false => Err(format!(
            "{text:?} names no episode: a name looks like psf__requests-1__g0__i3, a folder like rollouts/iter-000003/psf__requests-1__g0__i3"
        )),
    }
}

fn while_ago(text: &str) -> Result<SignedDuration, String> {
    let wrong = || "a duration looks like 30s, 10m or 1h30m".to_owned();
    let duration: SignedDuration = text.parse().map_err(|_| wrong())?;
    match duration.is_positive() {
        true => Ok(duration),
        false => Err(wrong()),
    }
}

#[cfg(test)]
mod tests;
