use super::*;

fn set(every: Option<u32>, at_start: bool, at_end: bool) -> Cadence {
    Cadence {
        set: "s".into(),
        every,
        at_start,
        at_end,
    }
}

#[test]
fn sets_are_due_at_start_at_end_and_every_so_often() {
    let due = |set: &Cadence| {
        let mut moments = vec![Moment::Start];
        moments.extend((1..=5).map(Moment::After));
        moments
            .into_iter()
            .map(|moment| is_due(set, moment, 5))
            .collect::<Vec<_>>()
    };
    assert_eq!(due(&set(None, true, true)), [true, false, false, false, false, true]);
    assert_eq!(
        due(&set(Some(2), false, false)),
        [false, false, true, false, true, false]
    );
    assert_eq!(due(&set(Some(2), false, true)), [false, false, true, false, true, true]);
}

#[test]
fn evaluations_of_earlier_drivers_are_shown_with_the_newest_version_last() {
    let mut state = RunState::default();
    for version in ["l1-v10", "l2-v3", "base", "l1-v2"] {
        let result = EvaluationState::default();
        state.evaluations.insert(("s".to_owned(), version.to_owned()), result);
    }
    let versions: Vec<String> = evaluations_shown(&state)
        .into_iter()
        .map(|shown| shown.weights)
        .collect();
    assert_eq!(versions, ["base", "l1-v2", "l1-v10", "l2-v3"]);
}
