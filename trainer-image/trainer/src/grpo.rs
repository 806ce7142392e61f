//! One GRPO step on a stored batch: check it, compute advantages, weigh tokens, differentiate, step.

use std::time::Instant;

use grpo_crds::algorithm::{Algorithm, Clip, Control};
use grpo_objective::advantage::batch_advantages;
use grpo_objective::loss::{MAX_LOG_RATIO, token_weights};
use grpo_records::batch::Batch;
use grpo_records::trainer::StepMetrics;
use tch::{Kind, Tensor};

use crate::data::{MicroBatch, TrainRow};
use crate::error::TrainError;
use crate::packing::{Cost, pack};
use crate::sharded::{AdamW, Sharded};
use crate::state::{Store, sha256};

/// A gap between engine's and trainer's logprob that is more than arithmetic.
pub const LOGPROB_GAP: f64 = 1e-3;

/// Unique tokens of one micro-batch.
const MICRO_BATCH_TOKENS: usize = 4096;

/// AdamW as the run's spec has it.
pub fn optimizer(algorithm: &Algorithm) -> AdamW {
    AdamW {
        betas: algorithm.betas,
        epsilon: 1e-8,
        weight_decay: algorithm.weight_decay,
        clip: algorithm.gradient_clip,
    }
}

/// Rows ready for the model, and what is already known of the step.
pub fn prepare(
    batch: &Batch,
    path: &str,
    algorithm: &Algorithm,
    seed: u64,
    vocabulary: usize,
    context: usize,
) -> Result<(Vec<TrainRow>, StepMetrics), TrainError> {
    let refuse = |message: String| TrainError::Batch {
        path: path.to_owned(),
        message,
    };
    for row in &batch.rows {
        row.check().map_err(|fault| refuse(fault.to_string()))?;
        if let Some(token) = row.tokens.iter().find(|token| **token as usize >= vocabulary) {
            return Err(refuse(format!(
                "row of {}: token {token} is outside the vocabulary of {vocabulary}",
                row.episode
            )));
        }
        if row.tokens.len() > context {
            let n = row.tokens.len();
            return Err(refuse(format!(
                "row of {}: {n} tokens are more than the model's {context} positions",
                row.episode
            )));
        }
        if !(row.temperature.is_finite() && row.temperature > 0.0) {
            return Err(refuse(format!(
                "row of {}: temperature {} cannot be trained on",
                row.episode, row.temperature
            )));
        }
    }
    let advantages = batch_advantages(batch, algorithm, seed).map_err(|e| refuse(e.to_string()))?;

    // Tokens of an episode, whose rows share one weight per token.
    let mut episodes: Vec<((u32, &str), u64)> = Vec::new();
    let mut episode_of = vec![None; batch.rows.len()];
    for (index, row) in batch.rows.iter().enumerate() {
        if advantages.rows[index].is_none() {
            continue;
        }
        let key = (row.group, row.episode.as_str());
        let at = episodes.iter().position(|(other, _)| *other == key).unwrap_or_else(|| {
            episodes.push((key, 0));
            episodes.len() - 1
        });
        episodes[at].1 += row.mask.iter().map(|m| u64::from(*m)).sum::<u64>();
        episode_of[index] = Some(at);
    }
    let tokens: Vec<u64> = episodes.iter().map(|(_, tokens)| *tokens).collect();
    let weights = token_weights(&tokens, algorithm.aggregation);

    let rows = batch.rows.iter().enumerate().filter_map(|(index, row)| {
        let (advantage, weight) = (advantages.rows[index]?, weights[episode_of[index]?]);
        Some(TrainRow {
            tokens: row.tokens.clone(),
            weights: row
                .mask
                .iter()
                .map(|m| if *m == 1 { weight as f32 } else { 0.0 })
                .collect(),
            old: row.logprobs.clone(),
            advantage: advantage as f32,
            temperature: row.temperature,
        })
    });
    let rows: Vec<TrainRow> = rows.collect();
    let metrics = StepMetrics {
        step: batch.step,
        groups: advantages.groups,
        groups_dropped: advantages.dropped,
        groups_zero_variance: advantages.zero_variance,
        mean_reward: advantages.mean_reward,
        advantages: advantages.by_group,
        shuffled: algorithm.control == Some(Control::ShuffledRewards),
        trained_tokens: tokens.iter().sum(),
        row_tokens: rows.iter().map(|row| row.tokens.len() as u64).sum(),
        ..Default::default()
    };
    Ok((rows, metrics))
}

