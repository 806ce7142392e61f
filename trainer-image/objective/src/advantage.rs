//! Advantages of a group: how much better each episode was than the others.
//!
//! A_i = (r_i - mean(r)) / (std(r) + epsilon), over the group's *valid* episodes (DeepSeekMath, arXiv 2402.03300, eq.
//! 21; epsilon 1e-6 as in verl and slime, 1e-4 in TRL). `std: None` leaves the division out (Dr. GRPO, arXiv
//! 2503.20783), `Batch` divides by the unbiased deviation of all rewards of the batch (as TRL does for
//! `scale_rewards: batch`). LeaveOneOut compares with the mean of the others, r_i - mean(r without r_i) (RLOO, arXiv
//! 2402.14740).
//!
//! StepWise takes rows of single turns, each with its turn's reward (the sum of outcome and process reward, as in
//! OpenClaw-RL), and compares turns with the same number within the group; fewer than two cannot be compared.
//!
//! A void has no reward, so it is in neither mean nor deviation; a group with fewer than two valid episodes is dropped.
//! An episode that a limit cut may be left out of training, but it has a reward and stays in the baseline.

use grpo_crds::algorithm::{Advantage, Algorithm, Control, Estimator, StandardDeviation};
use grpo_records::batch::{Batch, Row};

use crate::mixing::{STEP, mixed};

/// The result for one group.
#[derive(Clone, Debug, PartialEq)]
pub enum GroupAdvantages {
    /// One advantage per valid episode, in order.
    Kept(Vec<f64>),
    /// All rewards were equal: every advantage is 0, and the group has no signal.
    ZeroVariance(Vec<f64>),
    /// Fewer than two valid episodes.
    Dropped,
}

impl GroupAdvantages {
    /// The advantages, unless the group was dropped.
    pub fn values(&self) -> Option<&[f64]> {
        match self {
            Self::Kept(values) | Self::ZeroVariance(values) => Some(values),
            Self::Dropped => None,
        }
    }
}

/// Sum of squared distances from the mean, and the mean.
fn squares(rewards: &[f64]) -> (f64, f64) {
    let mean = rewards.iter().sum::<f64>() / rewards.len().max(1) as f64;
    (rewards.iter().map(|reward| (reward - mean).powi(2)).sum(), mean)
}

/// Unbiased deviation of all rewards of the kept groups: the divisor of [`StandardDeviation::Batch`].
pub fn batch_deviation<'a>(groups: impl Iterator<Item = &'a [f64]>) -> f64 {
    let all: Vec<f64> = groups.filter(|group| group.len() > 1).flatten().copied().collect();
    (squares(&all).0 / all.len().saturating_sub(1).max(1) as f64).sqrt()
}

/// Advantages of the valid episodes of one group. `batch`: [`batch_deviation`] of the batch. StepWise takes rewards of
/// single turns with the same number; the formula is that of Group.
pub fn advantages(rewards: &[f64], how: &Advantage, batch: f64) -> GroupAdvantages {
    let n = rewards.len();
    if n < 2 {
        return GroupAdvantages::Dropped;
    }
    if rewards.iter().all(|reward| *reward == rewards[0]) {
        return GroupAdvantages::ZeroVariance(vec![0.0; n]);
    }
    let (squares, mean) = squares(rewards);
    let divisor = match how.std {
        StandardDeviation::None => 1.0,
        StandardDeviation::Population => (squares / n as f64).sqrt() + how.epsilon,
        StandardDeviation::Unbiased => (squares / (n - 1) as f64).sqrt() + how.epsilon,
        StandardDeviation::Batch => batch + how.epsilon,
    };
    // r - mean of the others is the same difference times n / (n - 1).
    let stretch = match how.estimator {
        Estimator::LeaveOneOut => n as f64 / (n - 1) as f64,
        Estimator::Group | Estimator::StepWise => 1.0,
    };
    GroupAdvantages::Kept(
        rewards
            .iter()
            .map(|reward| (reward - mean) * stretch / divisor)
            .collect(),
    )
}

/// Why a batch cannot be turned into advantages.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum AdvantageError {
    #[error("reward of {episode} is {reward}; a reward is a finite number")]
    Reward { episode: String, reward: f32 },
    #[error(
        "algorithm.advantage.estimator is StepWise, but a row of {episode} does not say which turn it is: use one row per turn, or Group"
    )]
    StepWise { episode: String },
    #[error("rows of {episode} carry different rewards ({first} and {second})")]
    Disagree { episode: String, first: f32, second: f32 },
}

/// A batch's advantages, one per row, and the results of its groups.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BatchAdvantages {
    /// Per row of the batch; `None` if its group was dropped.
    pub rows: Vec<Option<f64>>,
    /// Per row: whether a limit cut its episode and `maskOverlong` keeps it from training.
    pub masked: Vec<bool>,
    pub groups: u32,
    pub dropped: u32,
    pub zero_variance: u32,
    /// Mean reward over valid episodes.
    pub mean_reward: f64,
    /// One list per group (StepWise: per turn number of a group), in the order of the batch's groups and of their
    /// episodes; empty if it was dropped.
    pub by_group: Vec<Vec<f64>>,
}

