//! One supervised step on a stored batch of conversations, and the loss on held-out conversations.
//!
//! The loss is the weighted mean of the trained tokens' negative logprobs. The weights are those of
//! `algorithm.aggregation`, with each row as a sequence: `TokenMean` weighs all tokens alike, `SequenceMean` all rows,
//! as verl's SFT trainer does at one row per micro-batch. The optimizer, its clip and mini-batches are those of a GRPO
//! step.

use std::time::Instant;

use grpo_crds::algorithm::Algorithm;
use grpo_records::batch::{Batch, Row};
use grpo_records::trainer::StepMetrics;

use crate::error::TrainError;
use crate::flops::Forward;
use crate::grpo::{applied, check, refused, tell_loads, train_row};
use crate::loss_fn::{LossGrad, Model};
use crate::micro_batch::MicroBatch;
use crate::mini_batch::{MiniBatch, cut, fill, weigh};
use crate::sharded::Sharded;
use crate::train_row::TrainRow;

/// Micro-batches of each rank that are measured together.
const AT_ONCE: usize = 4;

/// Takes all optimizer steps of a batch. Every rank calls it with the same batch. `seed` is the run's.
pub fn step(
    model: &mut Sharded,
    batch: &Batch,
    path: &str,
    algorithm: &Algorithm,
    seed: u64,
) -> Result<StepMetrics, TrainError> {
    let began = Instant::now();
    let (vocabulary, context) = (model.config.vocab_size, model.config.max_position_embeddings);
    let held_out = batch.supervised.iter().flat_map(|supervised| &supervised.held_out);
    for row in batch.rows.iter().chain(held_out.clone()) {
        check(row, vocabulary, context).map_err(|message| refused(path, message))?;
    }
    model.begin_step(seed, batch.step);
    let mut mini_batches = Vec::new();
    for mut rows in cut(train_rows(batch.rows.iter()), algorithm.mini_batches) {
        weigh(&mut rows, algorithm);
        mini_batches.push(MiniBatch::new(rows, model)?);
    }
    let trained = |rows: &[TrainRow]| rows.iter().map(|row| row.trained().count() as u64).sum::<u64>();
    let mut metrics = StepMetrics {
        step: batch.step,
        learning_rate: algorithm.learning_rate,
        trained_tokens: mini_batches.iter().map(|one| trained(&one.rows)).sum(),
        row_tokens: batch.rows.iter().map(|row| row.tokens.len() as u64).sum(),
        unique_tokens: mini_batches.iter().map(|one| one.packing.unique_tokens as u64).sum(),
        observe_seconds: began.elapsed().as_secs_f64(),
        ..StepMetrics::default()
    };
    let (mut losses, mut norms) = (0.0, 0.0);
    for _ in 0..algorithm.epochs.max(1) {
        for mini_batch in &mini_batches {
            let began = Instant::now();
            let loss = &mut |batch: &MicroBatch, logprobs: &[f64], _: &[f64]| loss(&mini_batch.rows, batch, logprobs);
            let (gradients, loss) = model.gradients(&mini_batch.batches, loss)?;
            let loss = model.sum(&[loss])?[0];
            metrics.model_flops += Forward::of(&model.config).training(&mini_batch.packing.work());
            metrics.gradient_seconds += began.elapsed().as_secs_f64();
            let norm = applied(model, &gradients, loss, algorithm, &mut metrics)?;
            norms += norm.map_err(|message| match metrics.updates {
                0 => refused(path, message),
                updates => TrainError::Diverged {
                    step: batch.step,
                    updates,
                    message,
                },
            })?;
            losses += loss;
            metrics.updates += 1;
        }
    }
    let updates = f64::from(metrics.updates.max(1));
    metrics.policy_loss = losses / updates;
    metrics.loss = metrics.policy_loss;
    metrics.gradient_norm = norms / updates;
    tell_loads(&mut metrics, &model.expert_loads()?);
    let held_out = train_rows(held_out);
    if !held_out.is_empty() {
        let (loss, flops) = measured(model, held_out, algorithm)?;
        metrics.held_out_loss = Some(loss);
        metrics.model_flops += flops;
    }
    metrics.seconds = began.elapsed().as_secs_f64();
    Ok(metrics)
}

/// Each row is a sequence.
fn train_rows<'a>(rows: impl Iterator<Item = &'a Row>) -> Vec<TrainRow> {
    let numbered = rows.enumerate().map(|(sequence, row)| TrainRow {
        sequence,
        ..train_row(row)
    });
    numbered.collect()
}

/// The weighted negative logprobs of a call's tokens.
fn loss(rows: &[TrainRow], batch: &MicroBatch, logprobs: &[f64]) -> LossGrad {
    let weights = batch
        .trained
        .iter()
        .map(|(row, at)| -f64::from(rows[*row].weights[*at]));
    LossGrad::weighted(weights.collect(), logprobs)
}

/// The loss of held-out rows, and the operations for it. An adapter's dropout is off. Every rank must call it.
fn measured(model: &mut Sharded, rows: Vec<TrainRow>, algorithm: &Algorithm) -> Result<(f64, f64), TrainError> {
    let trained = model.config.lora.clone();
    model.config.lora = trained.clone().map(|lora| lora.with_dropout(0.0));
    let found = without_dropout(model, rows, algorithm);
    model.config.lora = trained;
    found
}

fn without_dropout(model: &Sharded, mut rows: Vec<TrainRow>, algorithm: &Algorithm) -> Result<(f64, f64), TrainError> {
    weigh(&mut rows, algorithm);
    // In parts: all rows at once would put the hidden states of a whole dataset on the devices.
    let most = model.pack_tokens() * model.data_parallel().0 * AT_ONCE;
    let (mut sum, mut flops, mut rest) = (0.0, 0.0, rows.into_iter().peekable());
    while rest.peek().is_some() {
        let (mut part, mut tokens) = (Vec::new(), 0);
        while let Some(row) = rest.next_if(|row| part.is_empty() || tokens + row.tokens.len() <= most) {
            tokens += row.tokens.len();
            part.push(row);
        }
        let (loss, took) = part_measured(model, part)?;
        sum += loss;
        flops += took;
    }
    Ok((sum, flops))
}

fn part_measured(model: &Sharded, rows: Vec<TrainRow>) -> Result<(f64, f64), TrainError> {
    let mut sum = 0.0;
    let mut one = [MiniBatch::new(rows, model)?];
    let flops = fill(model, Model::Policy, &mut one, |row, logprobs| {
        sum -= row
            .trained()
            .map(|at| f64::from(row.weights[at]) * logprobs[at])
            .sum::<f64>();
    })?;
    Ok((sum, flops))
}
