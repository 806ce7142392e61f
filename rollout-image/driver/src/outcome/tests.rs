use super::*;

const DOUBTFUL: [Attempt; 4] = [
    Attempt::NoReport,
    Attempt::TimedOut,
    Attempt::Exhausted,
    Attempt::WorkerFailed,
];

#[test]
fn a_judged_log_is_the_verdict_whatever_came_before_it() {
    for before in [vec![], vec![Attempt::Lost], vec![Attempt::NoReport]] {
        for (resolved, outcome) in [(true, Outcome::Resolved), (false, Outcome::Unresolved)] {
            let attempts = [before.clone(), vec![Attempt::Judged { resolved }]].concat();
            assert_eq!(after_grading(&attempts, None), Next::Conclude(outcome));
        }
    }
}

/// Defect 17.
#[test]
fn a_lost_grader_means_grading_again_and_is_never_a_verdict() {
    for lost in 1..=MAX_LOST_GRADERS {
        assert_eq!(after_grading(&vec![Attempt::Lost; lost], None), Next::GradeAgain);
    }
    let all_lost = vec![Attempt::Lost; MAX_LOST_GRADERS + 1];
    assert_eq!(
        after_grading(&all_lost, None),
        Next::Conclude(Outcome::void(VoidReason::SandboxLost))
    );
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
    // Whatever its patch does to the grader, as long as the empty patch is judged: never a void.
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

/// Defect 13: an episode that ran out of turns or time keeps its patch and is graded.
#[test]
fn a_limit_does_not_lose_the_patch() {
    for end in [
        EpisodeEnd::TurnLimit,
        EpisodeEnd::ContextFull,
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
    assert_eq!(after_control(&[Attempt::Lost, Attempt::NoReport]), None);
}
