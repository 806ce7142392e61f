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
            stored: grpo_records::StoredRow::default(),
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

#[derive(serde::Deserialize)]
struct OpenClaw {
    rows: Vec<OpenClawRow>,
    advantages: Vec<Option<f64>>,
}

#[derive(serde::Deserialize)]
struct OpenClawRow {
    group: u32,
    episode: u32,
    step: u32,
    reward: f64,
}

/// Recorded with `make check-judge`, which makes new ones and names their folder. Two differences are permitted: the
/// original leaves out rows whose rewards are all alike (except one set, if all would go), here they have advantage 0;
/// the original keeps the raw reward of a step that only one episode has, here it has no signal.
#[test]
fn step_wise_advantages_are_those_of_openclaws_own_function() {
    let cases = match std::env::var("GRPO_JUDGE_CASES") {
        Ok(folder) => std::fs::read_to_string(format!("{folder}/steps.jsonl")).unwrap(),
        Err(_) => include_str!("steps.jsonl").to_owned(),
    };
    let mut algorithm = Algorithm::default();
    algorithm.advantage.estimator = Estimator::StepWise;
    let (mut alike, mut equal, mut single, mut farthest) = (0, 0, 0, 0f64);
    for line in cases.lines() {
        let case: OpenClaw = serde_json::from_str(line).unwrap();
        let names: Vec<String> = case
            .rows
            .iter()
            .map(|row| format!("{}/{}", row.group, row.episode))
            .collect();
        let rows: Vec<_> = case
            .rows
            .iter()
            .zip(&names)
            .map(|(row, name)| (name.as_str(), Some(row.step), 0.0))
            .collect();
        let mut batch = turns(&rows);
        for (row, of) in batch.rows.iter_mut().zip(&case.rows) {
            row.group = of.group;
        }
        let rewards: Vec<f64> = case.rows.iter().map(|row| row.reward).collect();
        let found = shaped_advantages(&batch, &rewards, &algorithm, 0).unwrap();
        for ((row, ours), theirs) in case.rows.iter().zip(&found.rows).zip(&case.advantages) {
            let set = case
                .rows
                .iter()
                .filter(|other| (other.group, other.step) == (row.group, row.step));
            let set: Vec<f64> = set.map(|other| other.reward).collect();
            match (ours, theirs) {
                (None, Some(raw)) => {
                    assert_eq!((set.len(), *raw), (1, row.reward), "{line}");
                    single += 1;
                }
                (Some(ours), None) => {
                    assert!(*ours == 0.0 && set.iter().all(|reward| *reward == set[0]), "{line}");
                    equal += 1;
                }
                (Some(ours), Some(theirs)) => {
                    farthest = farthest.max((ours - theirs).abs());
                    alike += 1;
                }
                (None, None) => panic!("{line}"),
            }
        }
    }
    println!("step-wise: {alike} rows, farthest {farthest:.1e}; {equal} of equal rewards, {single} single");
    assert!(farthest < 1e-6 && alike > 100 && equal > 0 && single > 0, "{farthest}");
}
