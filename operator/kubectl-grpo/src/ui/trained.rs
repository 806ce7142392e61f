//! What the trainer computed for the tokens of an episode. Reads only the parts of its step's file that belong to the
//! episode: a step's file has all episodes of the batch.

use super::wire::TrainerTokens;
use crate::error::Error;
use crate::records::Source;
use grpo_records::look::RefusalCode;
use grpo_records::look::files::FileAt;
use grpo_records::token_stats::{CLIPPED, Head, LEFT_OUT, PREFIX, TokenStatsError, TurnStats};
use grpo_records::{TurnRecord, paths};
use std::collections::BTreeMap;
use std::ops::Range;

/// The numbers by turn. Empty if the step has no such file yet, or the episode is in no batch.
pub async fn numbers(
    source: &mut Source,
    step: u32,
    episode: &str,
    turns: &[TurnRecord],
) -> Result<BTreeMap<u32, TrainerTokens>, Error> {
    let path = paths::token_stats(step);
    let unreadable = |error: TokenStatsError| Error::EpisodeFile {
        episode: episode.to_owned(),
        why: format!("{}: {error}", paths::token_stats(step)),
    };
    let Some(prefix) = part(source, &path, 0..PREFIX).await? else {
        return Ok(BTreeMap::new());
    };
    let end = Head::bytes(&prefix).map_err(unreadable)?;
    let head = part(source, &path, 0..end).await?.unwrap_or_default();
    let Some(span) = Head::read(&head).map_err(unreadable)?.episode(episode) else {
        return Ok(BTreeMap::new());
    };
    let mut columns: [Vec<u8>; 4] = Default::default();
    for (column, bytes) in columns.iter_mut().zip(&span.bytes) {
        *column = part(source, &path, bytes.clone()).await?.unwrap_or_default();
    }
    let by_turn = span.by_turn(&columns, turns).map_err(unreadable)?;
    Ok(by_turn
        .into_iter()
        .map(|(turn, stats)| (turn, shown(step, stats)))
        .collect())
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
