//! What a step of the trainer computed for each sampled token of its batch: `tokens/step-<step>.safetensors`.
//!
//! Four columns hold the sampled tokens of all rows, one row after the other; [`RowSpan`] in the file's metadata says
//! which part belongs to which row of which episode. A step may have millions of tokens, so a reader fetches the
//! [`Head`] and then the bytes of one episode ([`Head::episode`]).

use crate::record::SCHEMA;
use crate::turn::TurnRecord;
use safetensors::tensor::{Dtype, Metadata, SafeTensorError, TensorView};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

/// The metadata entry of the file that holds JSON: [`Rows`].
const ROWS: &str = "grpo";
/// The columns, in the order of [`Head::episode`], with the bytes of a value.
const COLUMNS: [(&str, Dtype, usize); 4] = [
    ("logprobs", Dtype::F32, 4),
    ("entropies", Dtype::F32, 4),
    ("ratios", Dtype::F32, 4),
    ("marks", Dtype::U8, 1),
];
/// The bytes before the head, which have its length.
pub const PREFIX: u64 = 8;
/// A head with a name for each of 100,000 rows is smaller.
const LARGEST_HEAD: u64 = 64 << 20;

/// The loss was computed. The other numbers of a token without this mark are NaN: its group had no advantage, its
/// episode was too long, or no loss is possible for it.
pub const COMPUTED: u8 = 1;
/// The ratio was clipped in the last optimizer step that had the token.
pub const CLIPPED: u8 = 2;
/// A correction for the distance of engine and trainer left the token out.
pub const LEFT_OUT: u8 = 4;

/// The sampled tokens of one row of a batch: entries `from..to` of each column.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RowSpan {
    /// The episode's folder.
    pub episode: String,
    /// The row's number in the episode's file of rows.
    pub row: u32,
    /// The turn of this row, in a run whose turns are separate rows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<u32>,
    /// Absent if the row was not trained on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub advantage: Option<f64>,
    pub from: usize,
    pub to: usize,
}

/// Values of sampled tokens, all of one length.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Columns {
    /// The trainer's logprob under the weights that the step began with. If the token was not computed under them, that
    /// of the first optimizer step that had it.
    pub logprobs: Vec<f32>,
    /// Entropy of the trainer's distribution in the first optimizer step that had the token, in nats.
    pub entropies: Vec<f32>,
    /// New to old probability in the last optimizer step that had the token: its own, or its sequence's.
    pub ratios: Vec<f32>,
    /// [`COMPUTED`], [`CLIPPED`], [`LEFT_OUT`].
    pub marks: Vec<u8>,
}

