//! Reads an episode's record and its rows from a source.

use crate::error::Error;
use crate::records::Source;
use grpo_records::{EndedEpisode, EpisodeRecord, paths};
use std::fmt::Display;

/// Record and rows of an episode; `None` while its agent works.
pub(super) async fn ended(source: &mut Source, episode: &str) -> Result<Option<EndedEpisode>, Error> {
    let Some(record) = source.whole_file(&paths::trajectory(episode)).await? else {
        return Ok(None);
    };
    let record: EpisodeRecord = serde_json::from_slice(&record).map_err(|error| unreadable(episode, &error))?;
    let rows = match &record.rows {
        Some(_) => source.whole_file(&paths::rows(episode)).await?.unwrap_or_default(),
        None => Vec::new(),
    };
    let ended = EndedEpisode::of(record, &rows).map_err(|error| unreadable(episode, &error))?;
    Ok(Some(ended))
}

pub(super) fn unreadable(episode: &str, why: &dyn Display) -> Error {
    Error::EpisodeFile {
        episode: episode.to_owned(),
        why: why.to_string(),
    }
}
