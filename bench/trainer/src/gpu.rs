//! Steps of published geometries on a GPU, in bf16: seconds per step, tokens per second and the share of the GPU's
//! peak. One warm-up step, then medians.
//!
//! Two cases: one row of many tokens, and a group whose samples share their prompt. Weights come from one short table
//! of random numbers: the computation does not depend on their values, and drawing 8 billion would take longer than
//! training.

use std::ops::Range;
use std::path::PathBuf;
use std::time::Instant;

use clap::{Args, ValueEnum};
use grpo_bench_report::{Bench, Row};
use grpo_crds::grpo_run::Offload;
use grpo_memory::{Facts, Gpu, ParallelDims, Schedule, StepWork};
use grpo_model::Config;
use grpo_model::lora::Lora;
use grpo_model::weights::{Array, Weights, units};
use grpo_native::{Group, Rendezvous, device};
use grpo_trainer::TrainError;
use grpo_trainer::compute::{Compute, Precision};
use grpo_trainer::flops::{Forward, Work, peak, utilisation};
use grpo_trainer::loss_fn::LossGrad;
use grpo_trainer::memory::geometry;
use grpo_trainer::micro_batch::MicroBatch;
use grpo_trainer::optimizer::AdamW;
use grpo_trainer::packing::{Cost, pack};
use grpo_trainer::sharded::Sharded;
use grpo_trainer::train_row::TrainRow;
use tch::Device;

use crate::Failure;
use crate::figures::show;
use crate::median::median;

/// A geometry, and how it is trained.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Model {
    /// Qwen3-0.6B, all weights.
    #[value(name = "0.6b")]
    Full06B,
    /// Qwen3-4B, an adapter.
    #[value(name = "4b-lora")]
    Lora4B,
    /// Qwen3-8B, an adapter.
    #[value(name = "8b-lora")]
    Lora8B,
    /// Qwen3-30B-A3B, an adapter beside its attention.
    #[value(name = "30b-a3b-lora")]
    LoraMixture,
}

/// What a step keeps for its backward pass.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Keep {
    /// Activations, if they fit.
    Activations,
    /// Attention's outputs, if they fit: the rest of a block is computed twice.
    Attention,
    /// The blocks' inputs.
    Inputs,
    /// The blocks' inputs, in the host's memory.
    Offloaded,
}

/// Of an adapter on every linear layer, or on a mixture's attention.
const RANK: usize = 32;

#[derive(Args)]
pub struct Flags {
    #[arg(long, value_enum, default_value = "0.6b")]
    model: Model,
    /// Which GPU, counted among those that the process sees.
    #[arg(long, default_value_t = 0)]
    gpu: usize,
    /// Unique tokens of a step.
    #[arg(long, default_value_t = 16_384)]
    tokens: usize,
    /// Layers of the model; by default as many as it has.
    #[arg(long)]
    layers: Option<usize>,
    /// Steps that are timed.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// The same bits every time: see `trainer.deterministic`.
    #[arg(long)]
    deterministic: bool,
    #[arg(long, value_enum, default_value = "activations")]
    keep: Keep,
    /// Print the estimates of `kubectl grpo plan` for all geometries on a GPU of this name, such as H200, and measure
    /// nothing.
    #[arg(long)]
    estimate: Option<String>,
    #[arg(long, default_value = "bench/results/trainer-gpu.json")]
    out: PathBuf,
}

