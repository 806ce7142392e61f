//! Where everything lies below a run's root. No other module of any process spells a path of the store.

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
/// Where the trainer's ranks write what has no name yet, a folder each.
pub const STAGING: &str = ".staging";
/// Which rows of the hub a run reads.
pub const DATASETS: &str = "datasets";
/// Which files of a model of the hub a run reads.
pub const MODELS: &str = "models";
/// What was made of the rows of each set.
pub const TASKS: &str = "tasks";
/// What mode Validate found: a record for each task, a list for each set.
pub const VALIDATION: &str = "validation";
/// Files downloaded from the hub.
pub const HUB: &str = "hub";
/// The checkpoint of another run that the run began with.
pub const RESUMED: &str = "resumed.json";
/// What TensorBoard reads, a file an attempt of the trainer.
pub const TENSORBOARD: &str = "tensorboard";
/// What driver and trainer counted, a file an iteration or a step.
pub const METRICS: &str = "metrics";
/// The name of the manifest in a folder of weights or of a checkpoint; it is written last.
pub const MANIFEST: &str = "manifest.json";

/// `key`: of the split that is read.
pub fn dataset(key: &str) -> String {
    format!("{DATASETS}/{key}.json")
}

/// `key`: of the model and its revision.
pub fn model(key: &str) -> String {
    format!("{MODELS}/{key}.json")
}

/// Which rows of a set became tasks, and which were skipped.
pub fn task_report(set: &str) -> String {
    format!("{TASKS}/{set}.json")
}

/// The rows that graders were given, where they are not those of the dataset.
pub fn task_rows(set: &str) -> String {
    format!("{TASKS}/{set}.jsonl")
}

/// What mode Validate found of a task.
pub fn validation(set: &str, instance: &str) -> String {
    format!("{VALIDATION}/{set}/{instance}.json")
}

/// The tasks of a set that are fit, for `select.instanceIds`.
pub fn validated_ids(set: &str) -> String {
    format!("{VALIDATION}/{set}.txt")
}

/// The commit that patches of a task are taken against, where its row names none. `key`: of the row.
pub fn task_base(key: &str) -> String {
    format!("{TASKS}/bases/{key}")
}

pub fn journal_entry(sequence: u64) -> String {
    format!("{JOURNAL}/{sequence:010}.json")
}

/// The folder of everything an iteration or an evaluation rolled out.
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

/// The part of a run whose folder this is. Only what [`scope`] writes is one, so nothing that climbs or strays gets
/// through.
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

/// The scope and the name of the episode (one attempt of it) whose folder this is.
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

/// The folder of answers whose actions were about to be carried out.
pub fn intents(episode: &str) -> String {
    format!("{episode}/intents")
}

/// A turn before its action is carried out under this lease.
pub fn intent(episode: &str, turn: u32, lease: &str) -> String {
    format!("{episode}/intents/{turn:03}-{lease}.json")
}

/// Which experts the tokens of a turn went through. Of every answer to it a file of its own.
pub fn experts(episode: &str, turn: u32, sha256: &str) -> String {
    let content = sha256.get(..16).unwrap_or(sha256);
    format!("{episode}/experts/{turn:03}-{content}.bin")
}

pub fn trajectory(episode: &str) -> String {
    format!("{episode}/traj.json")
}

/// The ids of an episode that has ended.
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

/// What a service said that the episode is worth.
pub fn reward(episode: &str) -> String {
    format!("{episode}/reward.json")
}

pub fn meta(episode: &str) -> String {
    format!("{episode}/meta.json")
}

/// Conversations that a step of mode Finetune learns.
pub fn conversations(step: u32) -> String {
    format!("{CONVERSATIONS}/step-{step:06}.safetensors")
}

/// Conversations that nothing is learnt from.
pub fn held_out() -> String {
    format!("{CONVERSATIONS}/held-out.safetensors")
}

/// True for the path of a file of conversations, and for nothing that climbs or strays.
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
    format!("{METRICS}/driver/{iteration:06}.json")
}

pub fn trainer_metrics(step: u32) -> String {
    format!("{METRICS}/trainer/{step:06}.json")
}

/// `<lineage>-v<step>`: names weights everywhere.
pub fn weights_version(lineage: &str, step: u32) -> String {
    format!("{lineage}-v{step}")
}

/// `l7` is 7; lineages are counted so that the newest is known.
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

/// True for a name that can be a part of a path and is not taken for something else: letters, digits, `.`, `_`, `-`.
pub fn is_plain_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= 200
        && !name.starts_with('.')
        && name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
}
