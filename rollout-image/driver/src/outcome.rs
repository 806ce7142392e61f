//! Classification: which facts make an outcome. Pure, and a table: everything else only gathers facts.
//!
//! The rule behind every line: the policy cannot bring a void about. What runs inside its sandbox, the limits it hits,
//! the log it produces, the repository it breaks, count against it; only what happened outside is the infrastructure's.

use grpo_records::{EpisodeEnd, Outcome, VoidReason};

/// How putting a patch to a grader came out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Attempt {
    /// The log told what every test did.
    Judged { resolved: bool },
    /// The patch cannot be applied to a fresh tree.
    PatchRefused,
    /// The log told nothing: no markers, nothing parsed, or contradicted by the exit code.
    NoReport,
    /// The evaluation ran out of its time.
    TimedOut,
    /// The evaluation hit a limit of its sandbox, whether it or the sandbox was killed for it.
    Exhausted,
    /// The official grader could not be got to answer about this log.
    WorkerFailed,
    /// The grader's sandbox went away through no fault of what ran in it.
    Lost,
}

/// How the empty patch of the same task came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// It was judged, as it should be: the task is sound.
    Sound,
    /// It fails to be judged too.
    Broken,
}

/// What to do after the attempts so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    Conclude(Outcome),
    GradeAgain,
    AskControl,
}

/// How often a grader that was lost is replaced before the episode is void.
pub const MAX_LOST_GRADERS: usize = 5;
/// How many doubtful attempts a patch gets before the control is asked.
pub const DOUBTFUL_TRIES: usize = 2;

/// Decides after each attempt.
pub fn after_grading(attempts: &[Attempt], control: Option<Control>) -> Next {
    let lost = attempts.iter().filter(|a| **a == Attempt::Lost).count();
    let doubtful = attempts.iter().filter(|a| is_doubtful(a)).count();
    match (attempts.last(), control) {
        (Some(Attempt::Judged { resolved: true }), _) => Next::Conclude(Outcome::Resolved),
        (Some(Attempt::Judged { resolved: false } | Attempt::PatchRefused), _) => Next::Conclude(Outcome::Unresolved),
        (_, Some(Control::Sound)) => Next::Conclude(Outcome::Unresolved),
        (_, Some(Control::Broken)) => Next::Conclude(Outcome::void(VoidReason::GraderFailed)),
        _ if lost > MAX_LOST_GRADERS => Next::Conclude(Outcome::void(VoidReason::SandboxLost)),
        _ if doubtful >= DOUBTFUL_TRIES => Next::AskControl,
        _ => Next::GradeAgain,
    }
}

fn is_doubtful(attempt: &Attempt) -> bool {
    matches!(
        attempt,
        Attempt::NoReport | Attempt::TimedOut | Attempt::Exhausted | Attempt::WorkerFailed
    )
}

/// Decides whether the task is sound, from attempts with the empty patch; nothing while another attempt is due.
pub fn after_control(attempts: &[Attempt]) -> Option<Control> {
    let lost = attempts.iter().filter(|a| **a == Attempt::Lost).count();
    let doubtful = attempts.iter().filter(|a| is_doubtful(a)).count();
    match attempts.last() {
        Some(Attempt::Judged { .. }) => Some(Control::Sound),
        _ if doubtful >= DOUBTFUL_TRIES || lost > MAX_LOST_GRADERS => Some(Control::Broken),
        _ => None,
    }
}

/// The verdict that needs no grader, if there is one.
pub fn without_grader(end: EpisodeEnd, patch: Option<&[u8]>) -> Option<Outcome> {
    match (end, patch) {
        // The tree went with the sandbox, or its repository cannot be read any more.
        (EpisodeEnd::SandboxExhausted, _) | (_, None) => Some(Outcome::Unresolved),
        (_, Some([])) => Some(Outcome::Unresolved),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
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
}
