//! Checks that batches, rewards and advantages follow from the episodes.

use super::{Check, VerifyError, token_stats};
use grpo_records::folder::{EpisodeFolder, FolderError, RunFolder, counting};
use grpo_records::store::sha256_hex;
use grpo_records::{Batch, DropReason, EpisodeScope, Event, IterationState, Row, paths};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// The trainer sums in fp32.
const REWARD_ROUNDING: f64 = 1e-5;
const ADVANTAGE_ROUNDING: f64 = 1e-4;

pub fn check(folder: &RunFolder, episodes: &[EpisodeFolder]) -> Result<Vec<Check>, VerifyError> {
    let mut bytes = Check::new("batches are the ones whose checksums were journalled");
    let mut rows = Check::new("rows of batches are their episodes, token by token");
    let mut whole = Check::new("groups hold every valid episode and no void");
    let mut versions = Check::new("tokens were sampled by weights that had been promoted");
    let mut steps = Check::new("steps' rewards, groups, tokens and advantages follow from batches");
    let mut tokens =
        Check::new("the trainer's numbers of tokens belong to the batch and agree with the step's metrics");
    let promoted = promoted(folder);
    for entry in &folder.journal {
        let Event::BatchWritten {
            iteration,
            step,
            sha256,
            ..
        } = &entry.event
        else {
            continue;
        };
        if !folder.exists(&paths::batch(*step))? {
            bytes.passed_over += 1;
            continue;
        }
        let written = sha256_hex(&folder.bytes(&paths::batch(*step))?);
        bytes.expect(written == *sha256, || {
            format!("{} is not the batch that step {step} was given", paths::batch(*step))
        });
        let mut batch = folder.batch(*step)?;
        if let Err(error) = batch.fill(|path| folder.bytes(path)) {
            rows.expect(false, || format!("step {step}: {error}"));
            continue;
        }
        if batch.supervised.is_some() {
            // Its rows come from a dataset, whose texts are not in the store.
            let held_out = batch.supervised.iter().flat_map(|supervised| &supervised.held_out);
            for row in batch.rows.iter().chain(held_out) {
                rows.expect(row.check().is_ok(), || format!("step {step}: {:?}", row.check()));
            }
            match folder.json_if_there::<StepClaim>(&paths::trainer_metrics(*step))? {
                Some(claim) => check_step(&batch, &[], &claim, &mut steps),
                None => steps.passed_over += 1,
            }
            continue;
        }
        let valid = valid_of(episodes, *iteration);
        check_rows(folder, &batch, &valid, &mut rows)?;
        let begun = folder.state.iterations.get(iteration);
        let unknown = IterationState::default();
        let step_wise = folder.row_rule(&batch.run).step_wise().is_some();
        check_groups(&batch, &valid, begun.unwrap_or(&unknown), step_wise, &mut whole);
        match folder.json_if_there::<StepClaim>(&paths::trainer_metrics(*step))? {
            Some(claim) => check_step(&batch, &compared(folder, &batch), &claim, &mut steps),
            None => steps.passed_over += 1,
        }
        token_stats::check(folder, &batch, &mut tokens)?;
        // A server that takes no weights serves the base model, which is never promoted: then the iteration names it.
        let begun = begun.map(|one| one.weights.as_str());
        let frozen = begun.filter(|weights| paths::step_of_weights(weights).is_none());
        for row in &batch.rows {
            let known = |version: &str| promoted.contains(version) || frozen == Some(version);
            let unknown = row.weights.iter().find(|span| !known(&span.version));
            versions.expect(unknown.is_none(), || {
                format!("{} has tokens by {:?}", row.episode, unknown.map(|s| &s.version))
            });
        }
    }
    Ok(vec![bytes, rows, whole, steps, tokens, versions])
}

/// Every version that was promoted.
fn promoted(folder: &RunFolder) -> BTreeSet<String> {
    folder
        .journal
        .iter()
        .filter_map(|entry| match &entry.event {
            Event::Promoted { weights, .. } => Some(weights.clone()),
            _ => None,
        })
        .collect()
}

/// Episodes of an iteration that have a verdict, by name.
fn valid_of(episodes: &[EpisodeFolder], iteration: u32) -> HashMap<String, EpisodeFolder> {
    let scope = EpisodeScope::Iteration { iteration };
    let of: Vec<EpisodeFolder> = episodes.iter().filter(|e| e.meta.key.scope == scope).cloned().collect();
    counting(of)
        .into_iter()
        .filter(|e| e.meta.outcome.is_verdict())
        .map(|e| (e.meta.key.name(), e))
        .collect()
}

