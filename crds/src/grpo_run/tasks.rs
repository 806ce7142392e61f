//! What the agent works on: datasets, and which of their rows.

use kube::{KubeSchema, core::Rule};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    cel,
    common::ConfigMapKeyRef,
    sources::{ClaimSource, HubDataset, ImageSource, ObjectStoreSource},
};

/// What the agent works on.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = cel::immutable(&["train?"], "tasks.train is immutable: make another run"),
    validation = cel::rule("(has(self.evaluate) ? self.evaluate.size() : 0) == (has(oldSelf.evaluate) ? oldSelf.evaluate.size() : 0) && (!has(self.evaluate) || self.evaluate.all(set, oldSelf.evaluate.exists(old, old.name == set.name)))", "tasks.evaluate keeps its sets, of which only every, atStart and atEnd may change; measure another set with a run of mode Evaluate")
)]
pub struct Tasks {
    /// Tasks that are trained on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub train: Option<TaskSet>,
    /// Named fixed sets that are only measured. A set is never evaluated twice for one version of the weights.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub evaluate: Vec<EvaluationSet>,
}

/// Tasks that are trained on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = kod_code_needs_an_image())]
pub struct TaskSet {
    /// Rows, one task each.
    pub dataset: Dataset,
    /// What the rows are; see `format` of a set in `evaluate`.
    #[serde(default)]
    pub format: RowFormat,
    /// Image of the tasks whose rows name none; see `image` of a set in `evaluate`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub image: Option<String>,
    /// Which of the rows.
    #[serde(default)]
    pub select: Select,
    /// Other problem statements than the rows have; see `promptOverrides` of a set in `evaluate`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_overrides: Option<PromptOverrides>,
    /// Hidden fields of the rows that prompts may show; see `promptFields` of a set in `evaluate`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 6))]
    pub prompt_fields: Vec<HiddenField>,
    /// Shuffled: another order in every pass, drawn from `seed`. InOrder: as in the file.
    #[serde(default)]
    pub order: TaskOrder,
    /// Seed of the order. Default: the run's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 9007199254740991i64))]
    pub seed: Option<u64>,
}

/// A named fixed set that is only measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = kod_code_needs_an_image(), validation = cel::immutable(&["dataset", "format", "image?", "select", "promptOverrides?", "promptFields?", "samples", "seed?"], "of a set in tasks.evaluate only every, atStart and atEnd may change: give what differs another name in another run"))]
pub struct EvaluationSet {
    /// Its name, in status, store and metrics.
    #[schemars(length(min = 1, max = 63), regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub name: String,
    /// Rows, one task each.
    pub dataset: Dataset,
    /// What the rows are. Compiled: with image, eval script, log parser and lists of tests. SweBench, SweGym, R2E,
    /// SweSmith, SweRebench, SweRebenchV2, SweBenchLive, KodCode: as those datasets publish them; they are completed
    /// when the run begins, and the completed rows are kept in the store. Auto: told from the columns of each row.
    #[serde(default)]
    pub format: RowFormat,
    /// Image of the tasks whose rows name none. Rows of KodCode name none: they need Python, pytest, git and the
    /// packages that the rows import. Left out: each format has its publisher's rule for the names of images.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub image: Option<String>,
    /// Which of the rows.
    #[serde(default)]
    pub select: Select,
    /// Problem statements in the place of those that rows have, by the names of tasks. Tasks that are not named
    /// keep theirs. What was shown is kept in the store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_overrides: Option<PromptOverrides>,
    /// Fields that templates of prompts may use although they give the answer away, such as the test patch. Left out:
    /// none of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 6))]
    pub prompt_fields: Vec<HiddenField>,
    /// Episodes per task; `kubectl grpo export` computes pass@k for every k up to it.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 256))]
    pub samples: u32,
    /// Seed of the sampling. Default: the run's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 9007199254740991i64))]
    pub seed: Option<u64>,
    /// After every so many iterations. Left out: only at start and end, as said below.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000000))]
    pub every: Option<u32>,
    /// Before the first iteration, under the base weights.
    #[serde(default)]
    pub at_start: bool,
    /// After the last iteration.
    #[serde(default = "yes")]
    pub at_end: bool,
}

/// The publisher has no images: the rows are files alone.
fn kod_code_needs_an_image() -> Rule {
    Rule::new("self.format != 'KodCode' || has(self.image)").message(
        "format is KodCode, whose rows name no image: set image beside format to an image with Python, pytest and git",
    )
}

