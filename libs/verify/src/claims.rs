//! Checks that rates, voids and iterations in the journal agree with the episodes.

use grpo_records::folder::{EpisodeFolder, RunFolder, counting};

use super::{Check, VerifyError};
use grpo_records::{EpisodeMeta, EpisodeScope, Event, Outcome, paths};
use std::collections::{BTreeMap, HashMap};

/// Rates are quotients of the same integers, so they can differ only by rounding.
const ROUNDING: f64 = 1e-9;

/// Checks the claims of journal and metrics.
pub fn check(folder: &RunFolder, episodes: &[EpisodeFolder]) -> Result<Vec<Check>, VerifyError> {
    Ok(vec![
        numbering(folder),
        verdicts(folder, episodes),
        evaluations(folder, episodes),
        voids(folder, episodes),
        iterations(folder),
        iteration_records(folder, episodes)?,
    ])
}

fn numbering(folder: &RunFolder) -> Check {
    let mut check = Check::new("the journal is numbered without a gap");
    let torn: Vec<u64> = folder
        .torn
        .iter()
        .filter_map(|n| n.trim_end_matches(".json").parse().ok())
        .collect();
    let mut next = 1;
    for entry in &folder.journal {
        while torn.contains(&next) {
            next += 1;
        }
        check.expect(entry.sequence == next, || {
            format!("entry {} stands where {next} should", entry.sequence)
        });
        next = entry.sequence + 1;
    }
    check
}

/// Every verdict is in the journal once and equals the episode's own record. No episode has two verdicts,
/// even with several attempts.
fn verdicts(folder: &RunFolder, episodes: &[EpisodeFolder]) -> Check {
    let mut check = Check::new("committed verdicts are there once, none lost");
    let by_path: HashMap<&str, &EpisodeFolder> = episodes.iter().map(|e| (e.path.as_str(), e)).collect();
    let mut committed: HashMap<&str, u32> = HashMap::new();
    for entry in &folder.journal {
        let Event::Verdict {
            episode,
            outcome,
            reward,
        } = &entry.event
        else {
            continue;
        };
        *committed.entry(episode).or_default() += 1;
        let there = by_path.get(episode.as_str());
        let same = there.is_some_and(|e| e.meta.outcome == *outcome && e.meta.reward == Some(*reward));
        check.expect(same, || {
            format!(
                "{episode} was committed as {outcome} and its record is {:?}",
                there.map(|e| &e.meta.outcome)
            )
        });
    }
    let mut by_name: BTreeMap<(EpisodeScope, String), u32> = BTreeMap::new();
    for episode in episodes.iter().filter(|e| e.meta.outcome.is_verdict()) {
        let times = committed.get(episode.path.as_str()).copied().unwrap_or(0);
        if times == 0 && counts_nowhere(folder, &episode.meta) {
            check.passed_over += 1;
        } else {
            check.expect(times == 1, || {
                format!("the verdict of {} was committed {times} times", episode.path)
            });
        }
        *by_name
            .entry((episode.meta.key.scope.clone(), episode.meta.key.name()))
            .or_default() += 1;
    }
    for ((scope, name), times) in by_name {
        check.expect(times == 1, || format!("{name} of {scope} has {times} verdicts"));
    }
    check
}

/// Whether nothing follows from an episode: its group was not needed, or its iteration or evaluation was not finished.
/// The driver drops such an episode with its work, perhaps between its record and the entry of it.
fn counts_nowhere(folder: &RunFolder, meta: &EpisodeMeta) -> bool {
    let (state, key) = (&folder.state, &meta.key);
    match &key.scope {
        EpisodeScope::Iteration { iteration } => state
            .iterations
            .get(iteration)
            .is_none_or(|one| one.batch_sha256.is_none() || one.is_surplus(key.group)),
        EpisodeScope::Evaluation { set, weights } => !state.evaluations.contains_key(&(set.clone(), weights.clone())),
    }
}

fn evaluations(folder: &RunFolder, episodes: &[EpisodeFolder]) -> Check {
    let mut check = Check::new("evaluations' rates follow from their verdicts");
    for entry in &folder.journal {
        let Event::EvaluationDone {
            set,
            weights,
            resolved,
            episodes: valid,
            ..
        } = &entry.event
        else {
            continue;
        };
        let scope = EpisodeScope::Evaluation {
            set: set.clone(),
            weights: weights.clone(),
        };
        let (found_resolved, found_valid) = tally(episodes, &scope);
        check.expect((found_resolved, found_valid) == (*resolved, *valid), || {
            format!("{scope}: {resolved} of {valid} are claimed, the verdicts say {found_resolved} of {found_valid}")
        });
    }
    check
}