/// A batch has every row of its groups' episodes exactly once, and no other rows.
fn check_rows(
    folder: &RunFolder,
    batch: &Batch,
    valid: &HashMap<String, EpisodeFolder>,
    rows: &mut Check,
) -> Result<(), VerifyError> {
    let mut of_episodes: BTreeMap<&str, Vec<&Row>> = BTreeMap::new();
    let groups: BTreeSet<u32> = batch.groups.iter().map(|group| group.group).collect();
    for (name, episode) in valid {
        if groups.contains(&episode.meta.key.group) && episode.meta.sampled_tokens > 0 {
            of_episodes.entry(name).or_default();
        }
    }
    for row in &batch.rows {
        of_episodes.entry(&row.episode).or_default().push(row);
    }
    for (name, given) in of_episodes {
        let Some(episode) = valid.get(name) else {
            rows.expect(false, || format!("step {}: {name} has no verdict", batch.step));
            continue;
        };
        let meta = &episode.meta;
        let expected = match folder.ended(&episode.path) {
            Err(FolderError::NotWhole { .. }) | Ok(None) => Vec::new(),
            Ok(Some(ended)) => {
                let rule = folder.row_rule(&ended.record.run);
                Row::trained_on(&ended, meta, &rule)
            }
            Err(error) => return Err(error.into()),
        };
        for row in &given {
            let same = expected.iter().any(|expected| expected == *row);
            rows.expect(same && row.check().is_ok(), || {
                format!(
                    "step {}: the row of {name} is not the episode in {}",
                    batch.step, episode.path
                )
            });
        }
        let mut found: Vec<(u32, Option<u32>)> = given.iter().map(|row| (row.stored.row, row.turn)).collect();
        found.sort_unstable();
        let due: Vec<(u32, Option<u32>)> = expected.iter().map(|row| (row.stored.row, row.turn)).collect();
        rows.expect(found == due, || {
            format!(
                "step {}: of {name} the batch has rows {found:?}, of {due:?}",
                batch.step
            )
        });
    }
    Ok(())
}

/// `step_wise`: each turn has its own reward, so a group's rewards do not show whether it has a signal.
fn check_groups(
    batch: &Batch,
    valid: &HashMap<String, EpisodeFolder>,
    begun: &IterationState,
    step_wise: bool,
    whole: &mut Check,
) {
    let dropped = &begun.dropped;
    let mut rewards: BTreeMap<u32, BTreeMap<u32, f32>> = BTreeMap::new();
    // An episode without a sampled token has no row, so the group does not have its reward.
    for episode in valid.values().filter(|episode| episode.meta.sampled_tokens > 0) {
        let key = &episode.meta.key;
        if let Some(reward) = episode.meta.reward {
            rewards.entry(key.group).or_default().insert(key.sample, reward);
        }
    }
    for group in &batch.groups {
        let expected: Vec<f32> = rewards
            .get(&group.group)
            .map(|r| r.values().copied().collect())
            .unwrap_or_default();
        whole.expect(expected == group.rewards, || {
            format!(
                "step {}, group {}: rewards {:?}, the episodes say {expected:?}",
                batch.step, group.group, group.rewards
            )
        });
    }
    let held: BTreeSet<u32> = batch.groups.iter().map(|g| g.group).collect();
    for (group, of) in rewards
        .iter()
        .filter(|(g, of)| of.len() >= 2 && !dropped.contains_key(g))
    {
        whole.expect(held.contains(group), || {
            format!(
                "step {}: group {group} has {} valid episodes and is not in the batch",
                batch.step,
                of.len()
            )
        });
    }
    if let Some(wanted) = begun.wanted {
        check_chosen(batch, &rewards, begun, wanted, step_wise, whole);
    }
}

/// Dynamic sampling: a batch has the first groups, in the order of the tasks, whose rewards differ; every other group
/// must have a valid reason for its absence.
fn check_chosen(
    batch: &Batch,
    rewards: &BTreeMap<u32, BTreeMap<u32, f32>>,
    begun: &IterationState,
    wanted: u32,
    step_wise: bool,
    whole: &mut Check,
) {
    let step = batch.step;
    let alike = |of: &BTreeMap<u32, f32>| of.values().zip(of.values().skip(1)).all(|(a, b)| a == b);
    let last = batch.groups.iter().map(|group| group.group).max().unwrap_or_default();
    let full = batch.groups.len() as u32 == wanted;
    whole.expect(batch.groups.len() as u32 <= wanted, || {
        format!(
            "step {step}: {} groups, of {wanted} that were wanted",
            batch.groups.len()
        )
    });
    for (group, reason) in &begun.dropped {
        let right = match reason {
            DropReason::TooFewValid => true,
            DropReason::Surplus => full && *group > last,
            DropReason::NoSignal => step_wise || rewards.get(group).is_none_or(alike),
        };
        whole.expect(right, || {
            format!(
                "step {step}: group {group} was left out for {reason:?}, with rewards {:?}",
                rewards.get(group)
            )
        });
    }
    let learns = |group: &u32| rewards.get(group).is_some_and(|of| !alike(of));
    let some = batch.groups.iter().any(|group| learns(&group.group));
    for group in batch.groups.iter().filter(|_| some && !step_wise) {
        whole.expect(learns(&group.group), || {
            format!("step {step}: group {} has equal rewards and others differ", group.group)
        });
    }
}