/// Shuffles a group's rewards (Fisher-Yates, drawn by SplitMix64 from the run's seed, the step and the group): a
/// control, whose advantages carry no information about the episodes.
fn shuffle(rewards: &mut [f64], seed: u64, step: u32, group: u32) {
    let mut state = seed ^ (u64::from(step) << 32 | u64::from(group)).wrapping_mul(STEP);
    let mut draw = || {
        let drawn = mixed(state);
        state = state.wrapping_add(STEP);
        drawn
    };
    for last in (1..rewards.len()).rev() {
        rewards.swap(last, (draw() % (last as u64 + 1)) as usize);
    }
}

/// Advantages of a stored batch. The statistic is over *episodes*, not rows: an episode of many turns counts once.
/// `seed` is the run's.
pub fn batch_advantages(batch: &Batch, algorithm: &Algorithm, seed: u64) -> Result<BatchAdvantages, AdvantageError> {
    let rewards: Vec<f64> = batch.rows.iter().map(|row| f64::from(row.reward)).collect();
    shaped_advantages(batch, &rewards, algorithm, seed)
}

/// A set of rewards that are compared: a group's episodes, or with StepWise its turns with the same number.
type Set = (u32, Option<u32>);

/// Like [`batch_advantages`], with other rewards than the batch's, one per row: after a KL penalty
/// ([`crate::kl::shaped_reward`]).
pub fn shaped_advantages(
    batch: &Batch,
    rewards: &[f64],
    algorithm: &Algorithm,
    seed: u64,
) -> Result<BatchAdvantages, AdvantageError> {
    let step_wise = algorithm.advantage.estimator == Estimator::StepWise;
    let set_of = |row: &Row| (row.group, row.turn.filter(|_| step_wise));
    let mut sets: Vec<(Set, Vec<(&str, f64)>)> = Vec::new();
    let mut places = std::collections::HashMap::new();
    let (mut sum, mut count) = (0.0, 0u32);
    for (row, reward) in batch.rows.iter().zip(rewards) {
        let episode = || row.episode.clone();
        if !(row.reward.is_finite() && reward.is_finite()) {
            return Err(AdvantageError::Reward {
                episode: episode(),
                reward: if row.reward.is_finite() {
                    *reward as f32
                } else {
                    row.reward
                },
            });
        }
        if step_wise && row.turn.is_none() {
            return Err(AdvantageError::StepWise { episode: episode() });
        }
        let place = *places.entry(set_of(row)).or_insert_with(|| {
            sets.push((set_of(row), Vec::new()));
            sets.len() - 1
        });
        let members = &mut sets[place].1;
        match members.iter().find(|(member, _)| *member == row.episode) {
            None => {
                members.push((&row.episode, *reward));
                (sum, count) = (sum + f64::from(row.reward), count + 1);
            }
            Some((_, first)) if first == reward => {}
            Some((_, first)) => {
                return Err(AdvantageError::Disagree {
                    episode: episode(),
                    first: *first as f32,
                    second: *reward as f32,
                });
            }
        }
    }
    let mut result = BatchAdvantages {
        groups: sets.len() as u32,
        mean_reward: if count == 0 { 0.0 } else { sum / f64::from(count) },
        ..Default::default()
    };
    let rewards_of = |((group, _), members): &(Set, Vec<(&str, f64)>)| {
        let mut rewards: Vec<f64> = members.iter().map(|(_, reward)| *reward).collect();
        if algorithm.control == Some(Control::ShuffledRewards) {
            shuffle(&mut rewards, seed, batch.step, *group);
        }
        rewards
    };
    let rewards: Vec<Vec<f64>> = sets.iter().map(rewards_of).collect();
    let deviation = batch_deviation(rewards.iter().map(Vec::as_slice));
    let mut by_member = std::collections::HashMap::new();
    for ((set, members), rewards) in sets.iter().zip(&rewards) {
        let advantages = advantages(rewards, &algorithm.advantage, deviation);
        result.by_group.push(advantages.values().unwrap_or_default().to_vec());
        match &advantages {
            GroupAdvantages::Dropped => result.dropped += 1,
            GroupAdvantages::ZeroVariance(_) => result.zero_variance += 1,
            GroupAdvantages::Kept(_) => {}
        }
        for (index, (member, _)) in members.iter().enumerate() {
            by_member.insert((*set, *member), advantages.values().map(|values| values[index]));
        }
    }
    let advantage_of = |row: &Row| by_member.get(&(set_of(row), row.episode.as_str())).copied().flatten();
    result.rows = batch.rows.iter().map(advantage_of).collect();
    let truncated = batch.rows.iter().filter(|row| algorithm.mask_overlong && row.truncated);
    let cut: std::collections::HashSet<_> = truncated.map(|row| (row.group, row.episode.as_str())).collect();
    let masked = |row: &Row| cut.contains(&(row.group, row.episode.as_str()));
    result.masked = batch.rows.iter().map(masked).collect();
    Ok(result)
}

#[cfg(test)]
mod tests;
