//! Classification: which facts make an outcome. Pure, and a table: everything else only gathers facts.
//!
//! The rule behind every line: the policy cannot bring a void about. What runs inside its sandbox, the limits it hits,
//! the log it produces, the repository it breaks, count against it; only what happened outside is the infrastructure's.
//! The reverse holds too: a grader that the infrastructure lost says nothing, however many are lost.

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
    /// The grader's sandbox stopped answering, or ended without a cause, while the patch was in it: the patch may have
    /// done that.
    Silent,
    /// The infrastructure had no grader for it, or took it away.
    Lost { reason: VoidReason },
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

/// How many doubtful attempts a patch gets before the control is asked.
pub const DOUBTFUL_TRIES: usize = 2;

/// Decides after each attempt. Lost ones change nothing: the caller pauses and tries again, for as long
/// as it has patience.
pub fn after_grading(attempts: &[Attempt], control: Option<Control>) -> Next {
    let doubtful = attempts.iter().filter(|a| is_doubtful(a)).count();
    let silent = attempts.iter().filter(|a| **a == Attempt::Silent).count();
    match (attempts.last(), control) {
        (Some(Attempt::Judged { resolved: true }), _) => Next::Conclude(Outcome::Resolved),
        (Some(Attempt::Judged { resolved: false } | Attempt::PatchRefused), _) => Next::Conclude(Outcome::Unresolved),
        (_, Some(Control::Broken)) => Next::Conclude(Outcome::void(VoidReason::GraderFailed)),
        // Silence may have been an outage: where the control was heard, the patch is put to a grader once more.
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

/// Decides whether the task is sound, from attempts with the empty patch; nothing while another attempt is due.
pub fn after_control(attempts: &[Attempt]) -> Option<Control> {
    let doubtful = attempts.iter().filter(|a| is_doubtful(a)).count();
    match attempts.last() {
        Some(Attempt::Judged { .. }) => Some(Control::Sound),
        _ if doubtful >= DOUBTFUL_TRIES => Some(Control::Broken),
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
mod tests;
