use super::*;

fn formula(divisor: Divisor) -> Formula {
    Formula {
        divisor,
        leave_one_out: false,
        epsilon: 0.0,
    }
}

#[test]
fn advantages_of_a_group_are_what_the_textbook_says() {
    let a = formula(Divisor::Population).advantages(&[1.0, 0.0, 0.0, 0.0]);
    assert!(
        (a[0] - 3f64.sqrt()).abs() < 1e-12 && (a[1] + 1.0 / 3f64.sqrt()).abs() < 1e-12,
        "{a:?}"
    );
    let a = formula(Divisor::Unbiased).advantages(&[1.0, 0.0]);
    assert!((a[0] - 0.5f64.sqrt()).abs() < 1e-12, "{a:?}");
    let others = Formula {
        leave_one_out: true,
        ..formula(Divisor::One)
    };
    assert_eq!(others.advantages(&[1.0, 0.0, 0.5]), [0.75, -0.75, 0.0]);
}

#[test]
fn a_group_that_agrees_teaches_nothing() {
    for divisor in [
        Divisor::One,
        Divisor::Population,
        Divisor::Unbiased,
        Divisor::Batch(0.0),
    ] {
        assert_eq!(formula(divisor).advantages(&[1.0, 1.0]), [0.0, 0.0]);
    }
}

/// Whether a step with these advantages of three groups is accepted.
fn accepted(advantages: Vec<Vec<f64>>, kl: f64) -> bool {
    let claim = StepClaim {
        groups: 3,
        groups_zero_variance: 1,
        trained_tokens: 0,
        row_tokens: 0,
        mean_reward: 6.0 / 12.0,
        advantages,
        shuffled: false,
        kl,
        kl_loss: 0.0,
        rows_overlong: 0,
    };
    let batch = Batch::new(grpo_records::Writer::driver(1), "uid", 1, 1);
    let mut steps = Check::new("");
    check_step(&batch, &sets(), &claim, &mut steps);
    steps.disagreements.is_empty()
}

fn sets() -> [Set; 3] {
    let set = |group, rewards| Set {
        group,
        turn: None,
        rewards,
    };
    [
        set(0, vec![1.0; 4]),
        set(1, vec![1.0, 0.0, 0.0, 0.0]),
        set(2, vec![0.0, 1.0, 0.0, 0.0]),
    ]
}

#[test]
fn advantages_of_every_estimator_are_accepted_and_no_others() {
    let all: Vec<f32> = sets().into_iter().flat_map(|set| set.rewards).collect();
    let batch = Divisor::Batch(Divisor::Unbiased.of(&all));
    for divisor in [Divisor::One, Divisor::Population, Divisor::Unbiased, batch] {
        for (leave_one_out, epsilon) in [(false, 0.0), (true, 0.0), (false, 1e-4), (true, 0.7)] {
            let formula = Formula {
                divisor,
                leave_one_out,
                epsilon: if divisor == Divisor::One { 0.0 } else { epsilon },
            };
            let right: Vec<Vec<f64>> = sets().iter().map(|set| formula.advantages(&set.rewards)).collect();
            assert!(accepted(right.clone(), 0.0), "{formula:?}");
            for (group, member) in [(0, 0), (1, 0), (2, 2)] {
                let mut wrong = right.clone();
                wrong[group][member] += 0.01;
                assert!(!accepted(wrong.clone(), 0.0), "{formula:?}");
                assert!(accepted(wrong, 0.1), "rewards with a KL penalty are not recorded");
            }
        }
    }
    let right = formula(Divisor::One);
    let mixed = [right, formula(Divisor::Unbiased), right];
    let mixed = sets()
        .iter()
        .zip(mixed)
        .map(|(set, formula)| formula.advantages(&set.rewards))
        .collect();
    assert!(!accepted(mixed, 0.0), "one formula for a step");
}

/// Rows of two episodes of one group; a limit ended the second one.
fn batch() -> Batch {
    let mut batch = Batch::new(grpo_records::Writer::driver(1), "uid", 1, 1);
    for sample in 0..2 {
        let outcome = grpo_records::Outcome::Unresolved;
        let meta = grpo_records::fixture::episode("a", sample, outcome.clone()).meta;
        let turn = grpo_records::fixture::turn(0, "ls", "a");
        let mut rows = Row::of(&grpo_records::fixture::ended(&meta, &[turn]), &outcome, 0.0);
        rows.iter_mut().for_each(|row| row.truncated = sample == 1);
        batch.rows.extend(rows);
    }
    batch.groups.push(grpo_records::GroupRecord {
        group: 0,
        instance: "a".into(),
        rewards: vec![0.0, 0.0],
        voids: 0,
    });
    batch
}

#[test]
fn what_a_limit_cut_is_trained_on_or_counted_as_left_out() {
    let batch = batch();
    let whole: u64 = batch.rows.iter().map(|row| row.tokens.len() as u64).sum();
    let sampled: u64 = batch.rows.iter().map(|row| row.sampled() as u64).sum();
    let claim = |rows_overlong, trained_tokens, row_tokens| StepClaim {
        groups: 1,
        groups_zero_variance: 1,
        trained_tokens,
        row_tokens,
        mean_reward: 0.0,
        advantages: vec![vec![0.0, 0.0]],
        shuffled: false,
        kl: 0.0,
        kl_loss: 0.0,
        rows_overlong,
    };
    for (claim, agrees) in [
        (claim(0, sampled, whole), true),
        (claim(1, sampled / 2, whole / 2), true),
        // Left out but not counted; counted but not left out; counted too often.
        (claim(0, sampled / 2, whole / 2), false),
        (claim(1, sampled, whole), false),
        (claim(2, sampled / 2, whole / 2), false),
    ] {
        let mut steps = Check::new("");
        let group = Set {
            group: 0,
            turn: None,
            rewards: vec![0.0, 0.0],
        };
        check_step(&batch, &[group], &claim, &mut steps);
        assert_eq!(
            steps.disagreements.is_empty(),
            agrees,
            "{claim:?}: {:?}",
            steps.disagreements
        );
    }
}
