use super::*;

#[test]
fn advantages_of_a_group_are_what_the_textbook_says() {
    let a = advantages(&[1.0, 0.0, 0.0, 0.0], Divisor::Population);
    assert!(
        (a[0] - 3f64.sqrt()).abs() < 1e-12 && (a[1] + 1.0 / 3f64.sqrt()).abs() < 1e-12,
        "{a:?}"
    );
    let a = advantages(&[1.0, 0.0], Divisor::Unbiased);
    assert!((a[0] - 0.5f64.sqrt()).abs() < 1e-12, "{a:?}");
}

#[test]
fn a_group_that_agrees_teaches_nothing() {
    for divisor in [Divisor::One, Divisor::Population, Divisor::Unbiased] {
        assert_eq!(advantages(&[1.0, 1.0], divisor), [0.0, 0.0]);
    }
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