impl Model {
    fn name(self) -> &'static str {
        match self {
            Self::Full06B => "Qwen3-0.6B's geometry",
            Self::Lora4B => "Qwen3-4B's geometry beside an adapter",
            Self::Lora8B => "Qwen3-8B's geometry beside an adapter",
            Self::LoraMixture => "Qwen3-30B-A3B's geometry beside an adapter",
        }
    }

    /// The bar in tokens per second, on an H200.
    fn tokens_per_second(self) -> Option<&'static str> {
        match self {
            Self::Full06B => Some(">= 24000"),
            Self::Lora4B => Some(">= 9000"),
            Self::Lora8B | Self::LoraMixture => None,
        }
    }

    fn config(self, layers: Option<usize>, positions: usize) -> Result<Config, Failure> {
        // Hidden size, intermediate size, layers, heads, groups of keys and values, whether head and embedding are
        // tied.
        let (hidden, intermediate, own, heads, groups, tied) = match self {
            Self::Full06B => (1024, 3072, 28, 16, 8, true),
            Self::Lora4B => (2560, 9728, 36, 32, 8, true),
            Self::Lora8B => (4096, 12_288, 36, 32, 8, false),
            Self::LoraMixture => (2048, 6144, 48, 32, 4, false),
        };
        let mut json = serde_json::json!({
            "model_type": "qwen3", "vocab_size": 151_936, "hidden_size": hidden, "intermediate_size": intermediate,
            "num_hidden_layers": layers.unwrap_or(own), "num_attention_heads": heads, "num_key_value_heads": groups,
            "head_dim": 128, "rms_norm_eps": 1e-6, "rope_theta": 1e6, "max_position_embeddings": positions,
            "tie_word_embeddings": tied
        });
        if self == Self::LoraMixture {
            json["model_type"] = "qwen3_moe".into();
            json["num_experts"] = 128.into();
            json["num_experts_per_tok"] = 8.into();
            json["moe_intermediate_size"] = 768.into();
            json["norm_topk_prob"] = true.into();
        }
        Ok(Config::parse(json.to_string().as_bytes(), "config.json")?)
    }

    fn lora(self) -> Result<Option<Lora>, Failure> {
        let attention = ["q_proj", "k_proj", "v_proj", "o_proj"];
        let mlp = ["gate_proj", "up_proj", "down_proj"];
        Ok(match self {
            Self::Full06B => None,
            Self::LoraMixture => Some(Lora::new(RANK, 2.0 * RANK as f64, &attention)?),
            Self::Lora4B | Self::Lora8B => Some(Lora::new(RANK, 2.0 * RANK as f64, &[&attention[..], &mlp].concat())?),
        })
    }

    fn sharded(self, config: Config, compute: &Compute) -> Result<Sharded, Failure> {
        let group = Group::join(&Rendezvous::alone())?;
        let table = table();
        Ok(match self.lora()? {
            Some(lora) => Sharded::frozen_of(
                config,
                group,
                |name, range| Ok(values(&table, name, range)),
                compute,
                lora,
                3,
            )?,
            None => {
                let tensors = units(&config).into_iter().flat_map(|unit| unit.tensors);
                let array = |(name, shape): (String, Vec<usize>)| {
                    let values = values(&table, &name, 0..shape.iter().product());
                    (name, Array { shape, values })
                };
                let weights: Weights = tensors.map(array).collect();
                Sharded::new(config, group, &weights)?.compute_as(compute.clone())
            }
        })
    }
}

/// Numbers with a standard deviation of 0.02; their count is a prime number.
fn table() -> Vec<f32> {
    let mut state = 1u64;
    let mut uniform = || {
        // SplitMix64.
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 40) as f32 / (1u32 << 24) as f32
    };
    (0..1_000_003)
        .map(|_| (uniform() - 0.5) * 0.02 * 12f32.sqrt())
        .collect()
}

/// Norms scale by one; other values come from the table, from another offset for each tensor.
fn values(table: &[f32], name: &str, range: Range<usize>) -> Vec<f32> {
    if name.contains("norm") {
        return vec![1.0; range.len()];
    }
    let place = name
        .bytes()
        .fold(0usize, |at, byte| (at * 31 + usize::from(byte)) % table.len());
    let mut values = Vec::with_capacity(range.len());
    let mut at = (place + range.start) % table.len();
    while values.len() < range.len() {
        let part = (range.len() - values.len()).min(table.len() - at);
        values.extend_from_slice(&table[at..at + part]);
        at = 0;
    }
    values
}

/// A row whose first `prompt` tokens are the same in every row, and whose other tokens, all trained, are its own.
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

const ONE_ROW: &str = "one row";