/// Why such a file cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum TokenStatsError {
    #[error("not a step's token statistics: {0}")]
    File(#[from] SafeTensorError),
    #[error("not a step's token statistics: its head: {0}")]
    Json(#[from] serde_json::Error),
    #[error("not a step's token statistics: {0}")]
    Shape(String),
    #[error("token statistics of schema {found}, and this build reads schema {SCHEMA}")]
    Schema { found: u32 },
}

/// The JSON in the file's metadata.
#[derive(Serialize, Deserialize)]
struct Rows {
    schema: u32,
    rows: Vec<RowSpan>,
}

/// Encodes a step's statistics.
pub fn encode(rows: Vec<RowSpan>, columns: &Columns) -> Result<Vec<u8>, TokenStatsError> {
    let words = |values: &[f32]| -> Vec<u8> { values.iter().flat_map(|value| value.to_le_bytes()).collect() };
    let bytes = [
        words(&columns.logprobs),
        words(&columns.entropies),
        words(&columns.ratios),
        columns.marks.clone(),
    ];
    let views = COLUMNS
        .iter()
        .zip(&bytes)
        .map(|((name, dtype, size), bytes)| Ok((*name, TensorView::new(*dtype, vec![bytes.len() / size], bytes)?)));
    let views = views.collect::<Result<Vec<_>, SafeTensorError>>()?;
    let rows = serde_json::to_string(&Rows { schema: SCHEMA, rows })?;
    Ok(safetensors::serialize(
        views,
        Some(HashMap::from([(ROWS.to_owned(), rows)])),
    )?)
}

/// All rows of a file, and its whole columns.
pub fn decode(file: &[u8]) -> Result<(Vec<RowSpan>, Columns), TokenStatsError> {
    let cut = || TokenStatsError::Shape("the file ends too early".into());
    let end = Head::bytes(file.get(..PREFIX as usize).unwrap_or(file))?;
    let head = Head::read(file.get(..end as usize).ok_or_else(cut)?)?;
    let bytes = |column: usize| {
        let range = head.range(column, 0..head.tokens);
        file.get(range.start as usize..range.end as usize).ok_or_else(cut)
    };
    let columns = Columns::of([bytes(0)?, bytes(1)?, bytes(2)?, bytes(3)?]);
    Ok((head.rows, columns))
}

impl Columns {
    /// From the bytes of each column.
    fn of([logprobs, entropies, ratios, marks]: [&[u8]; COLUMNS.len()]) -> Self {
        let words = |bytes: &[u8]| -> Vec<f32> {
            let words = bytes.chunks_exact(4);
            words
                .map(|word| f32::from_le_bytes([word[0], word[1], word[2], word[3]]))
                .collect()
        };
        Self {
            logprobs: words(logprobs),
            entropies: words(entropies),
            ratios: words(ratios),
            marks: marks.to_vec(),
        }
    }
}

/// The head of a file: which bytes belong to which row.
#[derive(Clone, Debug, PartialEq)]
pub struct Head {
    rows: Vec<RowSpan>,
    /// First byte of each column in the file.
    columns: [u64; COLUMNS.len()],
    /// Length of each column.
    tokens: usize,
}

/// The part of a file that belongs to one episode.
#[derive(Clone, Debug, PartialEq)]
pub struct EpisodeSpan {
    /// Rows of the episode. Their tokens are counted from the first token of this part.
    pub rows: Vec<RowSpan>,
    /// Bytes of the file, one range for each column.
    pub bytes: [Range<u64>; COLUMNS.len()],
}

impl Head {
    /// Bytes of the file up to the end of its head. `prefix`: the first [`PREFIX`] bytes of the file.
    pub fn bytes(prefix: &[u8]) -> Result<u64, TokenStatsError> {
        let short = |_| TokenStatsError::Shape(format!("it has only {} bytes", prefix.len()));
        let length = u64::from_le_bytes(prefix.try_into().map_err(short)?);
        if length > LARGEST_HEAD {
            return Err(TokenStatsError::Shape(format!("its head has {length} bytes")));
        }
        Ok(PREFIX + length)
    }

    /// Reads the first [`Head::bytes`] of a file.
    pub fn read(head: &[u8]) -> Result<Self, TokenStatsError> {
        let shape = |what: String| TokenStatsError::Shape(what);
        let json = head.get(PREFIX as usize..).unwrap_or_default();
        let metadata: Metadata = serde_json::from_slice(json)?;
        let rows = metadata.metadata().as_ref().and_then(|all| all.get(ROWS));
        let rows: Rows = serde_json::from_str(rows.ok_or_else(|| shape(format!("its metadata has no {ROWS}")))?)?;
        if rows.schema != SCHEMA {
            return Err(TokenStatsError::Schema { found: rows.schema });
        }
        let mut columns = [0; COLUMNS.len()];
        let mut tokens = None;
        for ((name, dtype, _), begin) in COLUMNS.iter().zip(&mut columns) {
            let info = metadata.info(name).ok_or_else(|| shape(format!("it has no {name}")))?;
            let is_right = info.dtype == *dtype && info.shape.len() == 1;
            let length = info.shape.first().copied().unwrap_or_default();
            if !is_right || *tokens.get_or_insert(length) != length {
                return Err(shape(format!("{name} is {:?} of shape {:?}", info.dtype, info.shape)));
            }
            *begin = head.len() as u64 + info.data_offsets.0 as u64;
        }
        let tokens = tokens.unwrap_or_default();
        if let Some(row) = rows.rows.iter().find(|row| row.from > row.to || row.to > tokens) {
            let RowSpan { episode, from, to, .. } = row;
            return Err(shape(format!("{episode} has tokens {from}..{to} of {tokens}")));
        }
        Ok(Self {
            rows: rows.rows,
            columns,
            tokens,
        })
    }

    /// The rows of the batch, in its order.
    pub fn rows(&self) -> &[RowSpan] {
        &self.rows
    }

    /// The part of the episode with this folder. `None` if no row of it is in the batch.
    pub fn episode(&self, folder: &str) -> Option<EpisodeSpan> {
        let mut rows: Vec<RowSpan> = self.rows.iter().filter(|row| row.episode == folder).cloned().collect();
        let from = rows.iter().map(|row| row.from).min()?;
        let to = rows.iter().map(|row| row.to).max()?;
        for row in &mut rows {
            (row.from, row.to) = (row.from - from, row.to - from);
        }
        Some(EpisodeSpan {
            rows,
            bytes: std::array::from_fn(|column| self.range(column, from..to)),
        })
    }

    /// The bytes of some entries of a column.
    fn range(&self, column: usize, entries: Range<usize>) -> Range<u64> {
        let (begin, size) = (self.columns[column], COLUMNS[column].2 as u64);
        begin + entries.start as u64 * size..begin + entries.end as u64 * size
    }
}

impl EpisodeSpan {
    /// Values of the episode's turns, by turn, from the bytes of [`EpisodeSpan::bytes`]. `turns`: all turns of the
    /// episode. A turn without a row in the batch is left out.
    pub fn by_turn(
        &self,
        bytes: &[Vec<u8>; COLUMNS.len()],
        turns: &[TurnRecord],
    ) -> Result<BTreeMap<u32, TurnStats>, TokenStatsError> {
        let cut = || TokenStatsError::Shape("the file ends too early".into());
        let part = |column: usize, of: &Range<usize>| {
            let size = COLUMNS[column].2;
            bytes[column].get(size * of.start..size * of.end).ok_or_else(cut)
        };
        let mut found = BTreeMap::new();
        for row in &self.rows {
            let mut next = row.from;
            let own = turns
                .iter()
                .filter(|turn| turn.row == row.row && row.turn.is_none_or(|only| only == turn.turn));
            for turn in own {
                let of = next..next + turn.sampled_length;
                if of.end > row.to {
                    return Err(TokenStatsError::Shape(format!(
                        "row {} of {} has {} tokens, its turns have more",
                        row.row,
                        row.episode,
                        row.to - row.from
                    )));
                }
                next = of.end;
                let columns = Columns::of([part(0, &of)?, part(1, &of)?, part(2, &of)?, part(3, &of)?]);
                let advantage = row.advantage;
                found.insert(turn.turn, TurnStats { advantage, columns });
            }
        }
        Ok(found)
    }
}

/// The statistics of a turn's sampled tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct TurnStats {
    /// Absent if the turn was not trained on.
    pub advantage: Option<f64>,
    pub columns: Columns,
}

#[cfg(test)]
mod tests;
