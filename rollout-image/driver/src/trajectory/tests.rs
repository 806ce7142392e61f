use super::*;
use grpo_records::{SCHEMA, TurnAction, Writer};

fn turn(number: u32, prompt_length: usize, weights: &str) -> TurnRecord {
    TurnRecord {
        schema: SCHEMA,
        writer: Writer::driver(1),
        episode: "a__g0__i0".into(),
        turn: number,
        lease: "l".into(),
        omitted: None,
        opening: Vec::new(),
        row: 0,
        prompt_length,
        sampled_length: 2,
        observation_length: 1,
        prompt: if number == 0 { vec![1, 2, 3] } else { Vec::new() },
        seed: 1,
        sampled: vec![10, 11],
        logprobs: vec![-0.5, -0.25],
        weights: weights.into(),
        finish: "stop".into(),
        experts: None,
        text: "x".into(),
        request: None,
        chat: None,
        action: TurnAction::format_error(0),
        exec: None,
        observation: vec![20],
        observation_text: "o".into(),
        memory: Default::default(),
        end: None,
        sample_millis: 1,
        exec_millis: 0,
        waited_millis: 0,
        at: 5,
    }
}

/// Defects 22 and 23: observations stand between turns, and the mask marks what was sampled, not a count from an end.
#[test]
fn the_mask_is_exactly_on_sampled_ids_and_nothing_between_turns_is_missing() {
    let mut trajectory = Trajectory::default();
    trajectory.push(&turn(0, 3, "a-v0")).unwrap();
    trajectory.push(&turn(1, 6, "a-v0")).unwrap();
    let row = trajectory.rows[0].stored();
    assert_eq!(row.tokens, [1, 2, 3, 10, 11, 20, 10, 11, 20]);
    assert_eq!(row.mask, [0, 0, 0, 1, 1, 0, 1, 1, 0]);
    assert_eq!(row.logprobs, [0.0, 0.0, 0.0, -0.5, -0.25, 0.0, -0.5, -0.25, 0.0]);
    assert_eq!((row.weights.len(), &row.turns[..]), (1, &[0, 1][..]));
    assert_eq!(trajectory.turns[1], turn(1, 6, "a-v0").without_ids());
}

#[test]
fn another_version_opens_another_span() {
    let mut trajectory = Trajectory::default();
    trajectory.push(&turn(0, 3, "a-v0")).unwrap();
    trajectory.push(&turn(1, 6, "a-v1")).unwrap();
    let spans: Vec<(usize, usize, &str)> = trajectory.rows[0]
        .weights
        .iter()
        .map(|s| (s.from, s.to, s.version.as_str()))
        .collect();
    assert_eq!(spans, [(3, 5, "a-v0"), (6, 8, "a-v1")]);
    assert_eq!(trajectory.versions(), ["a-v0", "a-v1"]);
}

#[test]
fn experts_are_of_every_token_but_the_last_and_the_next_turn_goes_on_there() {
    let span = |from, to| {
        Some(ExpertsSpan {
            from,
            to,
            file: "f".into(),
            sha256: "s".into(),
        })
    };
    let with = |number, prompt_length, experts| TurnRecord {
        experts,
        ..turn(number, prompt_length, "a-v0")
    };
    let mut trajectory = Trajectory::default();
    trajectory.push(&with(0, 3, span(0, 4))).unwrap();
    assert_eq!(experts_to(&trajectory.rows[0]), 4);
    let mut other = trajectory.clone();
    trajectory.push(&with(1, 6, span(4, 7))).unwrap();
    assert_eq!(trajectory.rows[0].experts.len(), 2);
    let twice = other.push(&with(1, 6, span(3, 7)));
    assert!(matches!(
        twice,
        Err(TrajectoryError::Experts {
            known: 4,
            computed: 7,
            ..
        })
    ));
}

/// Defect 24.
#[test]
fn logprobs_are_never_padded_or_cut_to_fit() {
    for logprobs in [vec![-0.5], vec![-0.5, -0.5, -0.5], vec![]] {
        let mut record = turn(0, 3, "a-v0");
        record.logprobs = logprobs;
        assert!(matches!(
            Trajectory::default().push(&record),
            Err(TrajectoryError::Logprobs { .. })
        ));
    }
}

#[test]
fn a_turn_that_was_sampled_from_another_prompt_is_refused() {
    let mut trajectory = Trajectory::default();
    trajectory.push(&turn(0, 3, "a-v0")).unwrap();
    assert!(matches!(
        trajectory.push(&turn(1, 7, "a-v0")),
        Err(TrajectoryError::PromptLength { .. })
    ));
    assert!(matches!(
        trajectory.push(&turn(2, 6, "a-v0")),
        Err(TrajectoryError::Order { .. })
    ));
}

#[test]
fn a_turn_with_another_history_opens_a_row_and_every_sampled_token_is_in_one_mask() {
    let mut trajectory = Trajectory::default();
    trajectory.push(&turn(0, 3, "a-v0")).unwrap();
    let rewritten = TurnRecord {
        row: 1,
        prompt: vec![1, 9],
        ..turn(1, 2, "a-v0")
    };
    trajectory.push(&rewritten).unwrap();
    trajectory.push(&turn(2, 6, "a-v1")).unwrap();
    assert_eq!(trajectory.rows[0].tokens, [1, 2, 3, 10, 11, 20, 10, 11, 20]);
    assert_eq!(trajectory.rows[1].tokens, [1, 9, 10, 11, 20]);
    assert_eq!(
        (&trajectory.rows[0].turns[..], &trajectory.rows[1].turns[..]),
        (&[0, 2][..], &[1][..])
    );
    assert_eq!((trajectory.sampled(), trajectory.tokens()), (6, 14));
    assert_eq!(trajectory.versions(), ["a-v0", "a-v1"]);
    let beyond = TurnRecord {
        row: 3,
        ..turn(3, 0, "a-v0")
    };
    assert!(matches!(
        trajectory.push(&beyond),
        Err(TrajectoryError::Row { row: 3, rows: 2, .. })
    ));
}

#[test]
fn a_growing_episode_reserves_at_most_an_eighth_more_than_it_has() {
    let mut trajectory = Trajectory::default();
    for number in 0..100 {
        let prompt_length = 3 + 3 * number as usize;
        trajectory.push(&turn(number, prompt_length, "a-v0")).unwrap();
        let (row, turns) = (&trajectory.rows[0], &trajectory.turns);
        for (length, capacity) in [
            (row.tokens.len(), row.tokens.capacity()),
            (row.logprobs.len(), row.logprobs.capacity()),
            (turns.len(), turns.capacity()),
        ] {
            assert!(capacity <= length + length / 8, "{capacity} for {length}");
        }
    }
}

#[test]
fn texts_of_earlier_turns_are_packed_unless_the_episode_keeps_them_and_its_whole_turns_have_all() {
    for keeps in [false, true] {
        let mut trajectory = Trajectory::new(keeps);
        let mut recorded = Vec::new();
        for number in 0..40 {
            let turn = TurnRecord {
                observation_text: format!("{number}\n").repeat(500),
                ..turn(number, 3 + 3 * number as usize, "a-v0")
            };
            trajectory.push(&turn).unwrap();
            recorded.push(turn.without_ids());
        }
        assert_eq!(trajectory.turns == recorded, keeps);
        assert_eq!(trajectory.turns[0].observation_text.is_empty(), !keeps);
        assert_eq!(*trajectory.whole_turns().unwrap(), recorded[..]);
    }
}