/// [`grpo_objective::loss::token_loss`] on tensors: losses, ratios, and where a bound was active.
pub fn token_losses(log_ratio: &Tensor, advantages: &Tensor, clip: &Clip) -> (Tensor, Tensor, Tensor) {
    let ratio = log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp();
    let free = &ratio * advantages * -1.0;
    let held = ratio.clamp(1.0 - clip.low, 1.0 + clip.high) * advantages * -1.0;
    let mut token = free.maximum(&held);
    let mut clipped = held.gt_tensor(&free);
    if let Some(dual) = clip.dual {
        let most = advantages * -dual;
        let bound = advantages.lt(0.0).logical_and(&token.gt_tensor(&most));
        token = most.where_self(&bound, &token);
        clipped = clipped.logical_or(&bound);
    }
    (token, ratio, clipped)
}

/// Reads the stored batch of a step. `checksum`: what the driver says its bytes are.
pub fn read(store: &Store, step: u32, path: &str, checksum: Option<&str>) -> Result<Batch, TrainError> {
    let refuse = |message: String| TrainError::Batch {
        path: path.to_owned(),
        message,
    };
    let bytes = store.read(path).map_err(|e| refuse(e.to_string()))?;
    if let Some(wanted) = checksum.filter(|wanted| !wanted.eq_ignore_ascii_case(&sha256(&bytes))) {
        return Err(refuse(format!(
            "its sha256 is {}, ordered was {wanted}",
            sha256(&bytes)
        )));
    }
    let batch: Batch = serde_json::from_slice(&bytes).map_err(|e| refuse(e.to_string()))?;
    if batch.step != step {
        return Err(refuse(format!(
            "it is the batch of step {}, not of step {step}",
            batch.step
        )));
    }
    Ok(batch)
}

