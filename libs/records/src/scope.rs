//! The part of a run that an episode belongs to: an iteration, or an evaluation of a set under one weights version.

use serde::{Deserialize, Serialize};
use std::fmt;

/// The part of a run that an episode belongs to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "kind")]
pub enum EpisodeScope {
    Iteration { iteration: u32 },
    Evaluation { set: String, weights: String },
}

impl fmt::Display for EpisodeScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Iteration { iteration } => write!(f, "iteration {iteration}"),
            Self::Evaluation { set, weights } => write!(f, "evaluation {set} of {weights}"),
        }
    }
}
