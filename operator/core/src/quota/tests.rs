use proptest::prelude::*;

use super::*;

fn start() -> Timestamp {
    "2026-01-01T00:00:00Z".parse().unwrap()
}

fn maker(name: &str) -> Maker {
    Maker {
        namespace: "team".into(),
        name: format!("GrpoRun {name}"),
        uid: name.into(),
    }
}

#[test]
fn nobody_waits_before_the_quota_refused_a_pod() {
    let mut turns = QuotaTurns::default();
    assert_eq!(turns.ask(&maker("a"), true, start()), None);
    assert_eq!(turns.ask(&maker("b"), true, start()), None);
}

#[test]
fn a_refused_run_gives_back_and_pauses_while_one_other_makes_its_pods() {
    let (mut turns, now) = (QuotaTurns::default(), start());
    turns.refuse(&maker("a"), "exceeded quota: pods", now);
    let wait = turns.ask(&maker("a"), true, now).unwrap();
    assert!(wait.refused && wait.until == now + SignedDuration::from_secs(10));
    for words in ["namespace team", "exceeded quota: pods", "Raise the quota"] {
        assert!(wait.message.contains(words), "{}", wait.message);
    }
    assert_eq!(turns.ask(&maker("b"), true, now), None, "b has the turn");
    let behind = turns.ask(&maker("c"), true, now).unwrap();
    assert!(!behind.refused && behind.message.contains("GrpoRun b"), "{behind:?}");
    assert_eq!(turns.ask(&maker("c"), false, now), None, "it lacks nothing");
    let mut elsewhere = maker("d");
    elsewhere.namespace = "other".into();
    assert_eq!(turns.ask(&elsewhere, true, now), None);
}

#[test]
fn a_refusal_ends_the_turn_and_doubles_the_pause_and_a_turn_without_one_ends_both() {
    let (mut turns, mut now) = (QuotaTurns::default(), start());
    for pause in [10, 20, 40, 80, 120, 120] {
        turns.refuse(&maker("a"), "exceeded quota", now);
        let wait = turns.ask(&maker("a"), true, now).unwrap();
        assert_eq!(wait.until, now + SignedDuration::from_secs(pause));
        now = wait.until;
        assert_eq!(turns.ask(&maker("a"), true, now), None);
        assert!(turns.ask(&maker("b"), true, now).is_some(), "it is the turn of a");
    }
    assert_eq!(turns.ask(&maker("b"), true, now + TURN), None);
    assert!(turns.namespaces.is_empty());
}

#[test]
fn a_deleted_run_is_forgotten() {
    let (mut turns, now) = (QuotaTurns::default(), start());
    turns.refuse(&maker("a"), "exceeded quota", now);
    assert_eq!(turns.ask(&maker("b"), true, now), None);
    turns.forget("a");
    turns.forget("b");
    assert!(turns.namespaces.is_empty());
}

#[test]
fn a_refused_run_that_does_not_come_back_keeps_nobody_waiting() {
    let (mut turns, now) = (QuotaTurns::default(), start());
    turns.refuse(&maker("suspended"), "exceeded quota", now);
    assert_eq!(turns.ask(&maker("b"), true, now + SignedDuration::from_secs(100)), None);
    assert!(turns.namespaces.is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Runs create one pod at a time, in any order, against a quota that holds each of them alone: each run gets all of
    /// its pods, one run after another.
    #[test]
    fn runs_that_fit_alone_are_made_one_after_the_other(
        needs in prop::collection::vec(1u32..6, 2..5),
        order in prop::collection::vec(0usize..5, 8..40),
    ) {
        let quota = *needs.iter().max().unwrap();
        let (mut turns, mut now) = (QuotaTurns::default(), start());
        let mut made = vec![0u32; needs.len()];
        let mut finished = vec![false; needs.len()];
        let mut order = order.into_iter().cycle();
        for round in 0..20_000 {
            if finished.iter().all(|finished| *finished) {
                return Ok(());
            }
            // A complete run ends a minute later.
            if let Some(whole) = (0..needs.len()).find(|n| !finished[*n] && made[*n] == needs[*n]) {
                now += SignedDuration::from_secs(60);
                (made[whole], finished[whole]) = (0, true);
                continue;
            }
            // In any order, but every run has its turn.
            let n = if round % 3 == 0 { round / 3 } else { order.next().unwrap() } % needs.len();
            now += SignedDuration::from_millis(700);
            if finished[n] {
                continue;
            }
            match turns.ask(&maker(&n.to_string()), true, now) {
                Some(wait) if wait.refused => made[n] = 0,
                Some(_) => {}
                // Two controllers create one half each.
                None => {
                    for _ in 0..needs[n].div_ceil(2).min(needs[n] - made[n]) {
                        if made.iter().sum::<u32>() == quota {
                            turns.refuse(&maker(&n.to_string()), "exceeded quota", now);
                            break;
                        }
                        made[n] += 1;
                    }
                }
            }
        }
        prop_assert!(false, "{made:?} of {needs:?} with a quota of {quota}");
    }
}
