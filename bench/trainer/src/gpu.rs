//! Steps of Qwen3-0.6B's geometry on a GPU, in bf16 over fp32 masters: seconds of a step, tokens a second and the share
//! of the GPU's peak. One warm-up step, then medians.
//!
//! Two cases: one row of many tokens, and a group whose samples share their prompt. Weights are random: what is
//! computed does not depend on them.

use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use grpo_bench_report::{Bench, Row};
use grpo_model::Config;
use grpo_native::{Group, Rendezvous, device};
use grpo_trainer::TrainError;
use grpo_trainer::compute::{Compute, Precision};
use grpo_trainer::flops::{Forward, Work, peak, utilisation};
use grpo_trainer::initial::initial_weights;
use grpo_trainer::loss_fn::LossGrad;
use grpo_trainer::micro_batch::MicroBatch;
use grpo_trainer::optimizer::AdamW;
use grpo_trainer::packing::{Cost, pack};
use grpo_trainer::sharded::Sharded;
use grpo_trainer::train_row::TrainRow;
use tch::Device;

use crate::Failure;
use crate::figures::show;
use crate::median::median;

#[derive(Args)]
pub struct Flags {
    /// Which GPU, counted among those that the process sees.
    #[arg(long, default_value_t = 0)]
    gpu: usize,
    /// Unique tokens of a step.
    #[arg(long, default_value_t = 16_384)]
    tokens: usize,
    /// Layers of the model: fewer take less time to make.
    #[arg(long, default_value_t = 28)]
    layers: usize,
    /// Steps that are timed.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    #[arg(long, default_value = "bench/results/trainer-gpu.json")]
    out: PathBuf,
}

fn config(layers: usize, positions: usize) -> Result<Config, Failure> {
    let json = serde_json::json!({
        "model_type": "qwen3", "vocab_size": 151_936, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": layers,
        "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "rms_norm_eps": 1e-6, "rope_theta": 1e6,
        "max_position_embeddings": positions, "tie_word_embeddings": true, "initializer_range": 0.02
    });
    Ok(Config::parse(json.to_string().as_bytes(), "config.json")?)
}

/// A row whose first `prompt` tokens are those of every row, and whose others, all trained, are its own.
fn row(at: usize, prompt: usize, completion: usize) -> TrainRow {
    let token = |seed: usize, i: usize| ((seed + 1) * 7919 + i * 104_729 + i * i % 977) as u32 % 150_000;
    let shared = (0..prompt).map(|i| token(0, i));
    let own = (0..completion).map(|i| token(at + 1, i));
    let before = vec![0.0; prompt];
    TrainRow {
        tokens: shared.chain(own).collect(),
        weights: [before, vec![1e-4; completion]].concat(),
        temperature: 1.0,
        ..Default::default()
    }
}

/// A case's rows: their unique tokens are `tokens`.
fn cases(tokens: usize) -> [(&'static str, Vec<TrainRow>); 2] {
    let completion = tokens / 16;
    [
        ("one row", vec![row(0, 16, tokens - 16)]),
        (
            "eight samples of one prompt",
            (0..8).map(|at| row(at, tokens - 8 * completion, completion)).collect(),
        ),
    ]
}

/// Seconds of a step, from packed rows to changed parameters. The norm is a number on the host, so the step is over.
fn one(model: &mut Sharded, rows: &[TrainRow], budget: usize) -> Result<(f64, Work), Failure> {
    let began = Instant::now();
    let packing = pack(rows, budget, 1, &Cost::of(&model.config));
    let batches: Vec<MicroBatch> = packing.ranks[0]
        .iter()
        .map(|pack| model.micro_batch(pack, rows))
        .collect::<Result<_, TrainError>>()?;
    let (found, _) = model.gradients(&batches, &mut |batch, logprobs, _| {
        let weights = batch.trained.iter().map(|(row, at)| f64::from(rows[*row].weights[*at]));
        LossGrad::weighted(weights.collect(), logprobs)
    })?;
    let adam = AdamW {
        betas: [0.9, 0.999],
        epsilon: 1e-8,
        weight_decay: 0.0,
        clip: 1.0,
    };
    model.update(&found, 1e-6, &adam)?;
    Ok((began.elapsed().as_secs_f64(), packing.work()))
}

/// Measures, prints and writes. There are no bars: these are the first figures of their kind.
pub fn bench(flags: &Flags) -> Result<bool, Failure> {
    device::use_gpu(flags.gpu)?;
    let name = device::gpu_name(flags.gpu)?;
    let compute = Compute {
        device: Device::Cuda(flags.gpu),
        precision: Precision::Bf16,
        ..Compute::default()
    };
    let config = config(flags.layers, flags.tokens)?;
    let weights = initial_weights(&config, 3);
    let forward = Forward::of(&config);
    let model = Sharded::new(config, Group::join(&Rendezvous::alone())?, &weights)?;
    drop(weights);
    let mut model = model.compute_as(compute.clone());
    let mut figures = Vec::new();
    for (case, rows) in cases(flags.tokens) {
        one(&mut model, &rows, flags.tokens)?;
        let mut seconds = Vec::new();
        let mut work = Work::default();
        for _ in 0..flags.rounds {
            let (took, of) = one(&mut model, &rows, flags.tokens)?;
            eprintln!("{case}: {took:.3} s");
            seconds.push(took);
            work = of;
        }
        let step = median(seconds);
        let row = |what: &str, value: f64, unit: &str| {
            let figure = format!(
                "Qwen3-0.6B's geometry, {} layers, on {name}: {case}: {what}",
                flags.layers
            );
            Row::significant(figure, value, unit, None)
        };
        figures.push(row("seconds of a step", step, "s"));
        figures.push(row("unique tokens a second", work.tokens / step, "tokens/s"));
        if let Some(share) = peak(&compute)?.and_then(|peak| utilisation(forward.training(&work), step, peak, 1)) {
            figures.push(row("model FLOPs utilisation", share, ""));
        }
    }
    figures.iter().for_each(show);
    let measured = Bench::of_this_machine(&figures).with_versions(&["torch 2.11.0".to_owned()]);
    measured.merged_with(&flags.out).write(&flags.out)?;
    Ok(true)
}
