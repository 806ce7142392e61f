//! Lists and chooses the episodes of a copied store; [`grpo_records::show`] renders one as text.

use grpo_records::Outcome;
use grpo_records::folder::{EpisodeFolder, FolderError, RunFolder};
use grpo_records::look::Refusal;
use grpo_records::show::Detail;
use std::fmt::Write;

#[derive(Debug, thiserror::Error)]
pub enum ShowError {
    #[error(transparent)]
    Folder(#[from] FolderError),
    #[error(transparent)]
    Episode(#[from] Refusal),
    #[error("no finished episode's folder contains {wanted:?}; `grpo-demo show` without a name lists them")]
    NotFound { wanted: String },
}

/// The folder and outcome of each finished episode, one per line.
pub fn list(folder: &RunFolder) -> Result<String, FolderError> {
    let mut out = String::new();
    for scope in folder.scopes()? {
        for episode in folder.episodes(&scope)? {
            let _ = writeln!(
                out,
                "{:<12} {:>2} turns  {}",
                episode.meta.outcome.to_string(),
                episode.meta.turns,
                episode.path
            );
        }
    }
    Ok(out)
}

/// The first episode whose folder contains `wanted`.
pub fn find(folder: &RunFolder, wanted: &str) -> Result<EpisodeFolder, ShowError> {
    for scope in folder.scopes()? {
        if let Some(episode) = folder.episodes(&scope)?.into_iter().find(|e| e.path.contains(wanted)) {
            return Ok(episode);
        }
    }
    Err(ShowError::NotFound { wanted: wanted.into() })
}

/// An episode worth reading: resolved, in more than 3 turns if there is one, from the newest part of the run.
pub fn worth_reading(folder: &RunFolder) -> Result<Option<EpisodeFolder>, FolderError> {
    let mut best: Option<EpisodeFolder> = None;
    for scope in folder.scopes()?.into_iter().rev() {
        for episode in folder.episodes(&scope)? {
            if episode.meta.outcome == Outcome::Resolved
                && best.as_ref().is_none_or(|b| b.meta.turns < episode.meta.turns)
            {
                best = Some(episode);
            }
        }
        if best.as_ref().is_some_and(|b| b.meta.turns > 3) {
            break;
        }
    }
    Ok(best)
}

/// The whole episode.
pub fn text(folder: &RunFolder, episode: &EpisodeFolder) -> Result<String, ShowError> {
    let view = folder.records().episode(&episode.path)?;
    let turns = folder.turns(&episode.path)?;
    let judged = folder.judged(&episode.path)?;
    Ok(grpo_records::show::text(&view, &turns, &judged, Detail::default()))
}
