//! Recomputes what a store claims, from its smallest parts: token ids of turns, grader logs, rewards.
//!
//! Nothing that was summed up by the driver is believed: sequences are folded from turn records again, verdicts judged
//! from their logs again, rates counted again; whatever does not agree is reported with its path.

use crate::grader_worker::GraderWorker;
use crate::trajectory::Trajectory;
use grpo_records::store::sha256_hex;
use grpo_records::{Batch, EpisodeMeta, EpisodeRecord, Outcome, Row, RunStore, StoreError, TurnRecord, paths};
use serde::Serialize;
use serde_json::Value;
use std::collections::{BTreeMap, HashMap};

/// Numbers of one iteration or one evaluation.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Rates {
    pub episodes: u32,
    pub resolved: u32,
    pub voids: u32,
    pub resolved_rate: f64,
    pub reward_mean: f64,
    /// Verdicts judged again from their logs.
    pub judged: u32,
    /// Verdicts taken over from an identical patch whose own verdict was judged.
    pub reused: u32,
    /// Verdicts that need no log: empty or missing patches, patches that do not apply, verdicts by control.
    pub without_log: u32,
    pub turns_mean: f64,
    pub edits_mean: f64,
    pub submitted: u32,
}

/// Everything recomputed.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    pub iterations: BTreeMap<u32, Rates>,
    /// By set, then by weights.
    pub evaluations: BTreeMap<String, BTreeMap<String, Rates>>,
    pub batches: u32,
    pub rows: u32,
    pub sampled_tokens: u64,
    /// What does not agree, with its path.
    pub disagreements: Vec<String>,
}

/// Who judges logs again; without it verdicts are taken as recorded.
pub struct Judge<'a> {
    pub worker: &'a GraderWorker,
    /// Rows of the datasets by instance.
    pub rows: &'a HashMap<String, Value>,
}

/// Recomputes a whole store.
pub async fn recompute(store: &RunStore, judge: Option<&Judge<'_>>) -> Result<Report, StoreError> {
    let mut report = Report::default();
    let (_, iterations) = store.names_in(paths::ROLLOUTS).await?;
    for name in iterations {
        let number = name.trim_start_matches("iter-").parse().unwrap_or(0);
        let folder = format!("{}/{name}", paths::ROLLOUTS);
        let (rates, rows) = scope(store, &folder, judge, &mut report).await?;
        check_batch(store, number, &rows, &mut report).await?;
        report.iterations.insert(number, rates);
    }
    let (_, sets) = store.names_in(paths::EVALUATIONS).await?;
    for set in sets {
        let (_, versions) = store.names_in(&format!("{}/{set}", paths::EVALUATIONS)).await?;
        for version in versions {
            let folder = format!("{}/{set}/{version}", paths::EVALUATIONS);
            let (rates, _) = scope(store, &folder, judge, &mut report).await?;
            report
                .evaluations
                .entry(set.clone())
                .or_default()
                .insert(version, rates);
        }
    }
    Ok(report)
}

/// The rates of one folder of episodes, and the training row of each valid episode by its name.
async fn scope(
    store: &RunStore,
    folder: &str,
    judge: Option<&Judge<'_>>,
    report: &mut Report,
) -> Result<(Rates, BTreeMap<String, Row>), StoreError> {
    let (_, tries) = store.names_in(folder).await?;
    let mut rates = Rates::default();
    let mut rows = BTreeMap::new();
    // The last attempt of an episode that has a record is what counts.
    let mut last: BTreeMap<String, (u32, String)> = BTreeMap::new();
    for name in tries {
        let dir = format!("{folder}/{name}");
        let Some(meta) = store.read_if_there::<EpisodeMeta>(&paths::meta(&dir)).await? else {
            continue;
        };
        if meta.key.dir(meta.attempt) != dir {
            report.disagreements.push(format!(
                "{dir}: its meta.json is that of {}",
                meta.key.dir(meta.attempt)
            ));
        }
        let verdicts = last.entry(meta.key.name()).or_insert((0, String::new()));
        if meta.attempt > verdicts.0 {
            *verdicts = (meta.attempt, dir);
        }
    }
    let mut rewards = 0.0;
    let (mut turns, mut edits) = (0, 0);
    for (name, (_, dir)) in last {
        let meta: EpisodeMeta = store.read(&paths::meta(&dir)).await?;
        if !meta.outcome.is_verdict() {
            rates.voids += 1;
            continue;
        }
        let (row, folded_edits) = sequence(store, &dir, &meta, report).await?;
        verdict(store, &dir, &meta, judge, &mut rates, report).await?;
        rates.episodes += 1;
        rates.resolved += u32::from(meta.outcome == Outcome::Resolved);
        rates.submitted += u32::from(meta.end == grpo_records::EpisodeEnd::Submitted);
        rewards += f64::from(meta.reward.unwrap_or_default());
        turns += meta.turns;
        edits += folded_edits;
        report.sampled_tokens += row.sampled() as u64;
        rows.insert(name, row);
    }
    if rates.episodes > 0 {
        let of = f64::from(rates.episodes);
        rates.resolved_rate = f64::from(rates.resolved) / of;
        rates.reward_mean = rewards / of;
        rates.turns_mean = f64::from(turns) / of;
        rates.edits_mean = f64::from(edits) / of;
    }
    Ok((rates, rows))
}

