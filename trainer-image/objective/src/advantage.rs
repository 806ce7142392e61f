//! Advantages of a group: how much better each attempt at a task was than the others.
//!
//! A_i = (r_i - mean(r)) / (std(r) + epsilon), over the group's *valid* episodes (DeepSeekMath, arXiv 2402.03300, eq.
//! 21; epsilon 1e-6 as in verl and slime, 1e-4 in TRL). `std: None` leaves the division out (Dr. GRPO, arXiv
//! 2503.20783), `Batch` divides by the unbiased deviation of all rewards of the batch (as TRL does for
//! `scale_rewards: batch`). LeaveOneOut compares with the mean of the others, r_i - mean(r without r_i) (RLOO, arXiv
//! 2402.14740).
//!
//! StepWise takes rows of single turns, each with its turn's reward (outcome and process together, as OpenClaw-RL's),
//! and compares the turns of one number within the group; with fewer than two there is nothing to compare.
//!
//! A Void has no reward, so it is in neither mean nor deviation; with fewer than two valid episodes there is nothing to
//! compare and the group is dropped. An episode that a limit cut may be left out of training, but it has a reward and
//! stays in the baseline.

use grpo_crds::algorithm::{Advantage, Algorithm, Control, Estimator, StandardDeviation};
use grpo_records::batch::{Batch, Row};

use crate::mixing::{STEP, mixed};

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

/// Advantages of the valid episodes of one group. `batch`: [`batch_deviation`] of the batch. StepWise takes rewards of
/// single turns: here it is like Group, of the turns of one number.
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
    #[error(
        "algorithm.advantage.estimator is StepWise, but a row of {episode} does not say which turn it is: use one row per turn, or Group"
    )]
    StepWise { episode: String },
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
    /// One list a group (StepWise: a group's turns of one number), in the order of the batch's groups and of their
    /// episodes; empty where it was dropped.
    pub by_group: Vec<Vec<f64>>,
}

/// Rewards of a group in other places (Fisher-Yates, drawn by SplitMix64 from the run's seed, the step and the group):
/// what a policy "learns" from them is what it would learn from chance.
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

/// What is compared with what: a group's episodes, or with StepWise its turns of one number.
type Set = (u32, Option<u32>);

/// The same with other rewards than the batch's, one a row: those from which a KL penalty was taken
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
        let at = sets.iter().position(|(set, _)| *set == set_of(row)).unwrap_or_else(|| {
            sets.push((set_of(row), Vec::new()));
            sets.len() - 1
        });
        let members = &mut sets[at].1;
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

    fn turns(rows: &[(&str, Option<u32>, f32)]) -> Batch {
        let mut batch = Batch::new(grpo_records::Writer::driver(1), "run", 0, 1);
        batch.rows = rows
            .iter()
            .map(|(episode, turn, reward)| Row {
                group: 0,
                episode: (*episode).to_owned(),
                task: 0,
                instance: "i".to_owned(),
                turn: *turn,
                tokens: vec![1, 2],
                mask: vec![0, 1],
                logprobs: vec![0.0, -1.0],
                weights: Vec::new(),
                experts: Vec::new(),
                temperature: 1.0,
                reward: *reward,
                outcome: grpo_records::outcome::Outcome::Resolved,
                truncated: *episode == "b",
            })
            .collect();
        batch
    }

    #[test]
    fn step_wise_compares_turns_of_one_number_and_drops_a_turn_that_only_one_episode_has() {
        let mut algorithm = Algorithm::default();
        algorithm.advantage.estimator = Estimator::StepWise;
        algorithm.advantage.std = StandardDeviation::None;
        let batch = turns(&[
            ("a", Some(0), 1.0),
            ("a", Some(1), 0.5),
            ("a", Some(2), 9.0),
            ("b", Some(0), 0.0),
            ("b", Some(1), 0.5),
        ]);
        let found = batch_advantages(&batch, &algorithm, 0).unwrap();
        assert_eq!(found.rows, [Some(0.5), Some(0.0), None, Some(-0.5), Some(0.0)]);
        assert_eq!((found.groups, found.dropped, found.zero_variance), (3, 1, 1));
        let whole = batch_advantages(&turns(&[("a", None, 1.0)]), &algorithm, 0);
        assert!(matches!(whole, Err(AdvantageError::StepWise { .. })), "{whole:?}");
    }

    #[test]
    fn shaped_rewards_take_the_place_of_the_batchs_but_not_in_its_mean_and_a_cut_episode_stays_in_the_baseline() {
        let mut algorithm = Algorithm {
            mask_overlong: true,
            ..Default::default()
        };
        algorithm.advantage.std = StandardDeviation::None;
        let batch = turns(&[("a", None, 1.0), ("b", None, 1.0)]);
        let found = shaped_advantages(&batch, &[0.5, 1.5], &algorithm, 0).unwrap();
        assert_eq!(found.rows, [Some(-0.5), Some(0.5)]);
        assert_eq!((found.mean_reward, found.masked), (1.0, vec![false, true]));
        let broken = shaped_advantages(&batch, &[f64::NAN, 1.0], &algorithm, 0);
        assert!(matches!(broken, Err(AdvantageError::Reward { .. })));
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
