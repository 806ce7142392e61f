//! Steps of published geometries on a GPU, in bf16: seconds per step, tokens per second and the share of the GPU's
//! peak. One warm-up step, then medians.
//!
//! Two cases: one row of many tokens, and a group whose samples share their prompt. Weights come from one short table
//! of random numbers: the computation does not depend on their values, and drawing 8 billion would take longer than
//! training.

mod launches;

use std::ops::Range;
use std::path::PathBuf;
use std::time::Instant;

use clap::{Args, ValueEnum};
use grpo_bench_report::{Bench, Row};
use grpo_crds::grpo_run::Offload;
use grpo_memory::{Facts, Gpu, ParallelDims, Schedule, StepWork};
use grpo_model::Config;
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
use crate::published::{Model, ONE_ROW, cases};

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

/// State in the host's memory.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Aside {
    Optimizer,
    Parameters,
}

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
    /// State that stays in the host's memory: see `trainer.offload`.
    #[arg(long, value_enum, value_delimiter = ',')]
    offload: Vec<Aside>,
    /// Print the estimates of `kubectl grpo plan` for all geometries on a GPU of this name, such as H200, and measure
    /// nothing.
    #[arg(long)]
    estimate: Option<String>,
    /// Count the launches of a block and of a step by the GPU's profiler, in place of timing steps.
    #[arg(long)]
    launches: bool,
    #[arg(long, default_value = "bench/results/trainer-gpu.json")]
    out: PathBuf,
}

impl Flags {
    fn compute(&self) -> Compute {
        Compute {
            device: Device::Cuda(self.gpu),
            precision: Precision::Bf16,
            deterministic: self.deterministic,
            offload: Offload {
                activations: self.keep == Keep::Offloaded,
                optimizer: self.offload.contains(&Aside::Optimizer),
                parameters: self.offload.contains(&Aside::Parameters),
            },
        }
    }
}

/// The model with numbers of [`table`].
fn sharded(model: Model, config: Config, compute: &Compute) -> Result<Sharded, Failure> {
    let group = Group::join(&Rendezvous::alone())?;
    let table = table();
    Ok(match model.lora()? {
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

/// Time and memory of a step.
pub struct Took {
    seconds: f64,
    work: Work,
    /// Whether activations were kept.
    kept: bool,
    /// The estimate of its memory in bytes.
    estimated: usize,
}

const GIB: f64 = (1u64 << 30) as f64;

/// One step, from packed rows to changed parameters. Reading the norm on the host waits for the end of the step.
pub fn one(model: &mut Sharded, rows: &[TrainRow], budget: usize) -> Result<Took, Failure> {
    let began = Instant::now();
    let packing = pack(rows, budget, 1, &Cost::of(&model.config));
    let batches: Vec<MicroBatch> = packing.ranks[0]
        .iter()
        .map(|pack| model.micro_batch(pack, rows))
        .collect::<Result<_, TrainError>>()?;
    let kept = model.keeps(&batches)?;
    let estimated = model.estimated_bytes(&batches, kept);
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
        estimated,
    })
}

/// The step's seconds by the arithmetic of `kubectl grpo plan`.
fn estimated(config: &Config, deterministic: bool, work: &Work, schedule: Schedule, attended: usize, gpu: &Gpu) -> f64 {
    let mut facts = Facts::of(geometry(config), ParallelDims::DATA_PARALLEL, 1);
    facts.deterministic = deterministic;
    let work = StepWork {
        tokens: work.tokens,
        pairs: work.pairs,
        trained: work.entries,
    };
    facts.step_time(&work, schedule, attended as u64, gpu).total()
}

/// The estimate for a GPU that this machine does not have.
fn estimate(flags: &Flags, name: &str) -> Result<bool, Failure> {
    let gpu = Gpu::named(name).ok_or_else(|| format!("--estimate: no peaks of a GPU named {name:?} are known"))?;
    println!("No GPU was measured: an estimate for one {name}, by libs/memory/src/step_time.rs");
    for model in Model::value_variants() {
        let config = model.trained(flags.layers, flags.tokens)?;
        for (case, rows) in cases(flags.tokens) {
            let work = pack(&rows, flags.tokens, 1, &Cost::of(&config)).work();
            let seconds = estimated(&config, flags.deterministic, &work, Schedule::Kept, 0, &gpu);
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
    let compute = flags.compute();
    if flags.launches {
        let figures = launches::launches(flags, &name)?;
        return written(&figures, flags);
    }
    let config = flags.model.config(flags.layers, flags.tokens)?;
    let layers = config.num_hidden_layers;
    let mut model = sharded(flags.model, config, &compute)?;
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
        device::gpu_peak(flags.gpu)?;
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
        let aside = match (
            flags.offload.contains(&Aside::Optimizer),
            flags.offload.contains(&Aside::Parameters),
        ) {
            (false, false) => "",
            (true, false) => ", moments in the host's memory",
            (false, true) => ", parameters in the host's memory",
            (true, true) => ", all state in the host's memory",
        };
        let row = |what: &str, value: f64, unit: &str, bar: Option<&str>| {
            let model = flags.model.name();
            let figure = format!("{model}, {layers} layers, on {name}, {bits}{activations}{aside}, {case}, {what}");
            // The bar applies to one long row of the whole model, at full speed.
            let whole = flags.layers.is_none()
                && flags.offload.is_empty()
                && !flags.deterministic
                && case == ONE_ROW
                && took.kept;
            Row::significant(figure, value, unit, bar.filter(|_| whole))
        };
        let peak_bytes = device::gpu_peak(flags.gpu)?;
        let memory = took.estimated as f64 / peak_bytes as f64;
        figures.push(row("peak memory of tensors", peak_bytes as f64 / GIB, "GiB", None));
        figures.push(row("estimate of its memory, as a share of the peak", memory, "", None));
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
            // The memory of a GPU of this size has room for all of them.
            let attends_once = !took.kept && !matches!(flags.keep, Keep::Inputs | Keep::Offloaded);
            let attended = if attends_once { layers } else { 0 };
            let estimate = estimated(&model.config, flags.deterministic, &took.work, schedule, attended, &gpu);
            let off = (estimate / step - 1.0).abs();
            figures.push(row("share that plan's estimate is off", off, "", Some("<= 0.25")));
        }
    }
    written(&figures, flags)
}

/// Prints figures, and adds them to the file.
fn written(figures: &[Row], flags: &Flags) -> Result<bool, Failure> {
    figures.iter().for_each(show);
    let measured = Bench::of_this_machine(figures).with_versions(&["torch 2.11.0".to_owned()]);
    measured.merged_with(&flags.out).write(&flags.out)?;
    Ok(true)
}
