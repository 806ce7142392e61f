//! How a run stands with admission.

/// How a run stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    pub admitted: bool,
    pub reason: &'static str,
    pub message: String,
}
