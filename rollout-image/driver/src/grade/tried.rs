//! What one attempt at grading found, before it is decided what follows.

use crate::grader_worker::Report;
use crate::outcome::Attempt;
use crate::patch;
use crate::sandbox::SandboxError;
use grpo_records::GradeRecord;
use grpo_sandbox_protocol::{ExecResult, Killed};
use std::time::Duration;

/// The facts of one attempt.
pub(super) struct Tried {
    pub attempt: Attempt,
    pub report: Option<Report>,
    pub log: Option<String>,
    pub note: Option<String>,
}

/// Progress of a grader's sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Neither patch nor evaluation has begun.
    SettingUp,
    /// The evaluation may run, without a patch.
    Unpatched,
    /// The patch may have an effect.
    Patched,
}

/// The end of an evaluation.
pub(super) enum Evaluated {
    /// `limit`: one that the sandbox met meanwhile.
    Log {
        log: String,
        limit: Option<Killed>,
    },
    Not(Tried),
}

impl Evaluated {
    /// The evaluation is read from its log, unless it was ended before its own end.
    pub fn of(result: ExecResult, timeout: Duration) -> Self {
        let doubtful = match result.killed {
            _ if result.timed_out => Some((
                Attempt::TimedOut,
                format!("the evaluation took longer than {timeout:?}"),
            )),
            Some(killed) if result.exit_code.is_none() => {
                Some((Attempt::Exhausted, format!("the evaluation was killed: {killed:?}")))
            }
            _ => None,
        };
        match doubtful {
            None => Self::Log {
                log: result.output,
                limit: result.killed,
            },
            Some((attempt, note)) => Self::Not(Tried {
                attempt,
                report: None,
                log: Some(result.output),
                note: Some(note),
            }),
        }
    }
}

impl Tried {
    /// A patch that git refuses; but a full disk, for example by a neighbour on the node, refuses every patch.
    pub fn not_applied(result: ExecResult) -> Self {
        let code = result.exit_code;
        let (attempt, note) = match (code, result.killed) {
            _ if result.timed_out => (Attempt::TimedOut, "applying the patch took too long".to_owned()),
            (_, Some(limit)) => (
                Attempt::Exhausted,
                format!("applying the patch ended with exit status {code:?} while the sandbox met a limit: {limit:?}"),
            ),
            (Some(patch::DOES_NOT_APPLY), None) => (
                Attempt::PatchRefused,
                "the patch does not apply to a fresh tree".to_owned(),
            ),
            (code, None) => (
                Attempt::Exhausted,
                format!("applying the patch ended with exit status {code:?}"),
            ),
        };
        Self {
            attempt,
            report: None,
            log: Some(result.output),
            note: Some(note),
        }
    }

    /// The same, if the sandbox met a limit meanwhile: tests that failed may have failed by it.
    pub fn under(self, limit: Option<Killed>) -> Self {
        match (limit, &self.attempt) {
            (Some(limit), Attempt::Judged { resolved: false }) => Self {
                attempt: Attempt::Exhausted,
                note: Some(format!("tests failed while the sandbox met a limit: {limit:?}")),
                ..self
            },
            _ => self,
        }
    }
}

pub(super) fn lost(error: &SandboxError) -> Tried {
    let reason = error.void_reason();
    without_log(Attempt::Lost { reason }, error)
}

pub(super) fn without_log(attempt: Attempt, error: &SandboxError) -> Tried {
    Tried {
        attempt,
        report: None,
        log: None,
        note: Some(error.to_string()),
    }
}

pub(super) fn record_of(tried: &Tried, tries: u32, notes: Vec<String>) -> GradeRecord {
    let report = tried.report.as_ref();
    GradeRecord {
        reused_from: None,
        status: match &tried.attempt {
            Attempt::Judged { .. } => "Judged".to_owned(),
            Attempt::Lost { .. } => "Lost".to_owned(),
            other => format!("{other:?}"),
        },
        fail_to_pass: report.map(|r| r.fail_to_pass).unwrap_or_default(),
        pass_to_pass: report.map(|r| r.pass_to_pass).unwrap_or_default(),
        tries,
        notes,
    }
}
