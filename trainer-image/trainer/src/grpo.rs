//! One GRPO step on a stored batch: check it, apply the KL penalty to rewards or loss, compute advantages, cut the
//! batch into mini-batches, and make one optimizer step per mini-batch.
//!
//! Forward passes before the first optimizer step compute the other logprobs of the objective: the base model's (`kl`),
//! and the policy's under the weights from which the batch's first step starts (`oldLogprobs: Recompute`,
//! `correction`), if later optimizer steps will have changed them. A batch with one optimizer step needs no such pass:
//! its own logprobs are the old ones.

use std::time::Instant;

use grpo_crds::algorithm::{Algorithm, Control, Denominator, Estimator, Kl, KlPlacement, OldLogprobs};
use grpo_objective::advantage::{batch_advantages, shaped_advantages};
use grpo_objective::kl::{estimate, shaped_reward};
use grpo_objective::objective::{looks_at_moving_sequences, looks_at_sequences};
use grpo_records::batch::{Batch, FillError, Row};
use grpo_records::store::wait;
use grpo_records::trainer::StepMetrics;
use grpo_records::{paths, record};
use tch::Tensor;

use crate::error::TrainError;
use crate::flops::Forward;
use crate::loss_fn::{LossOver, Model};
use crate::losses::{Losses, Tally};
use crate::micro_batch::MicroBatch;
use crate::mini_batch::{MiniBatch, cut, fill, leave_out_what_adds_nothing, weigh};
use crate::optimizer::AdamW;
use crate::sharded::Sharded;
use crate::state::{TrainerStore, sha256};
use crate::token_stats::TokenStats;
use crate::train_row::TrainRow;

/// AdamW as the run's spec has it.
pub fn optimizer(algorithm: &Algorithm) -> AdamW {
    AdamW {
        betas: algorithm.betas,
        epsilon: 1e-8,
        weight_decay: algorithm.weight_decay,
        clip: algorithm.gradient_clip,
    }
}

/// Refuses a row that cannot be trained on.
pub(crate) fn check(row: &Row, vocabulary: usize, context: usize) -> Result<(), String> {
    row.check().map_err(|fault| fault.to_string())?;
    let (episode, n) = (&row.episode, row.tokens.len());
    if let Some(token) = row.tokens.iter().find(|token| **token as usize >= vocabulary) {
        return Err(format!(
            "row of {episode}: token {token} is outside the vocabulary of {vocabulary}"
        ));
    }
    if n > context {
        return Err(format!(
            "row of {episode}: {n} tokens are more than the model's {context} positions"
        ));
    }
    if !(row.temperature.is_finite() && row.temperature > 0.0) {
        let temperature = row.temperature;
        return Err(format!(
            "row of {episode}: temperature {temperature} cannot be trained on"
        ));
    }
    Ok(())
}

/// A stored row, every sampled token with weight 1.
pub(crate) fn train_row(row: &Row) -> TrainRow {
    TrainRow {
        tokens: row.tokens.clone(),
        weights: row.mask.iter().map(|mask| f32::from(*mask)).collect(),
        rollout_logprobs: row.logprobs.clone(),
        temperature: row.temperature,
        experts: row.experts.clone(),
        ..Default::default()
    }
}

/// The rows to train on, weighed as one mini-batch, and the metrics known so far. Rewards of `shaped` replace the
/// batch's own.
pub fn prepare(
    batch: &Batch,
    path: &str,
    algorithm: &Algorithm,
    seed: u64,
    shaped: Option<&Shaped>,
) -> Result<(Vec<TrainRow>, StepMetrics), TrainError> {
    let advantages = match shaped {
        None => batch_advantages(batch, algorithm, seed),
        Some(shaped) => shaped_advantages(batch, &shaped.rewards, algorithm, seed),
    };
    let advantages = advantages.map_err(|e| refused(path, e.to_string()))?;
    let mut sequences = std::collections::HashMap::new();
    let mut rows = Vec::with_capacity(batch.rows.len());
    for (index, row) in batch.rows.iter().enumerate() {
        let Some(advantage) = advantages.rows[index].filter(|_| !advantages.masked[index]) else {
            continue;
        };
        let alone = (algorithm.denominator == Denominator::Row).then_some(index);
        let next = sequences.len();
        rows.push(TrainRow {
            advantage,
            number: index,
            old_logprobs: shaped.map_or_else(Vec::new, |shaped| shaped.old_logprobs[index].clone()),
            sequence: *sequences
                .entry((row.group, row.episode.as_str(), alone))
                .or_insert(next),
            ..train_row(row)
        });
    }
    weigh(&mut rows, algorithm);
    let versions = batch.rows.iter().flat_map(|row| &row.weights);
    let lags = versions.filter_map(|span| {
        Some(
            batch
                .step
                .saturating_sub(1)
                .saturating_sub(paths::step_of_weights(&span.version)?),
        )
    });
    let metrics = StepMetrics {
        step: batch.step,
        groups: advantages.groups,
        groups_dropped: advantages.dropped,
        groups_zero_variance: advantages.zero_variance,
        groups_informative: advantages.groups - advantages.dropped - advantages.zero_variance,
        rows_overlong: advantages.masked.iter().filter(|masked| **masked).count() as u32,
        mean_reward: advantages.mean_reward,
        advantages: advantages.by_group,
        shuffled: algorithm.control == Some(Control::ShuffledRewards),
        staleness_max: lags.max().unwrap_or(0),
        trained_tokens: rows.iter().map(|row| row.trained().count() as u64).sum(),
        row_tokens: rows.iter().map(|row| row.tokens.len() as u64).sum(),
        ..Default::default()
    };
    Ok((rows, metrics))
}