/// The fields of `metrics/trainer/<k>.json` that follow from the batch alone.
#[derive(Debug, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
struct StepClaim {
    groups: u32,
    groups_zero_variance: u32,
    trained_tokens: u64,
    row_tokens: u64,
    mean_reward: f64,
    /// One list for each group, in the batch's order.
    #[serde(default)]
    advantages: Vec<Vec<f64>>,
    #[serde(default)]
    shuffled: bool,
    #[serde(default)]
    kl: f64,
    #[serde(default)]
    kl_loss: f64,
    /// Rows of episodes that a limit ended, which are not trained on (`maskOverlong`).
    #[serde(default)]
    rows_overlong: u32,
}

impl StepClaim {
    /// Whether a KL penalty may be in the rewards that the trainer compared (`kl.placement: Reward`): it is measured,
    /// and no part of the loss. Each row's own penalty is not recorded.
    fn may_be_shaped(&self) -> bool {
        self.kl != 0.0 && self.kl_loss == 0.0
    }
}

/// Rewards that are compared with each other.
struct Set {
    group: u32,
    /// Set if turns have separate rewards.
    turn: Option<u32>,
    rewards: Vec<f32>,
}

/// The sets of a batch: the episodes of a group, or the turns of a group with the same number, in the order of their
/// rows.
fn compared(folder: &RunFolder, batch: &Batch) -> Vec<Set> {
    if folder.row_rule(&batch.run).step_wise().is_none() {
        let groups = batch.groups.iter().map(|group| Set {
            group: group.group,
            turn: None,
            rewards: group.rewards.clone(),
        });
        return groups.collect();
    }
    let mut sets: Vec<Set> = Vec::new();
    for row in &batch.rows {
        let (group, turn) = (row.group, row.turn);
        match sets.iter_mut().find(|set| (set.group, set.turn) == (group, turn)) {
            Some(set) => set.rewards.push(row.reward),
            None => sets.push(Set {
                group,
                turn,
                rewards: vec![row.reward],
            }),
        }
    }
    sets
}

fn check_step(batch: &Batch, sets: &[Set], claim: &StepClaim, steps: &mut Check) {
    let rewards: Vec<f32> = sets.iter().flat_map(|set| set.rewards.iter().copied()).collect();
    let mean = rewards.iter().map(|r| f64::from(*r)).sum::<f64>() / rewards.len().max(1) as f64;
    let several = |set: &&Set| set.rewards.len() > 1;
    let alike = |set: &&Set| set.rewards.windows(2).all(|w| w[0] == w[1]);
    let constant = sets.iter().filter(several).filter(alike).count() as u32;
    let cut = |row: &&Row| claim.rows_overlong > 0 && row.truncated;
    // A turn number that only one episode reaches is not compared.
    let single = |row: &&Row| {
        let of = |set: &&Set| (set.group, set.turn) == (row.group, row.turn) && set.rewards.len() < 2;
        row.turn.is_some() && sets.iter().any(|set| of(&set))
    };
    let trained = || batch.rows.iter().filter(|row| !cut(row) && !single(row));
    let sampled: u64 = trained().map(|r| r.sampled() as u64).sum();
    let all: u64 = trained().map(|r| r.tokens.len() as u64).sum();
    let overlong = batch.rows.iter().filter(cut).count() as u32;
    let constant = match claim.may_be_shaped() {
        true => claim.groups_zero_variance,
        false => constant,
    };
    let found = (sets.len() as u32, constant, sampled, all, overlong);
    let claimed = (
        claim.groups,
        claim.groups_zero_variance,
        claim.trained_tokens,
        claim.row_tokens,
        claim.rows_overlong,
    );
    steps.expect(found == claimed && (mean - claim.mean_reward).abs() < REWARD_ROUNDING, || {
        format!("step {}: groups, constant groups, sampled and all trained tokens and rows that limits cut are {found:?} with mean reward {mean}; claimed: {claim:?}", batch.step)
    });
    if claim.may_be_shaped() {
        return;
    }
    let compared: Vec<(&Set, &Vec<f64>)> = sets
        .iter()
        .zip(&claim.advantages)
        .filter(|(set, _)| several(set))
        .collect();
    let disagreeing = Formula::all(&compared).map(|formula| {
        let wrong = compared
            .iter()
            .filter(|(set, claimed)| !formula.gives(&set.rewards, claimed, claim.shuffled));
        wrong.copied().collect::<Vec<_>>()
    });
    let fewest = disagreeing.min_by_key(Vec::len).unwrap_or_default();
    steps.expect(fewest.is_empty(), || {
        let (set, claimed) = fewest[0];
        format!(
            "step {}: {} of {} groups have advantages that no estimator gives, such as group {}: {claimed:?} of rewards {:?}",
            batch.step,
            fewest.len(),
            compared.len(),
            set.group,
            set.rewards
        )
    });
}

