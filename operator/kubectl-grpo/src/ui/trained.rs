//! What the trainer computed for the tokens of an episode. Reads only the parts of its step's file that belong to the
//! episode: a step's file has all episodes of the batch.
//!
//! The [`Heads`] of the last steps are kept, so the next episode of an iteration costs its own bytes only.

use super::advantages;
use super::wire::TrainerTokens;
use crate::error::Error;
use crate::records::Source;
use grpo_records::look::RefusalCode;
use grpo_records::look::files::FileAt;
use grpo_records::token_stats::{CLIPPED, Head, LEFT_OUT, PREFIX, TokenStatsError, TurnStats};
use grpo_records::{Batch, TurnRecord, paths};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// At most so many heads are kept: one has a line for each row of its batch.
const MOST_HEADS: usize = 4;

/// A step of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepOf {
    /// The run's uid: a run may be deleted and made again under its name.
    pub run: String,
    pub step: u32,
}

/// The heads that were read last. A file does not change once it is written.
#[derive(Debug, Default)]
pub struct Heads(Mutex<VecDeque<(StepOf, Arc<Head>)>>);

impl Heads {
    fn get(&self, of: &StepOf) -> Option<Arc<Head>> {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.iter().find(|(step, _)| step == of).map(|(_, head)| head.clone())
    }

    fn keep(&self, of: &StepOf, head: &Arc<Head>) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.push_front((of.clone(), head.clone()));
        kept.truncate(MOST_HEADS);
    }
}

/// The numbers by turn. Empty if the step has no such file yet, or the episode is in no batch.
pub async fn numbers(
    source: &mut Source,
    heads: &Heads,
    of: &StepOf,
    episode: &str,
    turns: &[TurnRecord],
) -> Result<BTreeMap<u32, TrainerTokens>, Error> {
    let path = paths::token_stats(of.step);
    let unreadable = |error: TokenStatsError| Error::EpisodeFile {
        episode: episode.to_owned(),
        why: format!("{}: {error}", paths::token_stats(of.step)),
    };
    let Some(head) = head(source, heads, of).await? else {
        return Ok(BTreeMap::new());
    };
    let Some(span) = head.map_err(unreadable)?.episode(episode) else {
        return Ok(BTreeMap::new());
    };
    let mut columns: [Vec<u8>; 4] = Default::default();
    for (column, bytes) in columns.iter_mut().zip(&span.bytes) {
        *column = part(source, &path, bytes.clone()).await?.unwrap_or_default();
    }
    let by_turn = span.by_turn(&columns, turns).map_err(unreadable)?;
    Ok(by_turn
        .into_iter()
        .map(|(turn, stats)| (turn, shown(of.step, stats)))
        .collect())
}

/// The advantages of a step's episodes, by their folders. `lists`: those of the step's metrics.
pub async fn advantages(
    source: &mut Source,
    heads: &Heads,
    of: &StepOf,
    lists: &[Vec<f64>],
) -> Result<BTreeMap<String, f64>, Error> {
    let rows: Vec<String> = match head(source, heads, of).await? {
        Some(Ok(head)) => head.rows().iter().map(|row| row.episode.clone()).collect(),
        // A trainer may leave the file out. The batch has the same rows, and is longer.
        Some(Err(_)) | None => rows_of_batch(source, of.step).await?,
    };
    Ok(advantages::by_episode(&rows, lists))
}

/// The folders of the episodes of a batch's rows. Empty without a batch that can be read.
async fn rows_of_batch(source: &mut Source, step: u32) -> Result<Vec<String>, Error> {
    let json = source.whole_file(&paths::batch(step)).await?;
    let batch = json.and_then(|json| serde_json::from_slice::<Batch>(&json).ok());
    let rows = batch.into_iter().flat_map(|batch| batch.rows);
    Ok(rows
        .filter_map(|row| row.stored.rows.episode().map(str::to_owned))
        .collect())
}

/// The head of a step's file, or why it is damaged. `None` if the step has no such file, or not yet.
async fn head(
    source: &mut Source,
    heads: &Heads,
    of: &StepOf,
) -> Result<Option<Result<Arc<Head>, TokenStatsError>>, Error> {
    if let Some(head) = heads.get(of) {
        return Ok(Some(Ok(head)));
    }
    let path = paths::token_stats(of.step);
    let Some(prefix) = part(source, &path, 0..PREFIX).await? else {
        return Ok(None);
    };
    let end = match Head::bytes(&prefix) {
        Ok(end) => end,
        Err(error) => return Ok(Some(Err(error))),
    };
    let bytes = part(source, &path, 0..end).await?.unwrap_or_default();
    let head = Head::read(&bytes).map(Arc::new);
    if let Ok(head) = &head {
        heads.keep(of, head);
    }
    Ok(Some(head))
}

/// JSON has no NaN: a token whose loss was not computed has no numbers.
fn shown(step: u32, stats: TurnStats) -> TrainerTokens {
    let TurnStats { advantage, columns } = stats;
    let finite = |values: Vec<f32>| -> Vec<Option<f32>> {
        let values = values.into_iter();
        values
            .map(|value| Some(value).filter(|value| value.is_finite()))
            .collect()
    };
    let marked = |mark: u8| columns.marks.iter().map(|marks| marks & mark != 0).collect();
    TrainerTokens {
        step,
        advantage,
        clipped: marked(CLIPPED),
        left_out: marked(LEFT_OUT),
        logprobs: finite(columns.logprobs),
        entropies: finite(columns.entropies),
        ratios: finite(columns.ratios),
    }
}

/// Bytes of a file, `None` if it does not exist.
async fn part(source: &mut Source, path: &str, bytes: Range<u64>) -> Result<Option<Vec<u8>>, Error> {
    let wanted = FileAt {
        path: path.to_owned(),
        from: bytes.start,
        to: Some(bytes.end),
    };
    match source.part(&wanted).await {
        // A driver of an older version does not show this folder.
        Err(Error::Records(refusal)) if refusal.code == RefusalCode::BadPath => Ok(None),
        bytes => bytes,
    }
}

#[cfg(test)]
mod tests;
