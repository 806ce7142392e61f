//! Advantages of a group: how much better each attempt at a task was than the others.
//!
//! A_i = (r_i - mean(r)) / (std(r) + epsilon), over the group's *valid* episodes (DeepSeekMath, arXiv 2402.03300, eq. 21; epsilon 1e-6 as in verl and
//! slime, 1e-4 in TRL). `std: None` leaves the division out (Dr. GRPO, arXiv 2503.20783), `Batch` divides by the unbiased deviation of all
//! rewards of the batch (as TRL does for `scale_rewards: batch`). LeaveOneOut compares with the mean of the others, r_i - mean(r without r_i) (RLOO,
//! arXiv 2402.14740).
//!
//! A Void has no reward, so it is in neither mean nor deviation; with fewer than two valid episodes there is nothing to compare and the group is
//! dropped. An episode that a limit cut may be left out of training, but it has a reward and stays in the baseline.

use grpo_crds::algorithm::{Advantage, Algorithm, Control, Estimator, StandardDeviation};
use grpo_records::batch::Batch;

/// What became of one group.
#[derive(Clone, Debug, PartialEq)]
pub enum GroupAdvantages {
    /// One advantage per valid episode, in order.
    Kept(Vec<f64>),
    /// All rewards were equal: every advantage is 0 and nothing is learnt from the group.
    ZeroVariance(Vec<f64>),
    /// Fewer than two valid episodes.
    Dropped,
}

impl GroupAdvantages {
    /// The advantages, if the group is trained on.
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

/// Unbiased deviation of all rewards of the groups that are kept: the divisor of [`StandardDeviation::Batch`].
pub fn batch_deviation<'a>(groups: impl Iterator<Item = &'a [f64]>) -> f64 {
    let all: Vec<f64> = groups.filter(|group| group.len() > 1).flatten().copied().collect();
    (squares(&all).0 / all.len().saturating_sub(1).max(1) as f64).sqrt()
}

/// Advantages of the valid episodes of one group. `batch`: [`batch_deviation`] of the batch. StepWise takes rewards of single turns: here it
/// is like Group, of the turns of one number.
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
    // r - mean of the others is the same difference, stretched.
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
    #[error("algorithm.advantage.estimator is StepWise, but a batch has no rewards of turns: use Group or LeaveOneOut")]
    StepWise,
    #[error("rows of {episode} carry different rewards ({first} and {second})")]
    Disagree { episode: String, first: f32, second: f32 },
}

/// A batch's advantages, one per row, and what became of its groups.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BatchAdvantages {
    /// Per row of the batch; `None` where its group was dropped.
    pub rows: Vec<Option<f64>>,
    /// Per row: its episode was cut by a limit and `maskOverlong` keeps it from being trained on.
    pub masked: Vec<bool>,
    pub groups: u32,
    pub dropped: u32,
    pub zero_variance: u32,
    /// Mean reward over valid episodes.
    pub mean_reward: f64,
    /// One list a group, in the order of the batch's groups and of their episodes; empty where the group was dropped.
    pub by_group: Vec<Vec<f64>>,
}

