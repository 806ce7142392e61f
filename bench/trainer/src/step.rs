//! A step of our trainer in a process of its own, and the distance between two trainers' gradients.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use grpo_crds::algorithm::{Algorithm, Clip};
use grpo_model::weights::{self, Array, Weights};
use grpo_model::{Config, ModelError};
use grpo_native::{Group, Rendezvous};
use grpo_trainer::TrainError;
use grpo_trainer::losses::{Losses, Tally};
use grpo_trainer::micro_batch::MicroBatch;
use grpo_trainer::optimizer::AdamW;
use grpo_trainer::packing::{Cost, Packing, pack, unshared};
use grpo_trainer::sharded::Sharded;
use grpo_trainer::train_row::TrainRow;
use safetensors::SafeTensors;
use serde::{Deserialize, Serialize};

use crate::Failure;
use crate::cases::{BenchRow, Step};

/// A process's report of its step. Other trainers do not report the number of computed tokens.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Said {
    pub seconds: f64,
    pub loss: f64,
    /// The gradient's norm before clipping.
    pub norm: f64,
    pub peak_bytes: u64,
    pub row_tokens: usize,
    pub unique_tokens: usize,
    pub trained_tokens: usize,
    pub packs: usize,
}

/// The settings of our step.
#[derive(Clone, Copy)]
pub struct How {
    /// Compute every row alone, without sharing.
    pub unshared: bool,
    /// Unique tokens of one micro-batch.
    pub budget: usize,
    /// Bytes of activations that may be kept.
    pub keep: usize,
}

fn train_rows(rows: &[BenchRow], temperature: f32) -> Vec<TrainRow> {
    // The mean over the step's trained tokens.
    let trained: usize = rows.iter().map(|row| row.old.len()).sum();
    rows.iter()
        .map(|row| {
            let before = vec![0.0; row.prompt];
            TrainRow {
                tokens: row.tokens.clone(),
                weights: [before.clone(), vec![1.0 / trained as f32; row.old.len()]].concat(),
                rollout_logprobs: [before, row.old.clone()].concat(),
                advantage: f64::from(row.advantage),
                temperature,
                ..Default::default()
            }
        })
        .collect()
}

fn settings(folder: &Path) -> Result<Step, Failure> {
    Ok(serde_json::from_slice(&std::fs::read(folder.join("step.json"))?)?)
}

/// Reads the folder's rows, ready for the model.
pub fn read_rows(folder: &Path) -> Result<Vec<TrainRow>, Failure> {
    let lines = std::fs::read_to_string(folder.join("rows.jsonl"))?;
    let rows: Vec<BenchRow> = lines.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    Ok(train_rows(&rows, settings(folder)?.temperature))
}

/// One step from rows to changed parameters, including packing. Returns loss and norm.
fn one(
    model: &mut Sharded,
    rows: &[TrainRow],
    step: &Step,
    packing: impl Fn(&[TrainRow], &Cost) -> Packing,
    gradients: Option<&Path>,
) -> Result<(f64, f64, Packing), Failure> {
    let packing = packing(rows, &Cost::of(&model.config));
    let batches: Vec<MicroBatch> = packing.ranks[0]
        .iter()
        .map(|pack| MicroBatch::packed(pack, rows))
        .collect::<Result<_, TrainError>>()?;
    let clip = Clip {
        low: step.clip[0],
        high: step.clip[1],
        dual: None,
    };
    let algorithm = Algorithm {
        clip,
        ..Default::default()
    };
    let losses = Losses {
        algorithm: &algorithm,
        rows,
        sums: None,
        first: true,
        new: true,
    };
    let mut tally = Tally::default();
    let (found, loss) = model.gradients(&batches, &mut |batch, logprobs, entropies| {
        losses.gradient(batch, logprobs, entropies, &mut tally)
    })?;
    if let Some(path) = gradients {
        let mut named = Weights::new();
        for (shard, gradient) in model.shards.iter().zip(&found) {
            let mut begin = 0;
            for (name, shape) in &shard.unit.tensors {
                let numel: usize = shape.iter().product();
                let values = Vec::<f32>::try_from(gradient.narrow(0, begin, numel as i64))?;
                begin += numel as i64;
                named.insert(
                    name.clone(),
                    Array {
                        shape: shape.clone(),
                        values,
                    },
                );
            }
        }
        std::fs::write(path, weights::to_safetensors(&named)?)?;
    }
    let adam = AdamW {
        betas: [0.9, 0.999],
        epsilon: 1e-8,
        weight_decay: 0.0,
        clip: 1.0,
    };
    let norm = model.update(&found, step.rate, &adam)?;
    Ok((loss, norm, packing))
}

