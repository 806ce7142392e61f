//! What is told as Events of an object.

/// Something worth telling in `kubectl describe`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    pub warning: bool,
    pub reason: String,
    pub action: &'static str,
    pub text: String,
}