pub(crate) fn refused(path: &str, message: String) -> TrainError {
    TrainError::Batch {
        path: path.to_owned(),
        message,
    }
}

/// Reads the stored batch of a step and its rows. `checksum`: the batch's checksum from the driver. A store that does
/// not answer is [`TrainError::Unread`]; content that cannot be used refuses the batch.
pub fn read(store: &TrainerStore, step: u32, path: &str, checksum: Option<&str>) -> Result<Batch, TrainError> {
    let refuse = |message: String| refused(path, message);
    let file = |file: &str| wait(store.records().bytes(file));
    let bytes = file(path).map_err(|error| TrainError::of_batch(path, &error))?;
    if let Some(wanted) = checksum.filter(|wanted| !wanted.eq_ignore_ascii_case(&sha256(&bytes))) {
        return Err(refuse(format!(
            "its sha256 is {}, ordered was {wanted}",
            sha256(&bytes)
        )));
    }
    let mut batch: Batch = record::decode(&bytes).map_err(|e| refuse(e.to_string()))?;
    if batch.step != step {
        return Err(refuse(format!(
            "it is the batch of step {}, not of step {step}",
            batch.step
        )));
    }
    batch.fill(file).map_err(|error| match &error {
        FillError::Read { source, .. } => TrainError::of_batch(path, source),
        _ => refuse(error.to_string()),
    })?;
    Ok(batch)
}

/// Rewards minus the KL penalty.
pub struct Shaped {
    /// One per row: all rows of an episode have the episode's reward (StepWise: each its own).
    rewards: Vec<f64>,
    /// The policy's logprobs of every row, if `oldLogprobs` asks for them; else empty.
    old_logprobs: Vec<Vec<f64>>,
    /// Mean of the estimator over trained tokens.
    kl: f64,
    /// Operations spent on it.
    flops: f64,
}

fn shaped(model: &Sharded, batch: &Batch, algorithm: &Algorithm, kl: &Kl) -> Result<Shaped, TrainError> {
    let mut all = [MiniBatch::new(batch.rows.iter().map(train_row).collect(), model)?];
    let mut flops = fill(model, Model::Base, &mut all, |row, logprobs| row.reference = logprobs)?;
    if algorithm.old_logprobs == OldLogprobs::Recompute {
        flops += fill(model, Model::Policy, &mut all, |row, logprobs| {
            row.old_logprobs = logprobs
        })?;
    }
    let [MiniBatch { rows, .. }] = all;
    let differences = |row: &TrainRow| -> Vec<f64> {
        let old = |at: usize| {
            row.old_logprobs
                .get(at)
                .copied()
                .unwrap_or(f64::from(row.rollout_logprobs[at]))
        };
        row.trained().map(|at| old(at) - row.reference[at]).collect()
    };
    let step_wise = algorithm.advantage.estimator == Estimator::StepWise;
    let member = |row: &Row| (row.group, row.episode.clone(), row.turn.filter(|_| step_wise));
    let mut of_member: std::collections::HashMap<_, Vec<f64>> = std::collections::HashMap::new();
    for (stored, row) in batch.rows.iter().zip(&rows) {
        of_member.entry(member(stored)).or_default().extend(differences(row));
    }
    let reward = |row: &Row| shaped_reward(f64::from(row.reward), kl, of_member[&member(row)].iter().copied());
    let values = of_member.values().flatten().map(|x| estimate(kl.estimator, *x).value);
    let tokens = of_member.values().map(Vec::len).sum::<usize>().max(1) as f64;
    Ok(Shaped {
        rewards: batch.rows.iter().map(reward).collect(),
        old_logprobs: rows.into_iter().map(|row| row.old_logprobs).collect(),
        kl: values.sum::<f64>() / tokens,
        flops,
    })
}

