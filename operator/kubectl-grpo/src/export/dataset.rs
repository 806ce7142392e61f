//! `messages.jsonl` and `tokens.jsonl`: a dataset for `finetune.dataset`, with every sample that has a verdict.
//!
//! [`grpo_records::dataset`] defines the rows. Each episode's rows are written before the next episode is read, because
//! the ids of an evaluation may not fit into memory.

use super::ended::ended;
use super::part_file::PartFile;
use super::progress::Progress;
use crate::arguments::{DatasetFormat, Part};
use crate::episodes;
use crate::error::Error;
use crate::records::Source;
use grpo_records::dataset::{message_rows, token_rows};
use grpo_records::paths;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// What was written.
#[derive(Debug, Default, PartialEq)]
pub struct Dataset {
    /// The name of the iteration or evaluation.
    pub scope: String,
    pub file: PathBuf,
    pub episodes: usize,
    pub resolved: usize,
    pub rows: usize,
    /// Rows that messages cannot show.
    pub left_out: usize,
    /// An episode was answered in text, so it has no token ids.
    pub untrainable: bool,
}

impl Dataset {
    pub fn in_words(&self) -> String {
        let mut words = format!(
            "{}: {} rows of {} episodes ({} resolved) are in {}\n",
            self.scope,
            self.rows,
            self.episodes,
            self.resolved,
            self.file.display()
        );
        if self.left_out > 0 {
            // Those of a server that speaks only text have no ids either.
            let elsewhere = if self.untrainable {
                ""
            } else {
                "; --format tokens has them"
            };
            words += &format!(
                "{} rows cannot be written as messages and were left out{elsewhere}\n",
                self.left_out
            );
        }
        words
    }
}

/// Writes the file of a format into the folder.
pub async fn export(source: &mut Source, part: &Part, format: DatasetFormat, dest: &Path) -> Result<Dataset, Error> {
    let listing = episodes::list(source, part, &[], usize::MAX).await?;
    // A set has one scope for each evaluated version, the newest first.
    let scope = listing.scopes.first();
    let root = scope
        .map(|scope| format!("{}/", paths::scope(scope)))
        .unwrap_or_default();
    let mut chosen = BTreeMap::new();
    for episode in listing
        .episodes
        .iter()
        .filter(|episode| episode.path.starts_with(&root))
    {
        if let Some(meta) = episode.meta.as_ref().filter(|meta| meta.outcome.is_verdict()) {
            chosen.insert((meta.key.group, meta.key.sample), (meta, &episode.path));
        }
    }
    let mut done = Dataset {
        scope: scope.map(ToString::to_string).unwrap_or_default(),
        file: dest.join(format.file()),
        ..Dataset::default()
    };
    let mut lines = PartFile::create(done.file.clone())?;
    let mut progress = Progress::new(chosen.len());
    for (meta, path) in chosen.into_values() {
        if meta.untrainable && format == DatasetFormat::Tokens {
            return Err(Error::NoTokens { episode: path.clone() });
        }
        done.untrainable |= meta.untrainable;
        let ended = ended(source, path).await?.ok_or_else(|| Error::EpisodeFile {
            episode: path.clone(),
            why: "it has a verdict, and no record".to_owned(),
        })?;
        let rows = match format {
            DatasetFormat::Tokens => token_rows(meta, &ended),
            DatasetFormat::Messages => {
                let found = message_rows(meta, &ended.record.turns);
                done.left_out += found.left_out;
                found.rows
            }
        };
        for row in &rows {
            lines.write(&format!("{row}\n"))?;
        }
        done.rows += rows.len();
        done.episodes += 1;
        done.resolved += usize::from(meta.outcome == grpo_records::Outcome::Resolved);
        progress.episode();
    }
    lines.finish()?;
    Ok(done)
}

#[cfg(test)]
mod tests;
