//! The canary of a published version: logprobs of a fixed prompt. An engine that says it has loaded the version is
//! asked for the same ones: its checksums may be right although it computes with something else (vLLM keeps packed
//! copies of some layers).

use std::rc::Rc;

use grpo_records::weights::Canary;

use crate::error::TrainError;
use crate::loss_fn::Model;
use crate::mini_batch::{MiniBatch, fill};
use crate::sharded::Sharded;
use crate::train_row::TrainRow;

/// Tokens of the prompt.
const TOKENS: u32 = 32;
/// Distance of their ids. It is a prime, so that they lie far apart.
const STEP: u32 = 7919;

/// Logprobs of the canary under the current weights, without dropout; `None` if one is not finite, which JSON cannot
/// hold. Every rank must call it.
pub fn canary(model: &Sharded) -> Result<Option<Canary>, TrainError> {
    // Special tokens, and ids that no text has and vLLM refuses, are at the end of a vocabulary.
    let ordinary = (model.config.vocab_size as u32 / 2).max(1);
    let tokens: Vec<u32> = (1..=TOKENS).map(|at| at * STEP % ordinary).collect();
    let row = TrainRow {
        weights: vec![1.0; tokens.len()],
        tokens: tokens.clone(),
        temperature: 1.0,
        ..TrainRow::default()
    };
    let mut mini_batch = MiniBatch::new(vec![row], model)?;
    for batch in &mut mini_batch.batches {
        batch.layout = Rc::new(batch.layout.keeping_all());
    }
    let mut logprobs = Vec::new();
    fill(model, Model::Policy, &mut [mini_batch], |_, found| {
        logprobs = found.into_iter().skip(1).map(|logprob| logprob as f32).collect();
    })?;
    let finite = logprobs.iter().all(|logprob: &f32| logprob.is_finite());
    Ok(finite.then_some(Canary { tokens, logprobs }))
}