/// Whether the old logprobs must be computed before the batch's first optimizer step: otherwise that step's own
/// logprobs are the old ones.
fn needs_old_logprobs(algorithm: &Algorithm, mini_batches: &[MiniBatch]) -> bool {
    let reads = algorithm.old_logprobs == OldLogprobs::Recompute || algorithm.correction.is_some();
    let moves = mini_batches.len() > 1 || algorithm.epochs > 1;
    let wide = looks_at_sequences(algorithm) && !mini_batches.iter().all(MiniBatch::holds_sequences_whole);
    reads && (moves || wide)
}

/// Takes all optimizer steps of a batch. Every rank calls it with the same batch. `seed` is the run's.
pub fn step(
    model: &mut Sharded,
    batch: &Batch,
    path: &str,
    algorithm: &Algorithm,
    seed: u64,
) -> Result<StepMetrics, TrainError> {
    Ok(take(model, batch, path, algorithm, seed, None)?.0)
}

/// As [`step`]. Returns what was computed for each sampled token, too.
pub fn recorded_step(
    model: &mut Sharded,
    batch: &Batch,
    path: &str,
    algorithm: &Algorithm,
    seed: u64,
) -> Result<(StepMetrics, TokenStats), TrainError> {
    let (metrics, stats) = take(model, batch, path, algorithm, seed, Some(TokenStats::of(batch)))?;
    Ok((metrics, stats.unwrap_or_default().over_ranks(model)?))
}

fn take(
    model: &mut Sharded,
    batch: &Batch,
    path: &str,
    algorithm: &Algorithm,
    seed: u64,
    mut stats: Option<TokenStats>,
) -> Result<(StepMetrics, Option<TokenStats>), TrainError> {
    let began = Instant::now();
    let config = &model.config;
    for row in &batch.rows {
        check(row, config.vocab_size, config.max_position_embeddings).map_err(|message| refused(path, message))?;
    }
    if model.replays.is_some()
        && let Some(row) = batch.rows.iter().find(|row| row.experts.is_empty())
    {
        let episode = &row.episode;
        return Err(refused(
            path,
            format!(
                "row of {episode}: its engine has not said which experts its tokens went through, which algorithm.routerReplay repeats: \
                 use an engine that does, or set algorithm.routerReplay: false, and the trainer's own router chooses"
            ),
        ));
    }
    model.begin_step(seed, batch.step);
    let in_reward = algorithm.kl.as_ref().filter(|kl| kl.placement == KlPlacement::Reward);
    let shaped = in_reward.map(|kl| shaped(model, batch, algorithm, kl)).transpose()?;
    let (rows, mut metrics) = prepare(batch, path, algorithm, seed, shaped.as_ref())?;
    if let Some(shaped) = shaped {
        (metrics.kl, metrics.model_flops) = (shaped.kl, shaped.flops);
    }
    if let Some(stats) = &mut stats {
        stats.train_on(&rows);
    }

    let mut mini_batches = Vec::new();
    let mut not_computed = 0;
    for mut rows in cut(rows, algorithm.mini_batches) {
        weigh(&mut rows, algorithm);
        not_computed += leave_out_what_adds_nothing(&mut rows, algorithm);
        mini_batches.push(MiniBatch::new(rows, model)?);
    }
    metrics.unique_tokens = mini_batches
        .iter()
        .map(|mini_batch| mini_batch.packing.unique_tokens as u64)
        .sum();
    if algorithm.kl.is_some() && in_reward.is_none() {
        metrics.model_flops += fill(model, Model::Base, &mut mini_batches, |row, logprobs| {
            row.reference = logprobs
        })?;
    }
    match needs_old_logprobs(algorithm, &mini_batches) {
        // The reward shaping has computed them already.
        true if mini_batches.iter().all(MiniBatch::knows_old_logprobs) => {}
        true => {
            metrics.model_flops += fill(model, Model::Policy, &mut mini_batches, |row, logprobs| {
                row.old_logprobs = logprobs
            })?
        }
        // Other packs round differently: the first optimizer step's own logprobs are the exact old ones.
        false => mini_batches.iter_mut().for_each(MiniBatch::forget_old_logprobs),
    }
    metrics.observe_seconds = began.elapsed().as_secs_f64();

    let mut tally = Tally::seeing(stats);
    let (mut norms, mut updates) = (0.0, 0);
    for epoch in 0..algorithm.epochs.max(1) {
        for at in 0..mini_batches.len() {
            let place = UpdatePlace {
                first: epoch == 0 && at == 0,
                new: epoch == 0,
            };
            let norm = update(
                model,
                &mut mini_batches[at..=at],
                algorithm,
                place,
                &mut tally,
                &mut metrics,
            );
            norms += norm?.map_err(|message| match updates {
                0 => refused(path, message),
                _ => TrainError::Diverged {
                    step: batch.step,
                    updates,
                    message,
                },
            })?;
            updates += 1;
        }
    }
    not_computed *= u64::from(algorithm.epochs.max(1));
    let tally = tally.over_ranks(model)?;
    tally.tell(&mut metrics, algorithm, updates, not_computed);
    tell_loads(&mut metrics, &model.expert_loads()?);
    metrics.updates = updates;
    metrics.gradient_norm = norms / f64::from(updates.max(1));
    metrics.learning_rate = algorithm.learning_rate;
    metrics.seconds = began.elapsed().as_secs_f64();
    Ok((metrics, tally.tokens_seen))
}

