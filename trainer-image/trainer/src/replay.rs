//! Router replay (R3, arXiv 2510.11370): a mixture's tokens go through the experts that the engine has sent them
//! through when they were sampled.
//!
//! Engine and trainer round differently, and where two experts are nearly as good a rounding chooses: the trainer would
//! differentiate by other experts than have computed the logprobs that were sampled with. What an engine has recorded
//! is in files of the run's store; rows name them by spans ([`ExpertsSpan`]). A rank reads those of the packs that it
//! computes, just before, so that a step's are never in memory at once.
//!
//! A prefix that rows share is computed once, by the experts of one of these rows. Tokens without a record go where the
//! trainer's router sends them, and so does the base model, which was never sampled from.

use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;

use grpo_model::Config;
use grpo_model::config::Experts;
use grpo_records::store::wait;
use grpo_records::{ExpertsSpan, RunStore};
use tch::Tensor;

use crate::error::TrainError;
use crate::packing::Pack;
use crate::state::sha256;
use crate::train_row::TrainRow;

/// Left to the router.
const UNKNOWN: i64 = -1;

/// Experts of `tokens` tokens, or why they cannot be used. `file`'s layout is [`ExpertsSpan`]'s; answers
/// `[tokens, layers, per token]`.
fn recorded(store: &RunStore, span: &ExpertsSpan, experts: &Experts) -> Result<Vec<u16>, TrainError> {
    let refuse = |message: String| TrainError::Batch {
        path: span.file.clone(),
        message,
    };
    let below = |part| matches!(part, std::path::Component::Normal(_));
    if !Path::new(&span.file).components().all(below) {
        return Err(refuse("a file of experts has a path below the run's store".to_owned()));
    }
    let tokens = span.to - span.from;
    let layers = experts.layers.iter().filter(|layer| **layer).count();
    let width = ExpertsSpan::number_bytes(experts.count);
    let wanted = tokens * layers * experts.per_token * width;
    // Before it is read: a file of another kind may be of any size.
    let there = wait(store.length(&span.file)).map_err(|e| refuse(e.to_string()))?;
    if let Some(there) = there.filter(|bytes| *bytes != wanted as u64) {
        return Err(refuse(format!(
            "experts of {tokens} tokens, {layers} layers and {} of {} experts are {wanted} bytes, but it has {there}",
            experts.per_token, experts.count,
        )));
    }
    let bytes = wait(store.bytes(&span.file)).map_err(|e| refuse(e.to_string()))?;
    if sha256(&bytes) != span.sha256 {
        return Err(refuse(format!("its sha256 is {}, not {}", sha256(&bytes), span.sha256)));
    }
    let numbers: Vec<u16> = match width {
        1 => bytes.iter().map(|byte| u16::from(*byte)).collect(),
        _ => bytes
            .chunks_exact(2)
            .map(|pair| u16::from_le_bytes([pair[0], pair[1]]))
            .collect(),
    };
    for (at, chosen) in numbers.chunks_exact(experts.per_token).enumerate() {
        let twice = |(place, expert): (usize, &u16)| chosen[..place].contains(expert);
        if let Some(expert) = chosen.iter().find(|expert| usize::from(**expert) >= experts.count) {
            return Err(refuse(format!("there is no expert {expert} of {}", experts.count)));
        }
        if chosen.iter().enumerate().any(twice) {
            let (token, layer) = (span.from + at / layers, at % layers);
            return Err(refuse(format!(
                "token {token} of the row went through an expert of layer {layer} twice, says {chosen:?}"
            )));
        }
    }
    Ok(numbers)
}

/// Experts of a pack's tokens, `[1, tokens, experts per token]` int64 of every layer, -1 where they are not known; none
/// in a layer without experts.
pub(crate) fn experts_of(
    pack: &Pack,
    rows: &[TrainRow],
    config: &Config,
    store: &RunStore,
) -> Result<Vec<Option<Tensor>>, TrainError> {
    let Some(experts) = &config.experts else {
        return Ok(Vec::new());
    };
    let (k, n) = (experts.per_token, pack.tokens.len());
    let layers = experts.layers.iter().filter(|layer| **layer).count();
    let mut all = vec![vec![UNKNOWN; n * k]; layers];
    let mut read: HashMap<&str, Vec<u16>> = HashMap::new();
    for run in &pack.runs {
        for span in &rows[run.row].experts {
            let here: Range<usize> = run.tokens.start.max(span.from)..run.tokens.end.min(span.to);
            if here.is_empty() {
                continue;
            }
            if !read.contains_key(&*span.file) {
                read.insert(&span.file, recorded(store, span, experts)?);
            }
            let numbers = &read[&*span.file];
            for token in here {
                let (from, to) = ((token - span.from) * layers * k, run.at + token - run.tokens.start);
                for (layer, all) in all.iter_mut().enumerate() {
                    let chosen = numbers[from + layer * k..from + (layer + 1) * k].iter();
                    all[to * k..(to + 1) * k]
                        .iter_mut()
                        .zip(chosen)
                        .for_each(|(place, expert)| *place = i64::from(*expert));
                }
            }
        }
    }
    let mut all = all.into_iter();
    let tensor = |with: &bool| {
        let chosen = with.then(|| all.next()).flatten()?;
        Some(Tensor::from_slice(&chosen).view([1, n as i64, k as i64]))
    };
    Ok(experts.layers.iter().map(tensor).collect())
}