fn tally(episodes: &[EpisodeFolder], scope: &EpisodeScope) -> (u32, u32) {
    let valid = valid_of(episodes, scope);
    let resolved = valid.iter().filter(|e| e.meta.outcome == Outcome::Resolved).count();
    (resolved as u32, valid.len() as u32)
}

/// Episodes of an iteration or evaluation that have a verdict.
fn valid_of(episodes: &[EpisodeFolder], scope: &EpisodeScope) -> Vec<EpisodeFolder> {
    let of: Vec<EpisodeFolder> = episodes
        .iter()
        .filter(|e| e.meta.key.scope == *scope)
        .cloned()
        .collect();
    counting(of)
        .into_iter()
        .filter(|e| e.meta.outcome.is_verdict())
        .collect()
}

fn voids(folder: &RunFolder, episodes: &[EpisodeFolder]) -> Check {
    let mut check = Check::new("voids are the ones that were journalled");
    let mut journalled: BTreeMap<&str, u32> = BTreeMap::new();
    for entry in &folder.journal {
        if let Event::EpisodeVoided { episode, .. } = &entry.event {
            *journalled.entry(episode).or_default() += 1;
        }
    }
    for episode in episodes.iter().filter(|e| !e.meta.outcome.is_verdict()) {
        let times = journalled.remove(episode.path.as_str()).unwrap_or(0);
        if times == 0 && counts_nowhere(folder, &episode.meta) {
            check.passed_over += 1;
            continue;
        }
        check.expect(times == 1, || {
            format!(
                "{} is {} and was journalled {times} times",
                episode.path, episode.meta.outcome
            )
        });
    }
    // An attempt that was given up before it had a record is only in the journal.
    check.looked_at += journalled.len() as u64;
    check
}

fn iterations(folder: &RunFolder) -> Check {
    let mut check = Check::new("iterations follow each other, each with one step");
    let finished = folder.state.finished.as_ref().is_some_and(|f| f.succeeded);
    // Only rollouts may be ahead of steps.
    let mut ahead = false;
    for (at, (number, state)) in folder.state.iterations.iter().enumerate() {
        check.expect(*number == at as u32 + 1, || {
            format!("iteration {number} stands where {} should", at + 1)
        });
        let done = state.step.is_some_and(|step| folder.state.steps.contains_key(&step));
        check.expect(if done { !ahead } else { !finished }, || {
            format!("iteration {number} has no finished step, or one before it has none")
        });
        ahead |= !done;
    }
    check
}

/// The fields of `metrics/driver/<k>.json` that follow from the episodes.
#[derive(serde::Deserialize)]
#[serde(rename_all = "camelCase")]
struct IterationClaim {
    episodes: u32,
    resolved: u32,
    resolved_rate: f64,
    reward_mean: f64,
}

fn iteration_records(folder: &RunFolder, episodes: &[EpisodeFolder]) -> Result<Check, VerifyError> {
    let mut check = Check::new("iterations' records follow from their verdicts");
    for number in folder.state.iterations.keys() {
        let Some(claim) = folder.json_if_there::<IterationClaim>(&paths::driver_metrics(*number))? else {
            check.passed_over += 1;
            continue;
        };
        let scope = EpisodeScope::Iteration { iteration: *number };
        let mut of = valid_of(episodes, &scope);
        // A group that the batch did not need may have ended after the metrics were written.
        of.retain(|e| !(folder.state.iterations.get(number)).is_some_and(|one| one.is_surplus(e.meta.key.group)));
        let resolved = of.iter().filter(|e| e.meta.outcome == Outcome::Resolved).count() as u32;
        let valid = of.len() as u32;
        let rate = if valid == 0 {
            0.0
        } else {
            f64::from(resolved) / f64::from(valid)
        };
        let rewards: f64 = of.iter().filter_map(|e| e.meta.reward).map(f64::from).sum();
        let mean = if valid == 0 { 0.0 } else { rewards / f64::from(valid) };
        let same = (claim.resolved, claim.episodes) == (resolved, valid)
            && close(Some(claim.resolved_rate), Some(rate))
            && close(Some(claim.reward_mean), Some(mean));
        check.expect(same, || {
            format!(
                "iteration {number}: {} of {} are claimed, the verdicts say {resolved} of {valid}",
                claim.resolved, claim.episodes
            )
        });
    }
    Ok(check)
}

/// Equal up to [`ROUNDING`].
pub fn close(a: Option<f64>, b: Option<f64>) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => (a - b).abs() <= ROUNDING,
        (None, None) => true,
        _ => false,
    }
}
