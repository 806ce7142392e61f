//! The arguments of the commands for the time before and after a run: tasks, validated, prepull, copy.

use super::RecordsOptions;
use super::names::{duration, run_name, set_name};
use clap::{Args, ValueEnum};
use grpo_contracts::task_sets::{TRAIN, evaluation};
use std::path::PathBuf;
use std::time::Duration;

/// A run of the cluster, or the manifest of one.
#[derive(Args, Debug, Default)]
#[group(multiple = false)]
pub struct RunOrFile {
    #[arg(value_parser = run_name)]
    pub run: Option<String>,
    /// The manifest of a run, or - for standard input. No run is started.
    #[arg(long, short, value_name = "FILE")]
    pub file: Option<PathBuf>,
}

#[derive(Args, Debug, Default)]
pub struct Tasks {
    #[command(flatten)]
    pub of: RunOrFile,
    /// Only this set: train, or the name of one of tasks.evaluate. May be given several times. Default: all.
    #[arg(long, value_name = "NAME", value_parser = task_set)]
    pub set: Vec<String>,
    #[arg(long, short, value_enum, default_value_t)]
    pub output: Form,
    /// Write to this file. It gets its name when it is whole.
    #[arg(long, value_name = "FILE", default_value = "-")]
    pub out: PathBuf,
    /// The operator's driver image, for the pod that reads. Default: that of a driver in the namespace, or that of the
    /// operator.
    #[arg(long, value_name = "IMAGE")]
    pub reader_image: Option<String>,
}

#[derive(Args, Debug, Default)]
pub struct Validated {
    #[arg(value_parser = run_name, required_unless_present = "from")]
    pub run: Option<String>,
    /// The list of this set: train, or the name of one of tasks.evaluate. Default: the only one that there is.
    #[arg(long, value_name = "NAME", value_parser = task_set)]
    pub set: Option<String>,
    /// Write to this file. It gets its name when it is whole.
    #[arg(long, value_name = "FILE", default_value = "-")]
    pub out: PathBuf,
    #[command(flatten)]
    pub records: RecordsOptions,
}

#[derive(Args, Debug)]
pub struct Prepull {
    #[command(flatten)]
    pub of: RunOrFile,
    /// A file with one image a line, or - for standard input. Lines that begin with # are comments.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["run", "file"])]
    pub images: Option<PathBuf>,
    /// Only nodes with these labels. Default: the nodeSelector of the pool's sandboxes, or all nodes.
    #[arg(long, short = 'l', value_name = "LABELS")]
    pub selector: Option<String>,
    /// Images that a node pulls at the same time.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub parallel: u32,
    /// How often a pull that failed is tried again.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(0..=100))]
    pub retries: u32,
    /// All images have to be there by then.
    #[arg(long, value_name = "DURATION", default_value = "2h", value_parser = duration)]
    pub deadline: Duration,
    /// A Secret with which images are pulled, beside those of the pool. May be given several times.
    #[arg(long, value_name = "NAME")]
    pub pull_secret: Vec<String>,
    /// The operator's driver image, for a pod that reads the tasks of the run.
    #[arg(long, value_name = "IMAGE")]
    pub reader_image: Option<String>,
}

#[derive(Args, Debug)]
pub struct Copy {
    #[arg(value_parser = run_name)]
    pub run: String,
    /// A folder of this machine. A call that was broken off continues where it was.
    pub dest: PathBuf,
    /// Episodes of iterations and evaluations.
    #[arg(long)]
    pub episodes: bool,
    /// What driver and trainer counted, and the files of TensorBoard.
    #[arg(long)]
    pub metrics: bool,
    /// Reports of the sets, their completed rows, and which files of the hub or a bucket were read.
    #[arg(long)]
    pub rows: bool,
    /// A version of the weights. Without a name: the newest.
    #[arg(long, value_name = "VERSION", num_args = 0..=1, default_missing_value = LATEST, value_parser = set_name)]
    pub weights: Option<String>,
    /// What the weights have to be.
    #[arg(long, value_enum, requires = "weights")]
    pub format: Option<WeightsFormat>,
    /// The folder with the model that an adapter belongs to, for --format merged.
    #[arg(long, value_name = "DIR", requires = "format")]
    pub base: Option<PathBuf>,
    /// The operator's driver image, for the pod that reads the store of a run without a driver.
    #[arg(long, value_name = "IMAGE")]
    pub reader_image: Option<String>,
}

/// How tasks are shown.
#[derive(ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Form {
    /// Each set with its numbers, and the skipped rows with their causes.
    #[default]
    Table,
    /// The same with the id and the image of each task.
    Json,
    /// The id of each task, one a line, as `select.instanceIds` takes them.
    Ids,
    /// Each image once, one a line, as nodes pull it: `imageRewrites` of the pool are applied.
    Images,
    /// Rows as graders get them, one JSON object a line.
    Rows,
}

impl Form {
    /// Whether the command needs rows, or only reports.
    pub fn needs_rows(self) -> bool {
        self != Self::Table
    }
}

/// The version that `--weights` without a name selects.
pub const LATEST: &str = "latest";

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightsFormat {
    /// Files of PEFT: adapter_config.json and adapter_model.safetensors.
    Adapter,
    /// A whole model as transformers reads it.
    Hf,
    /// An adapter, added to the weights of its base model.
    Merged,
}

/// A set's name, as reports have it.
fn task_set(text: &str) -> Result<String, String> {
    let name = text.strip_prefix("tasks.").unwrap_or(text);
    let name = name.strip_prefix("evaluate.").unwrap_or(name);
    set_name(name).map(|name| match name.as_str() {
        TRAIN if text != evaluation(TRAIN) => name,
        _ => evaluation(&name),
    })
}

#[cfg(test)]
mod tests;