/// Adds the load of the experts to the metrics. `loads`: `[layer][expert]`.
pub(crate) fn tell_loads(metrics: &mut StepMetrics, loads: &[Vec<u64>]) {
    let even = |layer: &Vec<u64>| layer.iter().sum::<u64>() as f64 / layer.len() as f64;
    let mixtures = || loads.iter().filter(|layer| layer.iter().any(|load| *load > 0));
    let busiest = mixtures().map(|layer| layer.iter().copied().max().unwrap_or_default() as f64 / even(layer));
    metrics.expert_load_max = busiest.reduce(f64::max);
    metrics.experts_idle = metrics
        .expert_load_max
        .map(|_| mixtures().flatten().filter(|load| **load == 0).count() as u64);
}

/// Place of an optimizer step in its batch: see [`Losses`].
#[derive(Clone, Copy)]
struct UpdatePlace {
    first: bool,
    new: bool,
}

/// One optimizer step. Returns the norm of its gradient. If the step is not possible, returns the reason and leaves the
/// parameters as they were. `mini_batch` is one mini-batch.
fn update(
    model: &mut Sharded,
    mini_batch: &mut [MiniBatch],
    algorithm: &Algorithm,
    UpdatePlace { first, new }: UpdatePlace,
    tally: &mut Tally,
    metrics: &mut StepMetrics,
) -> Result<Result<f64, String>, TrainError> {
    let began = Instant::now();
    let mut sums = None;
    if looks_at_sequences(algorithm) && !mini_batch.iter().all(MiniBatch::holds_sequences_whole) {
        let mut now: Vec<Vec<f64>> = Vec::new();
        let at_start = first || !looks_at_moving_sequences(algorithm);
        match mini_batch[0].knows_old_logprobs() && at_start {
            true => now = mini_batch[0].rows.iter().map(|row| row.old_logprobs.clone()).collect(),
            // The gradient computes them again, so this pass does not count.
            false => _ = fill(model, Model::Policy, mini_batch, |_, logprobs| now.push(logprobs))?,
        }
        sums = Some(Losses::sums_of(&mini_batch[0].rows, &now, algorithm));
    }
    model.loss_over = match looks_at_sequences(algorithm) && sums.is_none() {
        true => LossOver::Batches,
        false => LossOver::Tokens,
    };
    let losses = Losses {
        algorithm,
        rows: &mini_batch[0].rows,
        sums,
        first,
        new,
    };
    let mut loss_grad =
        |batch: &MicroBatch, logprobs: &[f64], entropies: &[f64]| losses.gradient(batch, logprobs, entropies, tally);
    let (gradients, loss) = model.gradients(&mini_batch[0].batches, &mut loss_grad)?;
    let loss = model.sum(&[loss])?[0];
    metrics.model_flops += Forward::of(&model.config).training(&mini_batch[0].packing.work());
    metrics.gradient_seconds += began.elapsed().as_secs_f64();
    applied(model, &gradients, loss, algorithm, metrics)
}

/// Takes an optimizer step along a gradient, unless loss or gradient are not finite. Every rank must call it.
pub(crate) fn applied(
    model: &mut Sharded,
    gradients: &[Tensor],
    loss: f64,
    algorithm: &Algorithm,
    metrics: &mut StepMetrics,
) -> Result<Result<f64, String>, TrainError> {
    if !loss.is_finite() {
        return Ok(Err(format!("its loss is {loss}")));
    }
    let began = Instant::now();
    let norm = model.update(gradients, algorithm.learning_rate, &optimizer(algorithm))?;
    metrics.update_seconds += began.elapsed().as_secs_f64();
    Ok(match norm.is_finite() {
        true => Ok(norm),
        false => Err(format!("the norm of its gradient is {norm}")),
    })
}

#[cfg(test)]
mod tests;