/// Warms up, takes one step and reports it. With `gradients` it writes the gradients of the folder's weights, without
/// warm-up.
pub fn step(folder: &Path, how: How, gradients: Option<&Path>) -> Result<Said, Failure> {
    let config = Config::read(folder)?;
    let group = Group::join(&Rendezvous::alone())?;
    let mut model = Sharded::new(config.clone(), group, &weights::read(folder, &config)?)?;
    model.activation_bytes = how.keep;
    let (settings, rows) = (settings(folder)?, read_rows(folder)?);
    let packing = |rows: &[TrainRow], cost: &Cost| match how.unshared {
        true => unshared(rows, 1, cost),
        false => pack(rows, how.budget, 1, cost),
    };
    if gradients.is_none() {
        // The beginnings of two rows.
        let warm: Vec<TrainRow> = rows.iter().take(2).map(|row| shortened(row, 40)).collect();
        one(&mut model, &warm, &settings, packing, None)?;
    }
    let began = Instant::now();
    let (loss, norm, packing) = one(&mut model, &rows, &settings, packing, gradients)?;
    Ok(Said {
        seconds: began.elapsed().as_secs_f64(),
        loss,
        norm,
        peak_bytes: memory("VmHWM:"),
        row_tokens: packing.row_tokens,
        unique_tokens: packing.unique_tokens,
        trained_tokens: packing.ranks[0].iter().map(|pack| pack.entries.len()).sum(),
        packs: packing.ranks[0].len(),
    })
}

/// The last `n` tokens of a row.
pub fn shortened(row: &TrainRow, n: usize) -> TrainRow {
    let from = row.tokens.len().saturating_sub(n);
    TrainRow {
        tokens: row.tokens[from..].to_vec(),
        weights: row.weights[from..].to_vec(),
        rollout_logprobs: row.rollout_logprobs[from..].to_vec(),
        ..row.clone()
    }
}

/// Bytes that the kernel reports of this process's memory: `VmRSS:` now, `VmHWM:` at most.
pub fn memory(line: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kib = status
        .lines()
        .find_map(|found| found.strip_prefix(line))
        .and_then(|rest| rest.split_whitespace().next())
        .and_then(|number| number.parse::<u64>().ok());
    kib.unwrap_or_default() * 1024
}

/// Distance of two files' gradients, |a - b| / |b|: the largest of any tensor, and over all tensors.
pub fn compare(ours: &Path, theirs: &Path) -> Result<[f64; 2], Failure> {
    let (ours, theirs) = (std::fs::read(ours)?, std::fs::read(theirs)?);
    let values = |bytes: &[u8]| -> Result<BTreeMap<String, Vec<f32>>, Failure> {
        let file = SafeTensors::deserialize(bytes)?;
        let of = |data: &[u8]| {
            data.chunks_exact(4)
                .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
                .collect()
        };
        Ok(file
            .tensors()
            .into_iter()
            .map(|(name, view)| (name, of(view.data())))
            .collect())
    };
    let (ours, theirs) = (values(&ours)?, values(&theirs)?);
    let (mut worst, mut all) = (0.0f64, [0.0f64; 2]);
    for (name, theirs) in &theirs {
        let missing = || ModelError::MissingTensor {
            path: "our gradients".to_owned(),
            name: name.clone(),
        };
        let ours = ours
            .get(name)
            .filter(|ours| ours.len() == theirs.len())
            .ok_or_else(missing)?;
        let apart: f64 = ours
            .iter()
            .zip(theirs)
            .map(|(a, b)| (f64::from(*a) - f64::from(*b)).powi(2))
            .sum();
        let size: f64 = theirs.iter().map(|b| f64::from(*b).powi(2)).sum();
        worst = worst.max((apart / size.max(1e-300)).sqrt());
        all = [all[0] + apart, all[1] + size];
    }
    let whole = (all[0] / all[1].max(1e-300)).sqrt();
    Ok([worst, whole])
}