/// Steps on a batch. Every rank calls it with the same batch. `seed` is the run's.
pub fn step(
    model: &mut Sharded,
    batch: &Batch,
    path: &str,
    algorithm: &Algorithm,
    seed: u64,
) -> Result<StepMetrics, TrainError> {
    let began = Instant::now();
    let (rows, mut metrics) = prepare(
        batch,
        path,
        algorithm,
        seed,
        model.config.vocab_size,
        model.config.max_position_embeddings,
    )?;
    let packing = pack(
        &rows,
        MICRO_BATCH_TOKENS,
        model.group.world() as usize,
        &Cost::of(&model.config),
    );
    let mine = &packing.ranks[model.group.rank() as usize];
    let batches: Vec<MicroBatch> = mine
        .iter()
        .map(|pack| MicroBatch::packed(pack, &rows))
        .collect::<Result<_, _>>()?;

    let clip = &algorithm.clip;
    // clipped, |ratio - 1|, entropy, tokens over the gap; largest gap apart, because it is not a sum.
    let mut sums = [0.0f64; 4];
    let mut gap_max = 0.0f64;
    let (gradients, loss) = model.gradients(&batches, &mut |batch, logprobs, entropies| {
        let difference = logprobs - &batch.old;
        let (token, ratio, clipped) = token_losses(&difference, &batch.advantages, clip);
        tch::no_grad(|| {
            let total = |x: &Tensor| x.to_kind(Kind::Double).sum(Kind::Double).double_value(&[]);
            let gaps = difference.detach().abs();
            sums[0] += total(&clipped);
            sums[1] += total(&(ratio.detach() - 1.0).abs());
            sums[2] += total(entropies);
            sums[3] += total(&gaps.gt(LOGPROB_GAP));
            if gaps.numel() > 0 {
                gap_max = gap_max.max(gaps.max().double_value(&[]));
            }
        });
        (token * &batch.weights).sum(Kind::Float)
    })?;
    // A maximum over ranks by sums: each rank writes its own place.
    let mut numbers = vec![loss, sums[0], sums[1], sums[2], sums[3]];
    numbers.extend((0..model.group.world()).map(|rank| if rank == model.group.rank() { gap_max } else { 0.0 }));
    let numbers = model.sum(&numbers)?;
    if !numbers[0].is_finite() {
        return Err(TrainError::Batch {
            path: path.to_owned(),
            message: format!("its loss is {}", numbers[0]),
        });
    }
    let norm = model.update(&gradients, algorithm.learning_rate, &optimizer(algorithm))?;
    if !norm.is_finite() {
        return Err(TrainError::Batch {
            path: path.to_owned(),
            message: format!("the norm of its gradient is {norm}"),
        });
    }
    let tokens = metrics.trained_tokens.max(1) as f64;
    metrics.loss = numbers[0];
    metrics.clip_fraction = numbers[1] / tokens;
    metrics.ratio_deviation = numbers[2] / tokens;
    metrics.entropy = numbers[3] / tokens;
    metrics.logprob_gap_over = numbers[4] as u64;
    metrics.logprob_gap_max = numbers[5..].iter().copied().fold(0.0, f64::max);
    metrics.gradient_norm = norm;
    metrics.learning_rate = algorithm.learning_rate;
    metrics.seconds = began.elapsed().as_secs_f64();
    Ok(metrics)
}

#[cfg(test)]
mod tests {
    use super::*;
    use grpo_objective::loss::token_loss;
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    #[test]
    fn the_loss_on_tensors_is_the_objectives() {
        let mut rng = StdRng::seed_from_u64(3);
        let mut draw = |low: f64, high: f64| (0..2000).map(|_| rng.random_range(low..high)).collect::<Vec<f64>>();
        let (differences, advantages) = (draw(-2.5, 2.5), draw(-2.0, 2.0));
        for dual in [None, Some(3.0)] {
            let clip = Clip {
                low: 0.2,
                high: 0.28,
                dual,
            };
            let logs = Tensor::from_slice(&differences).set_requires_grad(true);
            let (losses, ratios, clipped) = token_losses(&logs, &Tensor::from_slice(&advantages), &clip);
            losses.sum(Kind::Double).backward();
            for at in 0..differences.len() {
                let token = token_loss(differences[at], 0.0, advantages[at], &clip);
                let (i, near) = ([at as i64], |a: f64, b: f64| (a - b).abs() < 1e-9);
                assert!(near(losses.double_value(&i), token.loss), "{token:?}");
                assert!(near(logs.grad().double_value(&i), token.gradient), "{token:?}");
                assert!(near(ratios.double_value(&i), token.ratio) && (clipped.int64_value(&i) == 1) == token.clipped);
            }
        }
    }
    #[test]
    fn a_stored_batch_is_the_ordered_one_or_refused() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::new(folder.path().to_owned());
        let batch = Batch::new(grpo_records::Writer::driver(1), "run", 1, 2);
        store.create("batch", &crate::state::json(&batch).unwrap()).unwrap();
        assert_eq!(read(&store, 2, "batch", None).unwrap(), batch);
        for (step, path, checksum, word) in [
            (3, "batch", None, "step 2, not of step 3"),
            (2, "batch", Some("00"), "sha256"),
            (2, "nothing", None, "nothing"),
        ] {
            let error = read(&store, step, path, checksum).unwrap_err();
            assert!(error.is_refusal() && error.to_string().contains(word), "{error}");
        }
    }
}
