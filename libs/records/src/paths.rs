//! The paths below a run's root. No other module of any process writes out a path of the store.

use crate::scope::EpisodeScope;

/// The folder of the journal.
pub const JOURNAL: &str = "journal";
pub const ROLLOUTS: &str = "rollouts";
pub const EVALUATIONS: &str = "evaluations";
pub const BATCHES: &str = "batches";
/// Rows of mode Finetune.
pub const CONVERSATIONS: &str = "conversations";
pub const CHECKPOINTS: &str = "checkpoints";
pub const WEIGHTS: &str = "weights";
/// The trainer's ranks write unnamed files here, in a folder for each claim.
pub const STAGING: &str = ".staging";
/// The rows of the hub that a run reads.
pub const DATASETS: &str = "datasets";
/// The files of a hub model that a run reads.
pub const MODELS: &str = "models";
/// Reports on how the rows of each set became tasks.
pub const TASKS: &str = "tasks";
/// Results of mode Validate: a record for each task, a list for each set.
pub const VALIDATION: &str = "validation";
/// Files downloaded from the hub.
pub const HUB: &str = "hub";
/// The checkpoint of another run that the run began with.
pub const RESUMED: &str = "resumed.json";
/// TensorBoard event files, one for each attempt of the trainer.
pub const TENSORBOARD: &str = "tensorboard";
/// Metrics of driver and trainer, a file for each iteration or step.
pub const METRICS: &str = "metrics";
/// The driver's part of [`METRICS`], a file for each iteration.
pub const DRIVER_METRICS: &str = "metrics/driver";
/// The trainer's part of [`METRICS`], a file for each step.
pub const TRAINER_METRICS: &str = "metrics/trainer";
/// What the trainer computed for each sampled token, a file for each step.
pub const TOKEN_STATS: &str = "tokens";
/// Files for Weights & Biases, one folder for each attempt of the driver.
pub const WANDB: &str = "wandb";
/// The manifest's name in a folder of weights or of a checkpoint; it is written last.
pub const MANIFEST: &str = "manifest.json";

/// `key`: identifies the split.
pub fn dataset(key: &str) -> String {
    format!("{DATASETS}/{key}.json")
}

/// `key`: identifies the model and its revision.
pub fn model(key: &str) -> String {
    format!("{MODELS}/{key}.json")
}

/// Which rows of a set became tasks, and which were skipped.
pub fn task_report(set: &str) -> String {
    format!("{TASKS}/{set}.json")
}

/// The rows that graders receive, if they differ from the dataset's.
pub fn task_rows(set: &str) -> String {
    format!("{TASKS}/{set}.jsonl")
}

/// The findings of mode Validate for a task.
pub fn validation(set: &str, instance: &str) -> String {
    format!("{VALIDATION}/{set}/{instance}.json")
}

/// The tasks of a set that are fit, for `select.instanceIds`.
pub fn validated_ids(set: &str) -> String {
    format!("{VALIDATION}/{set}.txt")
}

/// The base commit for a task's patches, if its row names none. `key`: identifies the row.
pub fn task_base(key: &str) -> String {
    format!("{TASKS}/bases/{key}")
}

pub fn journal_entry(sequence: u64) -> String {
    format!("{JOURNAL}/{sequence:010}.json")
}

/// The folder of all episodes of an iteration or an evaluation.
pub fn scope(scope: &EpisodeScope) -> String {
    match scope {
        EpisodeScope::Iteration { iteration } => format!("{ROLLOUTS}/iter-{iteration:06}"),
        EpisodeScope::Evaluation { set, weights } => format!("{EVALUATIONS}/{set}/{weights}"),
    }
}

/// The folder of one attempt of an episode.
pub fn episode(of: &EpisodeScope, name: &str, attempt: u32) -> String {
    match attempt {
        0 | 1 => format!("{}/{name}", scope(of)),
        later => format!("{}/{name}__t{later}", scope(of)),
    }
}

/// The scope of a folder. Only paths that [`scope`] writes are accepted, so a path cannot leave the run's root.
pub fn parse_scope(path: &str) -> Option<EpisodeScope> {
    let parts: Vec<&str> = path.split('/').collect();
    let found = match parts.as_slice() {
        [ROLLOUTS, folder] => EpisodeScope::Iteration {
            iteration: folder.strip_prefix("iter-")?.parse().ok()?,
        },
        [EVALUATIONS, set, weights] if is_plain_name(set) && is_plain_name(weights) => EpisodeScope::Evaluation {
            set: (*set).to_owned(),
            weights: (*weights).to_owned(),
        },
        _ => return None,
    };
    (scope(&found) == path).then_some(found)
}

/// The scope and the name of the episode attempt of a folder.
pub fn parse_episode(path: &str) -> Option<(EpisodeScope, &str)> {
    let (of, name) = path.rsplit_once('/')?;
    is_plain_name(name).then_some((parse_scope(of)?, name))
}

pub fn turns(episode: &str) -> String {
    format!("{episode}/turns")
}