/// Rewards of a group in other places (Fisher-Yates, drawn by SplitMix64 from the run's seed, the step and the group): what a policy
/// "learns" from them is what it would learn from chance.
fn shuffle(rewards: &mut [f64], seed: u64, step: u32, group: u32) {
    let mut state = seed ^ (u64::from(step) << 32 | u64::from(group)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut draw = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    for last in (1..rewards.len()).rev() {
        rewards.swap(last, (draw() % (last as u64 + 1)) as usize);
    }
}

/// Advantages of a stored batch. The statistic is over *episodes*, not rows: an episode of many turns counts once. `seed` is the
/// run's.
pub fn batch_advantages(batch: &Batch, algorithm: &Algorithm, seed: u64) -> Result<BatchAdvantages, AdvantageError> {
    if algorithm.advantage.estimator == Estimator::StepWise {
        return Err(AdvantageError::StepWise);
    }
    let mut groups: Vec<(u32, Vec<(&str, f32)>)> = Vec::new();
    for row in &batch.rows {
        if !row.reward.is_finite() {
            return Err(AdvantageError::Reward {
                episode: row.episode.clone(),
                reward: row.reward,
            });
        }
        let episodes = match groups.iter_mut().find(|(group, _)| *group == row.group) {
            Some((_, episodes)) => episodes,
            None => {
                groups.push((row.group, Vec::new()));
                &mut groups.last_mut().unwrap_or_else(|| unreachable!()).1
            }
        };
        match episodes.iter().find(|(episode, _)| *episode == row.episode) {
            None => episodes.push((&row.episode, row.reward)),
            Some((_, first)) if *first == row.reward => {}
            Some((_, first)) => {
                let episode = row.episode.clone();
                return Err(AdvantageError::Disagree {
                    episode,
                    first: *first,
                    second: row.reward,
                });
            }
        }
    }
    let mut result = BatchAdvantages {
        groups: groups.len() as u32,
        ..Default::default()
    };
    let mut by_episode = std::collections::HashMap::new();
    let (mut sum, mut count) = (0.0, 0u32);
    let mut rewards: Vec<Vec<f64>> = Vec::with_capacity(groups.len());
    for (group, episodes) in &groups {
        let mut one: Vec<f64> = episodes.iter().map(|(_, reward)| f64::from(*reward)).collect();
        sum += one.iter().sum::<f64>();
        count += one.len() as u32;
        if algorithm.control == Some(Control::ShuffledRewards) {
            shuffle(&mut one, seed, batch.step, *group);
        }
        rewards.push(one);
    }
    let deviation = batch_deviation(rewards.iter().map(Vec::as_slice));
    for ((group, episodes), rewards) in groups.iter().zip(&rewards) {
        let advantages = advantages(rewards, &algorithm.advantage, deviation);
        result.by_group.push(advantages.values().unwrap_or_default().to_vec());
        match &advantages {
            GroupAdvantages::Dropped => result.dropped += 1,
            GroupAdvantages::ZeroVariance(_) => result.zero_variance += 1,
            GroupAdvantages::Kept(_) => {}
        }
        for (index, (episode, _)) in episodes.iter().enumerate() {
            by_episode.insert((*group, *episode), advantages.values().map(|values| values[index]));
        }
    }
    result.mean_reward = if count == 0 { 0.0 } else { sum / f64::from(count) };
    result.rows = batch
        .rows
        .iter()
        .map(|row| by_episode.get(&(row.group, row.episode.as_str())).copied().flatten())
        .collect();
    let cut: std::collections::HashSet<_> = batch
        .rows
        .iter()
        .filter(|row| algorithm.mask_overlong && row.truncated)
        .map(|row| (row.group, row.episode.as_str()))
        .collect();
    let masked = |row: &grpo_records::batch::Row| cut.contains(&(row.group, row.episode.as_str()));
    result.masked = batch.rows.iter().map(masked).collect();
    Ok(result)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn how(std: StandardDeviation) -> Advantage {
        Advantage {
            std,
            ..Default::default()
        }
    }

    fn of(rewards: &[f64], std: StandardDeviation) -> GroupAdvantages {
        advantages(rewards, &how(std), batch_deviation([rewards].into_iter()))
    }

    #[test]
    fn advantages_are_the_published_formulas() {
        let rewards = [1.0, 0.0, 0.0, 0.0];
        let value = |std| of(&rewards, std).values().unwrap()[0];
        assert!((value(StandardDeviation::None) - 0.75).abs() < 1e-12);
        assert!((value(StandardDeviation::Population) - 0.75 / (0.1875f64.sqrt() + 1e-6)).abs() < 1e-12);
        assert!((value(StandardDeviation::Unbiased) - 0.75 / (0.5 + 1e-6)).abs() < 1e-12);
    }

    #[test]
    fn a_group_with_fewer_than_two_valid_episodes_is_dropped() {
        assert_eq!(of(&[], StandardDeviation::None), GroupAdvantages::Dropped);
        assert_eq!(of(&[1.0], StandardDeviation::None), GroupAdvantages::Dropped);
    }

    #[test]
    fn leave_one_out_compares_with_the_mean_of_the_others() {
        let how = Advantage {
            estimator: Estimator::LeaveOneOut,
            std: StandardDeviation::None,
            epsilon: 0.0,
        };
        let found = advantages(&[1.0, 0.0, 0.5], &how, 0.0);
        for (found, wanted) in found.values().unwrap().iter().zip([0.75, -0.75, 0.0]) {
            assert!((found - wanted).abs() < 1e-12, "{found} {wanted}");
        }
    }

    #[test]
    fn the_batchs_deviation_is_over_every_kept_group_and_epsilon_is_the_specs() {
        let groups = [vec![1.0, 0.0], vec![5.0], vec![3.0, 3.0]];
        let deviation = batch_deviation(groups.iter().map(Vec::as_slice));
        // Of 1, 0, 3, 3: mean 1.75, squares 6.75.
        assert!((deviation - (6.75f64 / 3.0).sqrt()).abs() < 1e-12);
        let how = Advantage {
            epsilon: 0.5,
            ..how(StandardDeviation::Batch)
        };
        let found = advantages(&groups[0], &how, deviation);
        assert!((found.values().unwrap()[0] - 0.5 / (deviation + 0.5)).abs() < 1e-12);
        assert_eq!(batch_deviation(std::iter::empty()), 0.0);
    }

    #[test]
    fn equal_rewards_teach_nothing_and_give_no_rounding_noise() {
        let group = of(&[0.1, 0.1, 0.1], StandardDeviation::Population);
        assert_eq!(group, GroupAdvantages::ZeroVariance(vec![0.0; 3]));
    }

    #[test]
    fn shuffled_rewards_are_the_same_rewards_in_places_that_seed_step_and_group_decide() {
        let places = |seed, step, group| {
            let mut rewards = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0];
            shuffle(&mut rewards, seed, step, group);
            rewards
        };
        let mut sorted = places(1, 2, 3);
        sorted.sort_by(f64::total_cmp);
        assert_eq!(sorted, [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]);
        assert_eq!(places(1, 2, 3), places(1, 2, 3));
        for (seed, step, group) in [(0, 2, 3), (1, 1, 3), (1, 2, 4)] {
            assert_ne!(places(seed, step, group), places(1, 2, 3));
        }
    }

    #[test]
    fn every_place_is_as_likely_as_the_others() {
        let mut counts = [0u32; 4];
        for group in 0..4000 {
            let mut rewards = [1.0, 0.0, 0.0, 0.0];
            shuffle(&mut rewards, 0, 1, group);
            counts[rewards.iter().position(|r| *r == 1.0).unwrap()] += 1;
        }
        assert!(counts.iter().all(|count| (900..1100).contains(count)), "{counts:?}");
    }

    proptest! {
        #[test]
        fn advantages_are_centred_and_keep_the_order_of_rewards(rewards in prop::collection::vec(-2.0f64..2.0, 2..16)) {
            for std in [StandardDeviation::None, StandardDeviation::Population, StandardDeviation::Unbiased, StandardDeviation::Batch] {
                let group = of(&rewards, std);
                let values = group.values().unwrap();
                prop_assert!(values.iter().sum::<f64>().abs() < 1e-6);
                for (i, a) in rewards.iter().enumerate() {
                    for (j, b) in rewards.iter().enumerate() {
                        prop_assert!(a <= b || values[i] >= values[j]);
                    }
                }
            }
        }
    }
}
