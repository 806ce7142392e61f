//! The rows of an episode: its token sequences, each stored once, in one binary file.
//!
//! A row is the engine's input and output in order: prompt, answers, observations. Most episodes have one row; an agent
//! that trims, rewrites or splits its history opens another. Every sampled token is in the mask of exactly one row.
//! `rows.safetensors` holds three tensors for each row, and further fields in its metadata. Batches and records of an
//! episode name the file and do not repeat its ids.

use crate::record::SCHEMA;
use safetensors::tensor::{Dtype, SafeTensorError, SafeTensors, TensorView};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;

/// The metadata entry of the file that holds JSON: [`Header`].
const HEADER: &str = "grpo";

/// One token sequence. `mask[i] = 1` exactly if `tokens[i]` was sampled; `logprobs[i]` is then the engine's, and 0
/// otherwise.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TokenRow {
    pub tokens: Vec<u32>,
    pub mask: Vec<u8>,
    pub logprobs: Vec<f32>,
    pub weights: Vec<WeightsSpan>,
    /// The experts of a mixture that computed the tokens, as far as an engine reported them. In order, without
    /// overlaps.
    pub experts: Vec<ExpertsSpan>,
    /// The turns whose answers are in this row.
    pub turns: Vec<u32>,
}

/// Tokens `from..to` were sampled by `version`. Spans are in order and cover every sampled token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WeightsSpan {
    pub from: usize,
    pub to: usize,
    pub version: String,
}

/// Tokens `from..to` were computed by the experts that `file`, a path below the store, lists: expert numbers of shape
/// `[to - from, layers with experts, experts per token]`. A number has one byte if a layer has at most 256 experts,
/// else two, little-endian. A trainer sends the tokens to the same experts (router replay, arXiv 2510.11370). Tokens in
/// no span, such as the last sampled one, are routed by its own router.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExpertsSpan {
    pub from: usize,
    pub to: usize,
    pub file: String,
    /// SHA-256 of the whole file.
    pub sha256: String,
}

impl ExpertsSpan {
    /// Bytes of one number in a file, for a layer with this many experts.
    pub fn number_bytes(experts: usize) -> usize {
        if experts <= 256 { 1 } else { 2 }
    }
}

/// The JSON in the file's metadata.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Header {
    schema: u32,
    rows: Vec<RowHeader>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RowHeader {
    turns: Vec<u32>,
    weights: Vec<WeightsSpan>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    experts: Vec<ExpertsSpan>,
}

/// Why the rows of an episode cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum RowsError {
    #[error("not the rows of an episode: {0}")]
    File(#[from] SafeTensorError),
    #[error("not the rows of an episode: its metadata: {0}")]
    Header(#[from] serde_json::Error),
    #[error("not the rows of an episode: {0}")]
    Shape(String),
    #[error("rows of schema {found}, and this build reads schema {SCHEMA}")]
    Schema { found: u32 },
}

impl TokenRow {
    /// The number of sampled tokens.
    pub fn sampled(&self) -> usize {
        self.mask.iter().filter(|m| **m == 1).count()
    }
}

/// Encodes these rows as a file. Equal rows give equal bytes.
pub fn encode(rows: &[TokenRow]) -> Result<Vec<u8>, RowsError> {
    let mut parts: Vec<(String, Dtype, usize, Vec<u8>)> = Vec::with_capacity(3 * rows.len());
    for (at, row) in rows.iter().enumerate() {
        let tokens = row.tokens.iter().flat_map(|id| id.to_le_bytes()).collect();
        let logprobs = row.logprobs.iter().flat_map(|logprob| logprob.to_le_bytes()).collect();
        parts.push((name(at, "tokens"), Dtype::U32, row.tokens.len(), tokens));
        parts.push((name(at, "mask"), Dtype::U8, row.mask.len(), row.mask.clone()));
        parts.push((name(at, "logprobs"), Dtype::F32, row.logprobs.len(), logprobs));
    }
    let views = parts
        .iter()
        .map(|(name, dtype, length, bytes)| Ok((name, TensorView::new(*dtype, vec![*length], bytes)?)));
    let views = views.collect::<Result<Vec<_>, SafeTensorError>>()?;
    let header = Header {
        schema: SCHEMA,
        rows: rows.iter().map(RowHeader::of).collect(),
    };
    let metadata = HashMap::from([(HEADER.to_owned(), serde_json::to_string(&header)?)]);
    Ok(safetensors::serialize(views, Some(metadata))?)
}

/// The rows of a file, in order.
pub fn decode(bytes: &[u8]) -> Result<Vec<TokenRow>, RowsError> {
    let (_, metadata) = SafeTensors::read_metadata(bytes)?;
    let header = metadata.metadata().as_ref().and_then(|all| all.get(HEADER));
    let header = header.ok_or_else(|| RowsError::Shape(format!("its metadata has no {HEADER}")))?;
    let header: Header = serde_json::from_str(header)?;
    if header.schema != SCHEMA {
        return Err(RowsError::Schema { found: header.schema });
    }
    let file = SafeTensors::deserialize(bytes)?;
    let rows = header.rows.into_iter().enumerate().map(|(at, header)| {
        let words = |part: &str, dtype| Ok::<_, RowsError>(column(&file, &name(at, part), dtype)?.chunks_exact(4));
        let four = |bytes: &[u8]| [bytes[0], bytes[1], bytes[2], bytes[3]];
        Ok(TokenRow {
            tokens: words("tokens", Dtype::U32)?
                .map(|w| u32::from_le_bytes(four(w)))
                .collect(),
            mask: column(&file, &name(at, "mask"), Dtype::U8)?.to_vec(),
            logprobs: words("logprobs", Dtype::F32)?
                .map(|w| f32::from_le_bytes(four(w)))
                .collect(),
            weights: header.weights,
            experts: header.experts,
            turns: header.turns,
        })
    });
    rows.collect()
}

impl RowHeader {
    fn of(row: &TokenRow) -> Self {
        Self {
            turns: row.turns.clone(),
            weights: row.weights.clone(),
            experts: row.experts.clone(),
        }
    }
}

fn name(row: usize, part: &str) -> String {
    format!("rows.{row}.{part}")
}

fn column<'a>(file: &SafeTensors<'a>, name: &str, dtype: Dtype) -> Result<&'a [u8], RowsError> {
    let tensor = file.tensor(name)?;
    match (tensor.dtype() == dtype, tensor.shape()) {
        (true, [_]) => Ok(tensor.data()),
        (_, shape) => Err(RowsError::Shape(format!(
            "{name} is {:?} of shape {shape:?}, not a list of {dtype:?}",
            tensor.dtype()
        ))),
    }
}

#[cfg(test)]
mod tests;
