use super::*;
use proptest::prelude::*;

const DOUBTFUL: [Attempt; 4] = [
    Attempt::NoReport,
    Attempt::TimedOut,
    Attempt::Exhausted,
    Attempt::WorkerFailed,
];

const LOST: Attempt = Attempt::Lost {
    reason: VoidReason::SandboxLost,
};

#[test]
fn a_judged_log_is_the_verdict_whatever_came_before_it() {
    for before in [vec![], vec![LOST], vec![Attempt::NoReport]] {
        for (resolved, outcome) in [(true, Outcome::Resolved), (false, Outcome::Unresolved)] {
            let attempts = [before.clone(), vec![Attempt::Judged { resolved }]].concat();
            assert_eq!(after_grading(&attempts, None), Next::Conclude(outcome));
        }
    }
}

/// Defect 17.
#[test]
fn a_lost_grader_means_grading_again_and_is_never_a_verdict() {
    for lost in 1..=20 {
        assert_eq!(after_grading(&vec![LOST; lost], None), Next::GradeAgain);
        assert_eq!(
            after_control(&vec![LOST; lost]),
            None,
            "a loss says nothing about a task"
        );
    }
}

#[test]
fn a_patch_that_silences_graders_is_unresolved_once_the_control_was_heard_in_between() {
    let twice = [Attempt::Silent, LOST, Attempt::Silent];
    assert_eq!(after_grading(&twice, None), Next::AskControl);
    assert_eq!(
        after_grading(&twice, Some(Control::Sound)),
        Next::GradeAgain,
        "it may have been an outage"
    );
    let thrice = [&twice[..], &[Attempt::Silent]].concat();
    assert_eq!(
        after_grading(&thrice, Some(Control::Sound)),
        Next::Conclude(Outcome::Unresolved)
    );
    assert_eq!(after_control(&[Attempt::Silent, Attempt::Silent]), None);
}

#[test]
fn a_doubtful_log_is_graded_once_more_and_then_the_control_decides() {
    for one in DOUBTFUL {
        assert_eq!(after_grading(std::slice::from_ref(&one), None), Next::GradeAgain);
        for other in DOUBTFUL {
            let both = [one.clone(), other];
            assert_eq!(after_grading(&both, None), Next::AskControl);
            assert_eq!(
                after_grading(&both, Some(Control::Sound)),
                Next::Conclude(Outcome::Unresolved)
            );
            assert_eq!(
                after_grading(&both, Some(Control::Broken)),
                Next::Conclude(Outcome::void(VoidReason::GraderFailed))
            );
        }
    }
}

#[test]
fn the_policy_cannot_bring_a_void_about() {
    // No effect of a patch on its grader leads to a void, as long as the grader can judge the empty patch.
    let caused_by_policy = [
        &DOUBTFUL[..],
        &[Attempt::PatchRefused, Attempt::Judged { resolved: false }],
    ]
    .concat();
    for first in &caused_by_policy {
        for second in &caused_by_policy {
            for control in [None, Some(Control::Sound)] {
                let next = after_grading(&[first.clone(), second.clone()], control);
                assert!(
                    !matches!(next, Next::Conclude(Outcome::Void { .. })),
                    "{first:?} {second:?}"
                );
            }
        }
    }
    let ends = [
        EpisodeEnd::Submitted,
        EpisodeEnd::TurnLimit,
        EpisodeEnd::ContextFull,
        EpisodeEnd::TokenLimit,
        EpisodeEnd::EpisodeTimeout,
        EpisodeEnd::SandboxExhausted,
    ];
    for end in ends {
        assert_eq!(without_grader(end, None), Some(Outcome::Unresolved));
    }
}

/// Defect 20.
#[test]
fn an_empty_patch_is_unresolved_before_any_grader_sees_it() {
    assert_eq!(
        without_grader(EpisodeEnd::Submitted, Some(b"")),
        Some(Outcome::Unresolved)
    );
    assert_eq!(without_grader(EpisodeEnd::Submitted, Some(b"x")), None);
}

/// Defect 13: an episode that reached its turn or time limit keeps its patch and is graded.
#[test]
fn a_limit_does_not_lose_the_patch() {
    for end in [
        EpisodeEnd::TurnLimit,
        EpisodeEnd::ContextFull,
        EpisodeEnd::TokenLimit,
        EpisodeEnd::EpisodeTimeout,
    ] {
        assert_eq!(without_grader(end, Some(b"diff")), None);
    }
}

#[test]
fn the_control_is_sound_once_it_was_judged_and_broken_after_two_doubts() {
    assert_eq!(
        after_control(&[Attempt::Judged { resolved: false }]),
        Some(Control::Sound)
    );
    assert_eq!(after_control(&[Attempt::TimedOut]), None);
    assert_eq!(
        after_control(&[Attempt::TimedOut, Attempt::NoReport]),
        Some(Control::Broken)
    );
    assert_eq!(after_control(&[LOST, Attempt::NoReport]), None);
}

/// The effects that a patch can have on its grader.
fn of_a_policy() -> impl Strategy<Value = Attempt> {
    prop_oneof![
        any::<bool>().prop_map(|resolved| Attempt::Judged { resolved }),
        Just(Attempt::PatchRefused),
        Just(Attempt::NoReport),
        Just(Attempt::TimedOut),
        Just(Attempt::Exhausted),
        Just(Attempt::WorkerFailed),
        Just(Attempt::Silent),
    ]
}

proptest! {
    /// Any effects of patches in any order, with lost graders in between: if the empty patch can be judged, there is a
    /// verdict, after at most four graders that were not lost.
    #[test]
    fn no_sequence_of_what_a_policy_can_cause_ends_void(
        events in proptest::collection::vec(prop_oneof![3 => of_a_policy(), 1 => Just(LOST)], 0..12),
        last in of_a_policy(),
    ) {
        let (mut attempts, mut control) = (Vec::new(), None);
        let mut own = 0;
        for event in events.into_iter().chain(std::iter::repeat(last)) {
            own += usize::from(event != LOST);
            attempts.push(event);
            let mut next = after_grading(&attempts, control);
            if next == Next::AskControl {
                control = Some(Control::Sound);
                next = after_grading(&attempts, control);
            }
            match next {
                Next::Conclude(outcome) => {
                    prop_assert!(outcome.is_verdict(), "{outcome} after {attempts:?}");
                    return Ok(());
                }
                Next::GradeAgain => prop_assert!(own <= 3, "{attempts:?}"),
                Next::AskControl => prop_assert!(false, "the control was asked twice: {attempts:?}"),
            }
        }
    }
}