/// Folds the turns of an episode again and compares with its trajectory; also counts commands that wrote something in
/// place.
async fn sequence(
    store: &RunStore,
    dir: &str,
    meta: &EpisodeMeta,
    report: &mut Report,
) -> Result<(Row, u32), StoreError> {
    let record: EpisodeRecord = store.read(&paths::trajectory(dir)).await?;
    let mut trajectory = Trajectory::default();
    let mut edits = 0;
    for number in 0..record.turns {
        let turn: TurnRecord = store.read(&paths::turn(dir, number)).await?;
        if let grpo_records::TurnAction::Command { command } = &turn.action {
            edits += u32::from(command.contains("sed -i"));
        }
        if let Err(fault) = trajectory.push(&turn) {
            report.disagreements.push(format!("{dir}: {fault}"));
        }
    }
    let row = record.row(meta.outcome.clone(), meta.reward.unwrap_or_default());
    let same = trajectory.tokens == row.tokens
        && trajectory.mask == row.mask
        && trajectory.logprobs == row.logprobs
        && trajectory.weights == row.weights
        && trajectory.experts == row.experts;
    if !same {
        report
            .disagreements
            .push(format!("{dir}: traj.json is not what its turns add up to"));
    }
    if trajectory.end != Some(meta.end) && record.turns > 0 {
        report.disagreements.push(format!(
            "{dir}: ended with {:?} by its turns, {:?} by meta.json",
            trajectory.end, meta.end
        ));
    }
    if let Err(fault) = row.check() {
        report.disagreements.push(format!("{dir}: {fault}"));
    }
    for span in &row.experts {
        let there = match store.bytes(&span.file).await {
            Ok(bytes) => sha256_hex(&bytes) == span.sha256,
            Err(StoreError::Missing { .. }) => false,
            Err(error) => return Err(error),
        };
        if !there {
            report
                .disagreements
                .push(format!("{dir}: {} is not what was recorded", span.file));
        }
    }
    Ok((row, edits))
}

/// Judges an episode's log again.
async fn verdict(
    store: &RunStore,
    dir: &str,
    meta: &EpisodeMeta,
    judge: Option<&Judge<'_>>,
    rates: &mut Rates,
    report: &mut Report,
) -> Result<(), StoreError> {
    let recorded = store.read_patch(dir).await?;
    if recorded.as_ref().map(|patch| sha256_hex(patch)) != meta.patch_sha256 {
        report
            .disagreements
            .push(format!("{dir}: patch.diff is not the patch that was judged"));
    }
    let reused = meta.grade.as_ref().and_then(|grade| grade.reused_from.clone());
    if let Some(source) = reused {
        rates.reused += 1;
        let original: Option<EpisodeMeta> = store.read_if_there(&paths::meta(&source)).await?;
        let agrees = original.is_some_and(|original| {
            original.outcome == meta.outcome
                && original.patch_sha256 == meta.patch_sha256
                && original.key.instance == meta.key.instance
        });
        if !agrees {
            report.disagreements.push(format!(
                "{dir}: took its verdict over from {source}, which does not have it"
            ));
        }
        return Ok(());
    }
    let judged = meta.grade.as_ref().is_some_and(|grade| grade.status == "Judged");
    if !judged {
        rates.without_log += 1;
        if meta.outcome == Outcome::Resolved {
            report
                .disagreements
                .push(format!("{dir}: resolved, but no log was judged"));
        }
        return Ok(());
    }
    rates.judged += 1;
    let Some(judge) = judge else {
        return Ok(());
    };
    let Some(row) = judge.rows.get(&meta.key.instance) else {
        report.disagreements.push(format!(
            "{dir}: no row of {} is at hand to judge its log by",
            meta.key.instance
        ));
        return Ok(());
    };
    let log = store.dir().join(paths::grade_log(dir));
    let patch = recorded.unwrap_or_default();
    let patch = String::from_utf8_lossy(&patch);
    match judge.worker.judge(&meta.key.instance, row, &patch, &log).await {
        Ok(again) if again.resolved == (meta.outcome == Outcome::Resolved) => {}
        Ok(again) => report.disagreements.push(format!(
            "{dir}: recorded {}, its log says resolved: {}",
            meta.outcome, again.resolved
        )),
        Err(error) => report.disagreements.push(format!("{dir}: {error}")),
    }
    Ok(())
}

/// Compares a stored batch, row by row, with what the episodes of its iteration are.
async fn check_batch(
    store: &RunStore,
    iteration: u32,
    rows: &BTreeMap<String, Row>,
    report: &mut Report,
) -> Result<(), StoreError> {
    let path = paths::batch(iteration);
    let Some(batch) = store.read_if_there::<Batch>(&path).await? else {
        return Ok(());
    };
    report.batches += 1;
    report.rows += batch.rows.len() as u32;
    for row in &batch.rows {
        match rows.get(&row.episode) {
            Some(expected) if expected == row => {}
            Some(_) => report
                .disagreements
                .push(format!("{path}: the row of {} is not its episode", row.episode)),
            None => report
                .disagreements
                .push(format!("{path}: {} is no valid episode of the iteration", row.episode)),
        }
    }
    for group in &batch.groups {
        let rewards: Vec<f32> = batch
            .rows
            .iter()
            .filter(|row| row.group == group.group)
            .map(|row| row.reward)
            .collect();
        if rewards != group.rewards {
            report.disagreements.push(format!(
                "{path}: group {} has rewards {rewards:?}, says {:?}",
                group.group, group.rewards
            ));
        }
    }
    Ok(())
}

trait ReadPatch {
    fn read_patch(&self, dir: &str) -> impl Future<Output = Result<Option<bytes::Bytes>, StoreError>>;
}

impl ReadPatch for RunStore {
    async fn read_patch(&self, dir: &str) -> Result<Option<bytes::Bytes>, StoreError> {
        match self.bytes(&paths::patch(dir)).await {
            Ok(bytes) => Ok(Some(bytes)),
            Err(StoreError::Missing { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }
}
