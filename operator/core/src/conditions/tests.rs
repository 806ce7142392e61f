use super::*;

fn at(text: &str) -> Time {
    Time(text.parse().unwrap())
}

#[test]
fn the_time_of_the_last_transition_moves_only_with_the_status() {
    let early = Conditions::after(&[], Some(1), at("2026-01-01T00:00:00Z"))
        .set("Ready", ConditionStatus::False, Reason::NotEvaluated, "a")
        .done();
    let same = Conditions::after(&early, Some(2), at("2026-01-02T00:00:00Z"))
        .set("Ready", ConditionStatus::False, Reason::NeverFits, "b")
        .done();
    assert_eq!(same[0].last_transition_time, early[0].last_transition_time);
    assert_eq!(
        (same[0].reason.as_str(), same[0].observed_generation),
        ("NeverFits", Some(2))
    );
    let turned = Conditions::after(&same, Some(2), at("2026-01-03T00:00:00Z"))
        .set("Ready", ConditionStatus::True, Reason::Admitted, "c")
        .done();
    assert_eq!(turned[0].last_transition_time, at("2026-01-03T00:00:00Z"));
}

#[test]
fn a_condition_that_is_kept_is_as_it_was_said() {
    let before = Conditions::after(&[], Some(1), at("2026-01-01T00:00:00Z"))
        .set("Accepted", ConditionStatus::True, Reason::NotEvaluated, "a")
        .done();
    let kept = Conditions::after(&before, Some(2), at("2026-01-02T00:00:00Z"))
        .keep("Accepted")
        .keep("Ready")
        .done();
    assert_eq!(kept, before);
}

#[test]
fn long_texts_keep_their_beginning_and_their_end() {
    let text = format!("begin{}end", "é".repeat(10_000));
    let short = shortened(&text);
    assert!(short.len() <= LONGEST_MESSAGE && short.starts_with("begin") && short.ends_with("end"));
    assert_eq!(shortened("short"), "short");
}

#[test]
fn one_condition_that_is_set_alone_leaves_the_others_in_their_places() {
    let before = Conditions::after(&[], Some(1), at("2026-01-01T00:00:00Z"))
        .set("Accepted", ConditionStatus::True, Reason::SpecValid, "a")
        .set("Ready", ConditionStatus::True, Reason::AllReplicasServe, "b")
        .set("Probed", ConditionStatus::True, Reason::ProbePassed, "c")
        .done();
    let alone = |previous: &[Condition]| {
        Conditions::after(previous, Some(2), at("2026-01-02T00:00:00Z"))
            .set_alone("Ready", ConditionStatus::False, Reason::QuotaExceeded, "d")
            .done()
    };
    let after = alone(&before);
    assert_eq!((&after[0], &after[2]), (&before[0], &before[2]));
    assert_eq!((after[1].type_.as_str(), after[1].status.as_str()), ("Ready", "False"));
    assert_eq!(after.len(), 3);
    assert_eq!(alone(&[]), [after[1].clone()], "also where it was not known before");
}