/// The divisor of a group's differences.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Divisor {
    One,
    Population,
    Unbiased,
    /// The deviation of the whole batch.
    Batch(f64),
}

/// How advantages follow from rewards. The stores do not say which formula the trainer used; it used one for a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Formula {
    pub divisor: Divisor,
    /// Each reward is compared with the mean of the others.
    pub leave_one_out: bool,
    /// Added to the divisor.
    pub epsilon: f64,
}

impl Formula {
    /// Each formula, with the epsilon that the first group with different rewards implies.
    fn all(compared: &[(&Set, &Vec<f64>)]) -> impl Iterator<Item = Self> {
        let all: Vec<f32> = compared.iter().flat_map(|(set, _)| &set.rewards).copied().collect();
        let batch = Divisor::Batch(Divisor::Unbiased.of(&all));
        let shown = compared
            .iter()
            .find(|(set, _)| spread(set.rewards.iter().map(|r| f64::from(*r))) > 0.0);
        let shown = shown.map(|(set, claimed)| (set.rewards.clone(), spread(claimed.iter().copied())));
        [Divisor::One, Divisor::Population, Divisor::Unbiased, batch]
            .into_iter()
            .flat_map(|divisor| [false, true].map(|leave_one_out| (divisor, leave_one_out)))
            .map(move |(divisor, leave_one_out)| {
                let plain = Self {
                    divisor,
                    leave_one_out,
                    epsilon: 0.0,
                };
                let implied = shown.as_ref().map_or(0.0, |(rewards, claimed)| {
                    let differences = spread(rewards.iter().map(|r| f64::from(*r))) * plain.stretch(rewards.len());
                    differences / claimed - divisor.of(rewards)
                });
                let epsilon = match divisor {
                    Divisor::One => 0.0,
                    _ if implied.is_finite() => implied.clamp(0.0, 1.0),
                    _ => 0.0,
                };
                Self { epsilon, ..plain }
            })
    }

    fn stretch(&self, members: usize) -> f64 {
        match self.leave_one_out {
            true => members as f64 / (members as f64 - 1.0),
            false => 1.0,
        }
    }

    /// Advantages of a group in f64; all zero if all rewards are equal.
    pub fn advantages(&self, rewards: &[f32]) -> Vec<f64> {
        let mean = mean(rewards);
        let factor = match rewards.windows(2).all(|pair| pair[0] == pair[1]) {
            true => 0.0,
            false => self.stretch(rewards.len()) / (self.divisor.of(rewards) + self.epsilon),
        };
        rewards
            .iter()
            .map(|reward| (f64::from(*reward) - mean) * factor)
            .collect()
    }

    /// `shuffled`: the trainer drew the order of the rewards.
    fn gives(&self, rewards: &[f32], claimed: &[f64], shuffled: bool) -> bool {
        let (mut found, mut claimed) = (self.advantages(rewards), claimed.to_vec());
        if shuffled {
            found.sort_by(f64::total_cmp);
            claimed.sort_by(f64::total_cmp);
        }
        let mut pairs = found.iter().zip(&claimed);
        found.len() == claimed.len() && pairs.all(|(a, b)| (a - b).abs() < ADVANTAGE_ROUNDING)
    }
}

impl Divisor {
    fn of(&self, rewards: &[f32]) -> f64 {
        let (n, mean) = (rewards.len() as f64, mean(rewards));
        let squares: f64 = rewards.iter().map(|reward| (f64::from(*reward) - mean).powi(2)).sum();
        match self {
            Self::One => 1.0,
            Self::Population => (squares / n).sqrt(),
            Self::Unbiased => (squares / (n - 1.0)).sqrt(),
            Self::Batch(deviation) => *deviation,
        }
    }
}

fn mean(rewards: &[f32]) -> f64 {
    rewards.iter().map(|reward| f64::from(*reward)).sum::<f64>() / rewards.len() as f64
}

/// The largest minus the smallest.
fn spread(values: impl Iterator<Item = f64> + Clone) -> f64 {
    values.clone().fold(f64::MIN, f64::max) - values.fold(f64::MAX, f64::min)
}

#[cfg(test)]
mod tests;