pub fn turn(episode: &str, turn: u32) -> String {
    format!("{episode}/turns/{turn:03}.json")
}

/// The folder of answers that were recorded before their actions were run.
pub fn intents(episode: &str) -> String {
    format!("{episode}/intents")
}

/// A turn, recorded before its action is run under this lease.
pub fn intent(episode: &str, turn: u32, lease: &str) -> String {
    format!("{episode}/intents/{turn:03}-{lease}.json")
}

/// The folder of what images had changed when an attempt began.
pub fn starts(episode: &str) -> String {
    format!("{episode}/starts")
}

/// How the tree of this lease's sandbox differed from the base commit before the first turn.
pub fn start(episode: &str, lease: &str) -> String {
    format!("{episode}/starts/{lease}.diff")
}

/// The experts that computed a turn's tokens. Each answer to the turn has its own file.
pub fn experts(episode: &str, turn: u32, sha256: &str) -> String {
    let content = sha256.get(..16).unwrap_or(sha256);
    format!("{episode}/experts/{turn:03}-{content}.bin")
}

/// How the agent ended, until the episode's record has it.
pub fn agent_end(episode: &str) -> String {
    format!("{episode}/end.json")
}

pub fn trajectory(episode: &str) -> String {
    format!("{episode}/traj.json")
}

/// The token ids of an ended episode.
pub fn rows(episode: &str) -> String {
    format!("{episode}/rows.safetensors")
}

pub fn patch(episode: &str) -> String {
    format!("{episode}/patch.diff")
}

pub fn grade_log(episode: &str) -> String {
    format!("{episode}/grade.log")
}

/// The folder of the votes on an episode's turns.
pub fn judge(episode: &str) -> String {
    format!("{episode}/judge")
}

/// The votes on a turn.
pub fn judged(episode: &str, turn: u32) -> String {
    format!("{episode}/judge/{turn:03}.json")
}

/// The reward service's answer for the episode.
pub fn reward(episode: &str) -> String {
    format!("{episode}/reward.json")
}

/// The verdict on an episode whose record is not written yet.
pub fn verdict(episode: &str) -> String {
    format!("{episode}/verdict.json")
}

pub fn meta(episode: &str) -> String {
    format!("{episode}/meta.json")
}

/// Conversations that a step of mode Finetune trains on.
pub fn conversations(step: u32) -> String {
    format!("{CONVERSATIONS}/step-{step:06}.safetensors")
}

/// Held-out conversations: they are not trained on.
pub fn held_out() -> String {
    format!("{CONVERSATIONS}/held-out.safetensors")
}

/// True only for the path of a conversations file inside the store.
pub fn is_conversations(path: &str) -> bool {
    let number = path
        .strip_prefix(CONVERSATIONS)
        .and_then(|rest| rest.strip_prefix("/step-")?.strip_suffix(".safetensors"));
    let step = number.and_then(|number| number.parse().ok());
    path == held_out() || step.is_some_and(|step| conversations(step) == path)
}

pub fn batch(step: u32) -> String {
    format!("{BATCHES}/step-{step:06}.json")
}

pub fn driver_metrics(iteration: u32) -> String {
    format!("{DRIVER_METRICS}/{iteration:06}.json")
}

pub fn trainer_metrics(step: u32) -> String {
    format!("{TRAINER_METRICS}/{step:06}.json")
}

pub fn token_stats(step: u32) -> String {
    format!("{TOKEN_STATS}/step-{step:06}.safetensors")
}

/// `<lineage>-v<step>`: the name of a weights version everywhere.
pub fn weights_version(lineage: &str, step: u32) -> String {
    format!("{lineage}-v{step}")
}

/// `l7` is 7. Lineages are numbered, so the newest is known.
pub fn lineage_number(lineage: &str) -> u32 {
    lineage.strip_prefix('l').and_then(|n| n.parse().ok()).unwrap_or(0)
}

/// The step that published a version.
pub fn step_of_weights(version: &str) -> Option<u32> {
    version.rsplit_once("-v")?.1.parse().ok()
}

pub fn weights(version: &str) -> String {
    format!("{WEIGHTS}/{version}")
}

pub fn weights_file(version: &str, name: &str) -> String {
    format!("{WEIGHTS}/{version}/{name}")
}

pub fn weights_manifest(version: &str) -> String {
    weights_file(version, MANIFEST)
}

pub fn checkpoint(lineage: &str, step: u32) -> String {
    format!("{CHECKPOINTS}/{lineage}-s{step:06}")
}

pub fn checkpoint_rank(lineage: &str, step: u32, rank: u32, of: u32) -> String {
    format!("{}/rank-{rank}-of-{of}.safetensors", checkpoint(lineage, step))
}

pub fn checkpoint_manifest(lineage: &str, step: u32) -> String {
    format!("{}/{MANIFEST}", checkpoint(lineage, step))
}

/// True for a name that is safe as one part of a path: letters, digits, `.`, `_`, `-`.
pub fn is_plain_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= 200
        && !name.starts_with('.')
        && name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
}
