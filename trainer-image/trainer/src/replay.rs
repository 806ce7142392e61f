//! Router replay (R3, arXiv 2510.11370): in the trainer, a mixture's tokens go through the experts that the engine
//! chose when it sampled them.
//!
//! Engine and trainer round differently, and rounding decides between two experts that are nearly as good: the trainer
//! would differentiate by other experts than those behind the rollout logprobs. An engine's recorded experts are in
//! files of the run's store; rows name them by spans ([`ExpertsSpan`]). A rank reads those of its own packs. All packs
//! of a step exist at once, so their experts are kept in two bytes each, and widened for a layer of a wave.
//!
//! A prefix that rows share is computed once, by the experts of one of these rows. The trainer's router decides for
//! tokens without a record, and for the base model, from which nothing was sampled.

use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;

use grpo_model::Config;
use grpo_model::config::Experts;
use grpo_records::store::wait;
use grpo_records::{ExpertsSpan, RunStore, StoreError};
use tch::Tensor;

use crate::error::TrainError;
use crate::packing::Pack;
use crate::state::sha256;
use crate::train_row::TrainRow;

/// Left to the router.
const UNKNOWN: i16 = -1;

/// Experts of a span's tokens as `[tokens, layers, per token]`, or why they cannot be used. The file's layout is
/// described at [`ExpertsSpan`].
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
    let unread = |error: StoreError| TrainError::of_batch(&span.file, &error);
    // Checked before reading: a file of another kind may have any size.
    let there = wait(store.length(&span.file)).map_err(unread)?;
    if let Some(there) = there.filter(|bytes| *bytes != wanted as u64) {
        return Err(refuse(format!(
            "experts of {tokens} tokens, {layers} layers and {} of {} experts are {wanted} bytes, but it has {there}",
            experts.per_token, experts.count,
        )));
    }
    let bytes = wait(store.bytes(&span.file)).map_err(unread)?;
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

/// Experts of a pack's tokens, per layer `[1, tokens, experts per token]` int16, -1 if not known; `None` for a layer
/// without experts.
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
                        .for_each(|(place, expert)| *place = i16::try_from(*expert).unwrap_or(UNKNOWN));
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
