//! Recomputes a run's claims from sources that cannot misreport them: the sampled token ids and the grader's logs.
//!
//! Five questions, each a set of checks that counts its comparisons and lists disagreements. Does every episode consist
//! of the tokens of its turns ([`episodes`])? Does every verdict follow from its grader's log, judged again by the
//! official package ([`verdicts`])? Do scores follow from the judge's votes ([`scores`])? Do batches, rewards and
//! advantages follow from the episodes, and do the trainer's numbers of tokens belong to them ([`groups`],
//! [`token_stats`])? Do rates, voids and iterations in the journal agree with the episodes ([`claims`])?

pub mod calls;
pub mod claims;
pub mod episodes;
pub mod grader;
pub mod groups;
pub mod histories;
pub mod rows;
pub mod scores;
pub mod token_stats;
pub mod verdicts;

#[cfg(test)]
mod forgeries;

use grpo_records::folder::{EpisodeFolder, FolderError, RunFolder};

use crate::rows::TaskRows;
use std::fmt::Write;
use std::path::PathBuf;

/// Maximum disagreements of one kind that are printed; all are counted.
const SHOWN: usize = 5;

#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    #[error(transparent)]
    Folder(#[from] FolderError),
    #[error(transparent)]
    Grader(#[from] grader::GraderError),
    #[error(transparent)]
    Rows(#[from] rows::RowsError),
    #[error("the tokenizer {path} cannot be read: {what}")]
    Tokenizer { path: PathBuf, what: String },
}

/// One recomputed claim.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Check {
    pub name: &'static str,
    pub looked_at: u64,
    /// Items that could not be checked, without a disagreement (such as a batch that retention removed).
    pub passed_over: u64,
    pub disagreements: Vec<String>,
}

impl Check {
    pub fn new(name: &'static str) -> Self {
        Self {
            name,
            ..Self::default()
        }
    }

    /// Counts one comparison; `what` describes the disagreement.
    pub fn expect(&mut self, agrees: bool, what: impl FnOnce() -> String) {
        self.looked_at += 1;
        if !agrees {
            self.disagreements.push(what());
        }
    }
}

/// The inputs of verification besides the store.
#[derive(Debug)]
pub struct Sources {
    pub tasks: TaskRows,
    /// worker.py and the folder of its packages. Without them verdicts cannot be judged again, which is an error.
    pub grader: grader::GraderCommand,
}

/// All checks, in an order in which each builds on the earlier ones.
pub fn verify(folder: &RunFolder, sources: &Sources) -> Result<Vec<Check>, VerifyError> {
    let episodes = all_episodes(folder)?;
    let mut checks = episodes::check(folder, &episodes)?;
    checks.extend(verdicts::check(folder, &episodes, sources)?);
    checks.extend(scores::check(folder, &episodes)?);
    checks.extend(groups::check(folder, &episodes)?);
    checks.extend(claims::check(folder, &episodes)?);
    Ok(checks)
}

fn all_episodes(folder: &RunFolder) -> Result<Vec<EpisodeFolder>, FolderError> {
    let mut all = Vec::new();
    for scope in folder.scopes()? {
        all.extend(folder.episodes(&scope)?);
    }
    Ok(all)
}

/// True if everything agreed and at least one item was checked.
pub fn holds(checks: &[Check]) -> bool {
    checks.iter().all(|c| c.disagreements.is_empty()) && checks.iter().any(|c| c.looked_at > 0)
}

/// One line for each check, followed by its disagreements.
pub fn text(checks: &[Check]) -> String {
    let mut out = String::new();
    for check in checks {
        let over = match check.passed_over {
            0 => String::new(),
            n => format!(", {n} not to be had any more"),
        };
        let verdict = match check.disagreements.len() {
            0 => "agree".to_owned(),
            n => format!("{n} DISAGREE"),
        };
        let _ = writeln!(
            out,
            "  {:<66} {:>6} looked at{over}: {verdict}",
            check.name, check.looked_at
        );
        for what in check.disagreements.iter().take(SHOWN) {
            let _ = writeln!(out, "      {what}");
        }
    }
    out
}

#[cfg(test)]
mod tests;