fn one() -> u32 {
    1
}

fn yes() -> bool {
    true
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub enum TaskOrder {
    #[default]
    Shuffled,
    InOrder,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub enum RowFormat {
    #[default]
    Auto,
    Compiled,
    SweBench,
    SweGym,
    R2E,
    KodCode,
    SweSmith,
    SweRebench,
    SweRebenchV2,
    SweBenchLive,
}

/// Problem statements by task: exactly one of the fields.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = cel::exactly_one(&["configMapRef", "dataset"]))]
pub struct PromptOverrides {
    /// A text of a ConfigMap: a JSON object of names and statements, or rows as in a file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map_ref: Option<ConfigMapKeyRef>,
    /// A file of rows `{instance_id, problem_statement}`; other columns are ignored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dataset: Option<Dataset>,
}

/// A field of a row that gives the answer away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum HiddenField {
    #[serde(rename = "patch")]
    Patch,
    #[serde(rename = "test_patch")]
    TestPatch,
    #[serde(rename = "FAIL_TO_PASS")]
    FailToPass,
    #[serde(rename = "PASS_TO_PASS")]
    PassToPass,
    #[serde(rename = "eval_script")]
    EvalScript,
    #[serde(rename = "setup")]
    Setup,
}

impl HiddenField {
    pub const ALL: [Self; 6] = [
        Self::Patch,
        Self::TestPatch,
        Self::FailToPass,
        Self::PassToPass,
        Self::EvalScript,
        Self::Setup,
    ];

    /// Its name in a row.
    pub fn name(self) -> &'static str {
        match self {
            Self::Patch => "patch",
            Self::TestPatch => "test_patch",
            Self::FailToPass => "FAIL_TO_PASS",
            Self::PassToPass => "PASS_TO_PASS",
            Self::EvalScript => "eval_script",
            Self::Setup => "setup",
        }
    }
}

/// A file of rows, as JSON lines or Parquet: exactly one of the fields.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = cel::exactly_one(&["image", "persistentVolumeClaim", "hub", "objectStore"]),
    validation = Rule::new("(!has(self.image) || has(self.image.path)) && (!has(self.persistentVolumeClaim) || has(self.persistentVolumeClaim.path))").message("path is missing: it names the file with the rows, for example path: train.jsonl")
)]
pub struct Dataset {
    /// The file lies in an image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<ImageSource>,
    /// The file lies on a volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub persistent_volume_claim: Option<ClaimSource>,
    /// A split of a dataset of the Hugging Face Hub. It is downloaded once, into the run's store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hub: Option<HubDataset>,
    /// A file of an object store. It is downloaded once, into the run's store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object_store: Option<ObjectStoreSource>,
}

/// Which rows of a dataset: those that pass every filter, then in the order of `shuffleSeed`, then `slice`, then
/// `limit`.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = cel::rule("!has(self.repo) || !has(self.repos)", "give repo or repos, not both"))]
pub struct Select {
    /// Only these tasks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance_ids: Option<InstanceIds>,
    /// Not these tasks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exclude: Option<InstanceIds>,
    /// Only tasks whose whole name matches this regular expression, for example `django__django-1[12].*`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1000))]
    pub pattern: Option<String>,
    /// Only tasks of this repository, for example `django/django`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 200))]
    pub repo: Option<String>,
    /// Only tasks of these repositories.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 100), inner(length(min = 1, max = 200)))]
    pub repos: Option<Vec<String>>,
    /// Shuffles the rows by this seed before `slice` and `limit`. Left out: they are in the order of the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 9007199254740991i64))]
    pub shuffle_seed: Option<u64>,
    /// A share of the rows: several runs each take one, without overlap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slice: Option<Slice>,
    /// At most so many, the first of what is left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10000000))]
    pub limit: Option<u32>,
}

/// Every `of`-th row from row `index` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = cel::rule("self.index < self.of", "index counts from 0 and is less than of"))]
pub struct Slice {
    /// Which share, from 0.
    #[schemars(range(min = 0, max = 9999))]
    pub index: u32,
    /// How many shares there are.
    #[schemars(range(min = 1, max = 10000))]
    pub of: u32,
}

/// Names of tasks: exactly one of the fields.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = cel::exactly_one(&["inline", "configMapRef"]))]
pub struct InstanceIds {
    /// The names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1000), inner(length(min = 1, max = 200)))]
    pub inline: Option<Vec<String>>,
    /// A text of a ConfigMap, one name a line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map_ref: Option<ConfigMapKeyRef>,
}
