use super::*;
use grpo_crds::grpo_run::TaskOrder;
use proptest::prelude::*;

/// One letter per group: `+` has a signal, `=` has equal rewards, `x` too few valid episodes, `.` runs.
fn groups(letters: &str) -> Vec<Group> {
    let group = |letter| match letter {
        '+' => Group::Ended(Signal::Some),
        '=' => Group::Ended(Signal::None),
        'x' => Group::Ended(Signal::TooFewValid),
        _ => Group::Running,
    };
    letters.chars().map(group).collect()
}

fn enough(chosen: &[u32], needed: u32) -> Decision {
    let groups = chosen.iter().copied().collect();
    Decision::Enough(Chosen { groups, needed })
}

#[test]
fn a_batch_has_the_first_groups_that_teach_something_in_the_order_of_their_tasks() {
    let rule = |slots, limit| Rule {
        wanted: 2,
        slots,
        limit,
    };
    for (slots, limit, letters, decision) in [
        (2, 8, "..", Decision::Wait),
        (2, 8, "+.", Decision::Wait),
        (2, 8, "++", enough(&[0, 1], 2)),
        // Each group without a signal is replaced by one.
        (2, 8, "=.", Decision::Add(1)),
        (2, 8, "=x", Decision::Add(2)),
        (2, 8, "=..", Decision::Wait),
        (2, 8, "=+x+", enough(&[1, 3], 4)),
        // More groups run than are wanted, and the slow first one is awaited.
        (4, 8, ".+++", Decision::Wait),
        (4, 8, "++..", enough(&[0, 1], 2)),
        (4, 8, "=++.", enough(&[1, 2], 3)),
        (4, 8, ".+=+", Decision::Add(1)),
        // At the limit.
        (2, 3, "==.", Decision::Wait),
        (2, 3, "==+", enough(&[2], 3)),
        (2, 3, "x==", enough(&[1, 2], 3)),
        (2, 3, "===", enough(&[0, 1], 3)),
        (2, 3, "xx=", enough(&[2], 3)),
        (2, 3, "xxx", enough(&[], 3)),
    ] {
        let found = decide(rule(slots, limit), &groups(letters));
        assert_eq!(found, decision, "{letters} with {slots} slots, at most {limit}");
    }
}

/// Rolls out until the batch is known; `order` chooses the running group that ends next.
fn rolled_out(rule: Rule, signals: &[Signal], mut order: impl FnMut(usize) -> usize) -> (Chosen, usize) {
    let mut groups = vec![Group::Running; rule.slots];
    loop {
        match decide(rule, &groups) {
            Decision::Enough(chosen) => return (chosen, groups.len()),
            Decision::Add(more) => groups.extend(vec![Group::Running; more]),
            Decision::Wait => {
                let of = |at: &usize| groups[*at] == Group::Running;
                let running: Vec<usize> = (0..groups.len()).filter(of).collect();
                let at = running[order(running.len()) % running.len()];
                groups[at] = Group::Ended(signals[at]);
            }
        }
    }
}

proptest! {
    #[test]
    fn which_groups_a_batch_has_depends_on_their_verdicts_and_not_on_which_ended_first(
        signals in proptest::collection::vec(prop_oneof![Just(Signal::Some), Just(Signal::None), Just(Signal::TooFewValid)], 24),
        wanted in 1usize..5,
        more_slots in 0usize..4,
        more_limit in 0usize..12,
        order in proptest::collection::vec(any::<usize>(), 64),
    ) {
        let rule = Rule { wanted, slots: wanted + more_slots, limit: wanted + more_slots + more_limit };
        let (in_order, _) = rolled_out(rule, &signals, |_| 0);
        let mut next = order.iter().cycle();
        let (chosen, begun) = rolled_out(rule, &signals, |_| *next.next().unwrap());
        prop_assert_eq!(&chosen, &in_order);
        prop_assert!(begun <= rule.limit && chosen.groups.len() <= wanted);
        // Without over-sampling, no surplus group begins.
        if more_slots == 0 {
            prop_assert_eq!(begun, chosen.needed as usize);
        }
    }
}

fn source(next: u64, band: Option<(f64, f64)>, rates: &[(u32, f64)]) -> Source {
    let sequence = Sequence::new(TaskOrder::InOrder, 0, 4);
    Source::new(sequence, next, band, rates.iter().copied().collect())
}

#[test]
fn tasks_outside_the_band_are_passed_over_and_those_never_tried_are_not() {
    let rates = [(0, 1.0), (1, 0.5), (2, 0.0)];
    let mut all = source(1, None, &rates);
    assert_eq!(all.draw(4), (vec![1, 2, 3, 0], vec![1, 2, 3, 4]));
    let mut some = source(0, Some((0.1, 0.9)), &rates);
    assert_eq!(some.draw(4), (vec![1, 3, 1, 3], vec![1, 3, 5, 7]));
    let mut ends = source(0, Some((0.0, 0.5)), &rates);
    assert_eq!(ends.draw(3), (vec![1, 2, 3], vec![1, 2, 3]));
}

#[test]
fn where_every_task_is_outside_the_band_all_are_taken() {
    let rates = [(0, 1.0), (1, 1.0), (2, 0.0), (3, 0.0)];
    let mut none = source(2, Some((0.1, 0.9)), &rates);
    assert_eq!(none.draw(3), (vec![2, 3, 0], vec![2, 3, 4]));
}
