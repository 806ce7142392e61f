use super::*;
use grpo_records::{SCHEMA, Writer};

fn entry(sequence: u64, event: Event) -> JournalEntry {
    JournalEntry {
        schema: SCHEMA,
        writer: Writer::driver(1),
        sequence,
        at: 0,
        event,
    }
}

fn evaluated(set: &str, weights: &str, resolved: u32) -> Event {
    Event::EvaluationDone {
        set: set.into(),
        weights: weights.into(),
        resolved,
        episodes: 10,
        voids: 0,
    }
}

fn stepped(step: u32) -> Event {
    Event::StepDone {
        step,
        weights: format!("v{step}"),
        manifest_sha256: String::new(),
    }
}

fn line(points: &[(u32, f64, f64)]) -> Vec<Point> {
    let point = |(step, episodes, rate): &(u32, f64, f64)| Point {
        step: *step,
        episodes: *episodes,
        rate: *rate,
    };
    points.iter().map(point).collect()
}

#[test]
fn an_evaluation_counts_the_episodes_of_the_steps_before_its_weights_only() {
    let journal: Vec<JournalEntry> = [
        evaluated(SET, "base", 2),
        stepped(1),
        stepped(2),
        // With overlap the next step may end before the evaluation does.
        stepped(3),
        evaluated("heldout", "v2", 9),
        evaluated(SET, "v2", 5),
    ]
    .into_iter()
    .zip(1..)
    .map(|(event, sequence)| entry(sequence, event))
    .collect();
    let begun = BTreeMap::from([(1, 64), (2, 96), (3, 80)]);
    assert_eq!(points(&journal, &begun), line(&[(0, 0.0, 0.2), (2, 160.0, 0.5)]));
}

#[test]
fn attempts_of_one_episode_are_one_episode() {
    let root = "rollouts/iter-000001/a__t__g0__i1";
    for attempt in ["", "__t2", "__t13"] {
        assert_eq!(without_attempt(&format!("{root}{attempt}")), root);
    }
}

#[test]
fn seeds_are_averaged_after_equal_steps_and_steps_that_one_lacks_are_left_out() {
    let one = line(&[(0, 0.0, 0.2), (4, 100.0, 0.4), (8, 200.0, 0.6)]);
    let two = line(&[(0, 0.0, 0.4), (4, 140.0, 0.6)]);
    let expected = line(&[(0, 0.0, 0.3), (4, 120.0, 0.5)]);
    let averaged = mean(&[one, two]);
    assert_eq!(averaged.len(), expected.len());
    for (got, wanted) in averaged.iter().zip(&expected) {
        assert_eq!((got.step, got.episodes), (wanted.step, wanted.episodes));
        assert!((got.rate - wanted.rate).abs() < 1e-12);
    }
}

#[test]
fn episodes_to_a_rate_are_interpolated_at_its_first_crossing() {
    let curve = line(&[(0, 0.0, 0.2), (4, 100.0, 0.4), (8, 200.0, 0.3), (12, 300.0, 0.5)]);
    let cases = [
        (0.1, Some(0.0)),
        (0.3, Some(50.0)),
        (0.4, Some(100.0)),
        (0.45, Some(275.0)),
        (0.6, None),
    ];
    for (rate, expected) in cases {
        let got = episodes_to(&curve, rate);
        assert!(
            got.zip(expected)
                .is_some_and(|(got, expected)| (got - expected).abs() < 1e-9)
                || got == expected,
            "{rate}: {got:?}"
        );
    }
}

#[test]
fn fewer_episodes_to_the_rate_that_both_reach_are_the_gain_of_dynamic_sampling() {
    let compared = Compared {
        plain: vec![line(&[(0, 0.0, 0.2), (8, 512.0, 0.4)])],
        other: vec![line(&[(0, 0.0, 0.2), (4, 320.0, 0.4), (8, 640.0, 0.6)])],
    };
    let rows = compared.rows(Arm::Dynamic).unwrap();
    assert_eq!(rows[1].value, Some(1.6));
    assert!(rows[1].meets_its_bar() && rows[1].figure.contains("40.0 %"));
    assert_eq!((rows[0].value, rows[0].peer_value), (Some(60.0), Some(40.0)));
    assert_eq!(compared.rows(Arm::Overlap).unwrap().len(), 1);
    assert!(Compared::default().rows(Arm::Dynamic).is_err());
    let shorter = Compared {
        plain: vec![line(&[(0, 0.0, 0.2), (4, 256.0, 0.4)])],
        ..compared
    };
    assert!(shorter.rows(Arm::Dynamic).unwrap_err().to_string().contains("step 4"));
}

#[test]
fn rows_of_one_arm_replace_each_other_and_not_those_of_another() {
    let number = |arm: Arm| arm.figure("x").split(':').next().unwrap().to_owned();
    let numbers = [Arm::Dynamic, Arm::Overlap, Arm::Judge].map(number);
    assert_eq!(
        numbers,
        [
            "20.4 dynamic sampling",
            "20.4 rollouts beside steps",
            "20.4 a judge of turns"
        ]
    );
}
