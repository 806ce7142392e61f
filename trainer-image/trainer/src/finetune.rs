//! Supervised training of a warm start: weighted next-token loss on rows of ids, AdamW, a half-cosine decay of the rate
//! over the tokens seen.

use std::io::BufRead;
use std::path::Path;
use std::time::Instant;

use grpo_crds::algorithm::{Decay, Schedule};
use grpo_objective::rate::rate_at;
use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use serde::Deserialize;

use crate::error::TrainError;
use crate::loss_fn::LossGrad;
use crate::micro_batch::MicroBatch;
use crate::optimizer::AdamW;
use crate::packing::{Cost, pack};
use crate::sharded::Sharded;
use crate::train_row::TrainRow;

/// How to train.
#[derive(Clone, Debug)]
pub struct FinetuneSettings {
    /// Tokens to see in all.
    pub tokens: u64,
    /// Tokens of one step, over all ranks.
    pub step_tokens: usize,
    pub peak_rate: f64,
    pub warmup_steps: u32,
    pub seed: u64,
}

impl Default for FinetuneSettings {
    fn default() -> Self {
        Self {
            tokens: 8_000_000,
            step_tokens: 4_000,
            peak_rate: 3e-3,
            warmup_steps: 100,
            seed: 0,
        }
    }
}

/// Result of the training.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Report {
    pub steps: u64,
    pub tokens: u64,
    pub first_loss: f64,
    /// Mean over the last tenth of the steps.
    pub last_loss: f64,
    pub seconds: f64,
}

/// One row of the file.
#[derive(Deserialize)]
struct Demonstration {
    tokens: Vec<u32>,
    weights: Vec<f32>,
}

/// Reads JSON lines `{tokens, weights}`.
pub fn read(path: &Path, vocabulary: usize, context: usize) -> Result<Vec<TrainRow>, TrainError> {
    let refuse = |line: usize, message: String| TrainError::Batch {
        path: format!("{} line {}", path.display(), line + 1),
        message,
    };
    let file = std::fs::File::open(path).map_err(TrainError::disk("reading", path))?;
    let mut rows = Vec::new();
    for (number, line) in std::io::BufReader::new(file).lines().enumerate() {
        let line = line.map_err(TrainError::disk("reading", path))?;
        let row: Demonstration = serde_json::from_str(&line).map_err(|e| refuse(number, e.to_string()))?;
        if row.tokens.len() != row.weights.len() {
            return Err(refuse(
                number,
                format!("{} tokens and {} weights", row.tokens.len(), row.weights.len()),
            ));
        }
        if let Some(token) = row.tokens.iter().find(|token| **token as usize >= vocabulary) {
            return Err(refuse(
                number,
                format!("token {token} is outside the vocabulary of {vocabulary}"),
            ));
        }
        let n = row.tokens.len().min(context);
        rows.push(TrainRow {
            tokens: row.tokens[..n].to_vec(),
            weights: row.weights[..n].to_vec(),
            temperature: 1.0,
            ..Default::default()
        });
    }
    Ok(rows)
}

/// Trains until the settings' number of tokens is reached. Every rank calls it with the same rows.
pub fn train(
    model: &mut Sharded,
    rows: &[TrainRow],
    settings: &FinetuneSettings,
    mut say: impl FnMut(u64, u64, f64, f64),
) -> Result<Report, TrainError> {
    let adam = AdamW {
        betas: [0.9, 0.95],
        epsilon: 1e-8,
        weight_decay: 0.05,
        clip: 1.0,
    };
    let mut rng = StdRng::seed_from_u64(settings.seed);
    let began = Instant::now();
    let (mut steps, mut seen) = (0u64, 0u64);
    let mut losses: Vec<f64> = Vec::new();
    if rows.is_empty() {
        return Err(TrainError::Start("there are no demonstrations to train on".to_owned()));
    }
    'training: loop {
        let mut order: Vec<usize> = (0..rows.len()).collect();
        order.shuffle(&mut rng);
        let mut rest = order.as_slice();
        while !rest.is_empty() {
            let mut tokens = 0;
            let take = rest
                .iter()
                .take_while(|&&row| {
                    let room = tokens == 0 || tokens + rows[row].tokens.len() <= settings.step_tokens;
                    tokens += rows[row].tokens.len();
                    room
                })
                .count();
            let (now, later) = rest.split_at(take);
            rest = later;
            let taken: u64 = now.iter().map(|&row| rows[row].tokens.len() as u64).sum();
            let loss = supervised_step(model, rows, now, settings, &adam, steps, seen)?;
            losses.push(loss);
            steps += 1;
            seen += taken;
            say(steps, seen, loss, began.elapsed().as_secs_f64());
            if seen >= settings.tokens {
                break 'training;
            }
        }
    }
    let tail = &losses[losses.len() - (losses.len() / 10).max(1)..];
    Ok(Report {
        steps,
        tokens: seen,
        first_loss: losses[0],
        last_loss: tail.iter().sum::<f64>() / tail.len() as f64,
        seconds: began.elapsed().as_secs_f64(),
    })
}

fn supervised_step(
    model: &mut Sharded,
    rows: &[TrainRow],
    chosen: &[usize],
    settings: &FinetuneSettings,
    adam: &AdamW,
    steps: u64,
    seen: u64,
) -> Result<f64, TrainError> {
    let chosen: Vec<TrainRow> = chosen.iter().map(|&at| rows[at].clone()).collect();
    let (groups, own) = model.data_parallel();
    let packing = pack(&chosen, settings.step_tokens, groups, &Cost::of(&model.config));
    let mine = &packing.ranks[own];
    let batches: Vec<MicroBatch> = mine
        .iter()
        .map(|pack| model.micro_batch(pack, &chosen))
        .collect::<Result<_, _>>()?;
    // Nothing predicts the first token of a row, so it has no loss.
    let total: f64 = chosen
        .iter()
        .map(|row| row.weights.iter().skip(1).map(|w| f64::from(*w)).sum::<f64>())
        .sum();
    let scale = -1.0 / total.max(1e-9);
    let (gradients, loss) = model.gradients(&batches, &mut |batch, logprobs, _| {
        let weights = batch
            .trained
            .iter()
            .map(|(row, token)| scale * f64::from(chosen[*row].weights[*token]));
        let weights: Vec<f64> = weights.collect();
        LossGrad::weighted(weights, logprobs)
    })?;
    let schedule = Schedule {
        decay: Decay::Cosine,
        warmup_steps: settings.warmup_steps,
        final_ratio: 0.02,
        ..Schedule::default()
    };
    // The number of steps is not known: rows differ in length.
    let progress = seen as f64 / settings.tokens.max(1) as f64;
    let step = u32::try_from(steps + 1).unwrap_or(u32::MAX);
    let norm = model.update(&gradients, rate_at(settings.peak_rate, &schedule, step, progress), adam)?;
    if !norm.is_finite() {
        // Nothing was changed, so every later step would fail in the same way.
        return Err(TrainError::Start(format!(
            "the norm of the gradient of step {step} is {norm}: lower --rate, or look for numbers that are none in the model"
        )));
    }
    Ok(model.sum(&[loss])?[0])
}
