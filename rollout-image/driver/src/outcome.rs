//! Classifies facts into outcomes. Pure, and a table: other modules only gather facts.
//!
//! The rule behind every line: the policy cannot cause a void. What runs inside its sandbox, the limits it hits, the
//! log it produces and the repository it breaks count against it; only events outside are the infrastructure's. The
//! reverse holds too: graders that the infrastructure lost say nothing, however many are lost.

use grpo_records::{EpisodeEnd, Outcome, VoidReason};

/// The result of one grading of a patch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Attempt {
    /// The log shows the result of every test.
    Judged { resolved: bool },
    /// The patch does not apply to a fresh tree.
    PatchRefused,
    /// The log shows no result: no markers, nothing parsed, or contradicted by the exit code.
    NoReport,
    /// The evaluation reached its time limit.
    TimedOut,
    /// The evaluation hit a limit of its sandbox, and it or the sandbox was killed.
    Exhausted,
    /// The official grader gave no answer about this log.
    WorkerFailed,
    /// The grader's sandbox stopped answering, or ended without a cause, while the patch was in it: the patch may be
    /// the cause.
    Silent,
    /// The infrastructure had no grader, or lost it.
    Lost { reason: VoidReason },
}

impl Attempt {
    /// Whether patch or task may be at fault.
    pub fn needs_control(&self) -> bool {
        *self == Self::Silent || is_doubtful(self)
    }
}

/// The result of the empty patch of the same task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// It was judged: the task is sound.
    Sound,
    /// It was not judged either.
    Broken,
}

/// The next action after the attempts so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    Conclude(Outcome),
    GradeAgain,
    AskControl,
}

/// Doubtful attempts with a patch before the control.
pub const DOUBTFUL_TRIES: usize = 2;

/// Decides after each attempt. Lost attempts change nothing: the caller pauses and retries within its patience.
pub fn after_grading(attempts: &[Attempt], control: Option<Control>) -> Next {
    let doubtful = attempts.iter().filter(|a| is_doubtful(a)).count();
    let silent = attempts.iter().filter(|a| **a == Attempt::Silent).count();
    match (attempts.last(), control) {
        (Some(Attempt::Judged { resolved: true }), _) => Next::Conclude(Outcome::Resolved),
        (Some(Attempt::Judged { resolved: false } | Attempt::PatchRefused), _) => Next::Conclude(Outcome::Unresolved),
        (_, Some(Control::Broken)) => Next::Conclude(Outcome::void(VoidReason::GraderFailed)),
        // Silence may have been an outage: if the control was judged, the patch is graded once more.
        (_, Some(Control::Sound)) if doubtful >= DOUBTFUL_TRIES || doubtful + silent > DOUBTFUL_TRIES => {
            Next::Conclude(Outcome::Unresolved)
        }
        (_, None) if doubtful + silent >= DOUBTFUL_TRIES => Next::AskControl,
        _ => Next::GradeAgain,
    }
}

fn is_doubtful(attempt: &Attempt) -> bool {
    matches!(
        attempt,
        Attempt::NoReport | Attempt::TimedOut | Attempt::Exhausted | Attempt::WorkerFailed
    )
}

/// Decides whether the task is sound, from attempts with the empty patch; `None` while another attempt is due.
pub fn after_control(attempts: &[Attempt]) -> Option<Control> {
    let doubtful = attempts.iter().filter(|a| is_doubtful(a)).count();
    match attempts.last() {
        Some(Attempt::Judged { .. }) => Some(Control::Sound),
        _ if doubtful >= DOUBTFUL_TRIES => Some(Control::Broken),
        _ => None,
    }
}

/// The verdict that needs no grader, if any.
pub fn without_grader(end: EpisodeEnd, patch: Option<&[u8]>) -> Option<Outcome> {
    match (end, patch) {
        // The tree was lost with the sandbox, or its repository is unreadable.
        (EpisodeEnd::SandboxExhausted, _) | (_, None) => Some(Outcome::Unresolved),
        (_, Some([])) => Some(Outcome::Unresolved),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