/// A case's rows, with `tokens` unique tokens.
fn cases(tokens: usize) -> [(&'static str, Vec<TrainRow>); 2] {
    let completion = tokens / 16;
    [
        (ONE_ROW, vec![row(0, 16, tokens - 16)]),
        (
            "eight samples of one prompt",
            (0..8).map(|at| row(at, tokens - 8 * completion, completion)).collect(),
        ),
    ]
}

/// Time and memory of a step.
struct Took {
    seconds: f64,
    work: Work,
    /// Whether activations were kept.
    kept: bool,
}

/// One step, from packed rows to changed parameters. Reading the norm on the host waits for the end of the step.
fn one(model: &mut Sharded, rows: &[TrainRow], budget: usize) -> Result<Took, Failure> {
    let began = Instant::now();
    let packing = pack(rows, budget, 1, &Cost::of(&model.config));
    let batches: Vec<MicroBatch> = packing.ranks[0]
        .iter()
        .map(|pack| model.micro_batch(pack, rows))
        .collect::<Result<_, TrainError>>()?;
    let kept = model.keeps(&batches)?;
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
    Ok(Took {
        seconds: began.elapsed().as_secs_f64(),
        work: packing.work(),
        kept,
    })
}

/// The step's seconds by the arithmetic of `kubectl grpo plan`.
fn estimated(config: &Config, deterministic: bool, work: &Work, schedule: Schedule, gpu: &Gpu) -> f64 {
    let mut facts = Facts::of(geometry(config), ParallelDims::DATA_PARALLEL, 1);
    facts.deterministic = deterministic;
    let work = StepWork {
        tokens: work.tokens,
        pairs: work.pairs,
        trained: work.entries,
    };
    facts.step_time(&work, schedule, gpu).total()
}

/// The estimate for a GPU that this machine does not have.
fn estimate(flags: &Flags, name: &str) -> Result<bool, Failure> {
    let gpu = Gpu::named(name).ok_or_else(|| format!("--estimate: no peaks of a GPU named {name:?} are known"))?;
    println!("No GPU was measured: an estimate for one {name}, by libs/memory/src/step_time.rs");
    for model in Model::value_variants() {
        let config = model.config(flags.layers, flags.tokens)?;
        let config = match model.lora()? {
            Some(lora) => config.with_lora(lora)?,
            None => config,
        };
        for (case, rows) in cases(flags.tokens) {
            let work = pack(&rows, flags.tokens, 1, &Cost::of(&config)).work();
            let seconds = estimated(&config, flags.deterministic, &work, Schedule::Kept, &gpu);
            let speed = work.tokens / seconds;
            println!(
                "  {}, {case}: {seconds:.3} s, {speed:.0} unique tokens a second",
                model.name()
            );
        }
    }
    Ok(true)
}

/// Measures, prints and writes.
pub fn bench(flags: &Flags) -> Result<bool, Failure> {
    if let Some(name) = &flags.estimate {
        return estimate(flags, name);
    }
    device::use_gpu(flags.gpu)?;
    let name = device::gpu_name(flags.gpu)?;
    let compute = Compute {
        device: Device::Cuda(flags.gpu),
        precision: Precision::Bf16,
        deterministic: flags.deterministic,
        offload: Offload {
            activations: flags.keep == Keep::Offloaded,
            ..Offload::default()
        },
    };
    let config = flags.model.config(flags.layers, flags.tokens)?;
    let layers = config.num_hidden_layers;
    let mut model = flags.model.sharded(config, &compute)?;
    if flags.keep != Keep::Activations {
        model.activation_bytes = 0;
    }
    if matches!(flags.keep, Keep::Inputs | Keep::Offloaded) {
        model.attention_bytes = 0;
    }
    let forward = Forward::of(&model.config);
    let mut figures = Vec::new();
    for (case, rows) in cases(flags.tokens) {
        let mut took = one(&mut model, &rows, flags.tokens)?;
        let mut seconds = Vec::new();
        for _ in 0..flags.rounds {
            took = one(&mut model, &rows, flags.tokens)?;
            eprintln!("{case}: {:.3} s", took.seconds);
            seconds.push(took.seconds);
        }
        let step = median(seconds);
        let bits = if flags.deterministic { "deterministic, " } else { "" };
        let activations = match (took.kept, flags.keep) {
            (true, _) => "activations kept",
            (false, Keep::Inputs) => "blocks computed twice",
            (false, Keep::Offloaded) => "blocks computed twice, their inputs in the host's memory",
            (false, _) => "blocks but for attention computed twice",
        };
        let row = |what: &str, value: f64, unit: &str, bar: Option<&str>| {
            let model = flags.model.name();
            let figure = format!("{model}, {layers} layers, on {name}, {bits}{activations}, {case}, {what}");
            // The bar applies to one long row of the whole model, at full speed.
            let whole = flags.layers.is_none() && !flags.deterministic && case == ONE_ROW && took.kept;
            Row::significant(figure, value, unit, bar.filter(|_| whole))
        };
        let tokens = flags.model.tokens_per_second();
        figures.push(row("seconds of a step", step, "s", None));
        figures.push(row(
            "unique tokens a second",
            took.work.tokens / step,
            "tokens/s",
            tokens,
        ));
        if let Some(share) = peak(&compute)?.and_then(|peak| utilisation(forward.training(&took.work), step, peak, 1)) {
            figures.push(row("model FLOPs utilisation", share, "", tokens.map(|_| ">= 0.4")));
        }
        if let Some(gpu) = Gpu::named(&name) {
            let schedule = if took.kept { Schedule::Kept } else { Schedule::Streamed };
            let estimate = estimated(&model.config, flags.deterministic, &took.work, schedule, &gpu);
            let off = (estimate / step - 1.0).abs();
            figures.push(row("share that plan's estimate is off", off, "", Some("<= 0.25")));
        }
    }
    figures.iter().for_each(show);
    let measured = Bench::of_this_machine(&figures).with_versions(&["torch 2.11.0".to_owned()]);
    measured.merged_with(&flags.out).write(&flags.out)?;
    Ok(true)
}
