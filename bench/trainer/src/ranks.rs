//! Our step over several ranks, each a process of its own: `grpo-bench-trainer rank`.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use clap::Args;
use grpo_memory::{Estimate, Facts, Load, ParallelDims, Schedule};
use grpo_model::Config;
use grpo_model::weights;
use grpo_native::{Group, Rendezvous};
use grpo_trainer::TrainError;
use grpo_trainer::loss_fn::LossGrad;
use grpo_trainer::memory;
use grpo_trainer::mesh::{self, Mesh};
use grpo_trainer::micro_batch::MicroBatch;
use grpo_trainer::optimizer::AdamW;
use grpo_trainer::packing::{Cost, pack};
use grpo_trainer::sharded::Sharded;
use grpo_trainer::train_row::TrainRow;
use serde::{Deserialize, Serialize};
use tch::{Kind, Tensor};

use crate::Failure;
use crate::step::{read_rows, shortened};

/// How the ranks step.
#[derive(Args, Clone, Debug)]
pub struct How {
    #[arg(long, default_value_t = 1)]
    pub world: u32,
    /// Ranks that share a sequence.
    #[arg(long, default_value_t = 1)]
    pub sequence: u32,
    /// Ranks that share the state.
    #[arg(long)]
    pub node: Option<u32>,
    /// Compute in double precision.
    #[arg(long)]
    pub double: bool,
    /// Mebibytes of activations that may be kept.
    #[arg(long, default_value_t = 2048)]
    pub keep: usize,
    /// Unique tokens of one micro-batch.
    #[arg(long, default_value_t = 4096)]
    pub budget: usize,
    /// Steps that are timed; one more goes before them.
    #[arg(long, default_value_t = 1)]
    pub steps: usize,
    /// Gather from a copy, reduce nothing: see `Sharded::without_collectives`.
    #[arg(long)]
    pub without_collectives: bool,
    /// Count the bytes of tensors.
    #[arg(long)]
    pub memory: bool,
    /// How many times as many rows: the folder's, each copy with other tokens, so that copies share nothing.
    #[arg(long, default_value_t = 1)]
    pub copies: usize,
    /// Micro-batches go through the blocks in waves whose inputs are those of so many copies.
    #[arg(long)]
    pub wave_copies: Option<usize>,
    /// Rank 0 writes the gradients of the folder's weights there, and no step is taken.
    #[arg(long)]
    pub gradients: Option<PathBuf>,
}

impl How {
    fn arguments(&self) -> Vec<String> {
        let mut words = Vec::new();
        let mut put = |name: &str, value: String| words.extend([format!("--{name}"), value]);
        put("world", self.world.to_string());
        put("sequence", self.sequence.to_string());
        put("keep", self.keep.to_string());
        put("budget", self.budget.to_string());
        put("steps", self.steps.to_string());
        put("copies", self.copies.to_string());
        if let Some(copies) = self.wave_copies {
            put("wave-copies", copies.to_string());
        }
        if let Some(node) = self.node {
            put("node", node.to_string());
        }
        if let Some(path) = &self.gradients {
            put("gradients", path.display().to_string());
        }
        words.extend(self.memory.then(|| "--memory".to_owned()));
        words.extend(self.double.then(|| "--double".to_owned()));
        words.extend(self.without_collectives.then(|| "--without-collectives".to_owned()));
        words
    }
}

/// The report of a rank.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Said {
    /// Seconds of each timed step: loss, gradients and update.
    pub seconds: Vec<f64>,
    /// The loss of all ranks' micro-batches.
    pub loss: f64,
    /// Peak bytes of tensors, counted and estimated.
    pub peak_bytes: u64,
    pub estimated_bytes: u64,
    /// The estimate of each part.
    pub estimate: String,
}

/// Runs all ranks, and returns their reports.
pub fn run(folder: &Path, how: &How) -> Result<Vec<Said>, Failure> {
    let port = grpo_free_port::free_port().ok_or("no port of this machine is free")?;
    let port = port.to_string();
    let start = |rank: u32| {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("rank").arg(folder).args(how.arguments());
        command.env("RANK", rank.to_string()).env("MASTER_PORT", &port);
        command.stdout(Stdio::piped()).spawn()
    };
    let mut started: Vec<Child> = (0..how.world).map(start).collect::<Result<_, _>>()?;
    let mut said = Vec::new();
    for (rank, process) in started.iter_mut().enumerate() {
        let mut text = String::new();
        if let Some(out) = &mut process.stdout {
            out.read_to_string(&mut text)?;
        }
        let status = process.wait()?;
        if !status.success() {
            return Err(format!("rank {rank} of {how:?}: {status}").into());
        }
        said.push(serde_json::from_str(text.lines().last().unwrap_or_default())?);
    }
    Ok(said)
}

/// Runs the rank that the environment names.
pub fn rank(folder: &Path, how: &How) -> Result<Said, Failure> {
    let number = |name: &str| Ok::<_, Failure>(std::env::var(name)?.parse::<u16>()?);
    tch::set_num_threads(1);
    if how.memory {
        grpo_native::memory::count();
    }
    let local = "127.0.0.1".to_owned();
    let group = Group::join(&Rendezvous {
        rank: number("RANK")?.into(),
        world: how.world,
        address: local.clone(),
        port: number("MASTER_PORT")?,
        own_host: local,
        interface: String::new(),
        timeout: Duration::from_secs(120),
    })?;
    let config = Config::read(folder)?;
    let dims = ParallelDims {
        sequence: how.sequence,
        shard: how.node,
    };
    mesh::check(&dims, &config, how.world)?;
    let mut model = Sharded::new(
        config.clone(),
        Mesh::new(group, dims)?,
        &weights::read(folder, &config)?,
    )?;
    if how.double {
        model = model.in_kind(Kind::Double);
    }
    if how.without_collectives {
        model = model.without_collectives()?;
    }
    model.activation_bytes = how.keep << 20;
    let rows = read_rows(folder)?;
    if let Some(copies) = how.wave_copies {
        let wave = copied(&rows, copies, &model.config);
        model.input_bytes = model.input_bytes_of(&micro_batches(&model, &wave, how.budget)?);
    }
    let rows = copied(&rows, how.copies, &model.config);
    let mut said = Said::default();
    if let Some(path) = &how.gradients {
        let (gradients, loss) = gradients(&model, &rows, how.budget)?;
        said.loss = model.sum(&[loss])?[0];
        write(&model, &gradients, path)?;
    } else {
        let warm: Vec<TrainRow> = rows.iter().map(|row| shortened(row, 40)).collect();
        step(&mut model, &warm, how.budget)?;
        grpo_native::memory::reset_peak();
        for _ in 0..how.steps {
            model.group.barrier()?;
            let began = Instant::now();
            said.loss = step(&mut model, &rows, how.budget)?;
            said.seconds.push(began.elapsed().as_secs_f64());
        }
        if how.memory {
            said.peak_bytes = grpo_native::memory::peak();
            let estimate = estimate(&model, dims, &rows, how)?;
            (said.estimated_bytes, said.estimate) = (estimate.total(), estimate.to_string());
        }
    }
    // A rank that exits first breaks the connections of the others.
    model.group.barrier()?;
    Ok(said)
}

/// The rows so many times, with other tokens in each copy: equal ones would be computed once.
fn copied(rows: &[TrainRow], copies: usize, config: &Config) -> Vec<TrainRow> {
    let vocabulary = config.vocab_size as u32;
    let shifted = |copy: usize| {
        rows.iter().cloned().map(move |mut row| {
            for token in &mut row.tokens {
                *token = (*token + copy as u32) % vocabulary;
            }
            row.sequence += copy * rows.len();
            row
        })
    };
    (0..copies).flat_map(shifted).collect()
}

/// This rank's micro-batches of these rows.
fn micro_batches(model: &Sharded, rows: &[TrainRow], budget: usize) -> Result<Vec<MicroBatch>, TrainError> {
    let (groups, own) = model.data_parallel();
    let packing = pack(rows, budget, groups, &Cost::of(&model.config));
    packing.ranks[own]
        .iter()
        .map(|pack| model.micro_batch(pack, rows))
        .collect()
}

/// The estimated memory of the step.
fn estimate(model: &Sharded, dims: ParallelDims, rows: &[TrainRow], how: &How) -> Result<Estimate, Failure> {
    let batches = micro_batches(model, rows, how.budget)?;
    let load = Load {
        tokens: batches.iter().map(|batch| batch.tokens() as u64).collect(),
        trained: batches
            .iter()
            .map(|batch| batch.positions.numel() as u64)
            .max()
            .unwrap_or(0),
    };
    let schedule = if how.keep == 0 {
        Schedule::Streamed
    } else {
        Schedule::Kept
    };
    let geometry = memory::geometry(&model.config);
    Ok(Facts::of(geometry, dims, how.world).estimate(&load, schedule))
}

fn step(model: &mut Sharded, rows: &[TrainRow], budget: usize) -> Result<f64, Failure> {
    let (gradients, loss) = gradients(model, rows, budget)?;
    let adam = AdamW {
        betas: [0.9, 0.999],
        epsilon: 1e-8,
        weight_decay: 0.0,
        clip: 1.0,
    };
    model.update(&gradients, 1e-6, &adam)?;
    Ok(model.sum(&[loss])?[0])
}

/// Gradients of the policy loss, summed over tokens, from the rows to this rank's parts.
fn gradients(model: &Sharded, rows: &[TrainRow], budget: usize) -> Result<(Vec<Tensor>, f64), Failure> {
    let batches = micro_batches(model, rows, budget)?;
    Ok(model.gradients(&batches, &mut |batch, logprobs, _| {
        let of = |(row, token): &(usize, usize)| -rows[*row].advantage * f64::from(rows[*row].weights[*token]);
        let weights: Vec<f64> = batch.trained.iter().map(of).collect();
        LossGrad::weighted(weights, logprobs)
    })?)
}

/// Writes name, shape and values of every whole gradient in double precision as JSON lines. A header and little-endian
/// bytes would be smaller, but these models are tiny.
fn write(model: &Sharded, gradients: &[Tensor], path: &Path) -> Result<(), Failure> {
    let mut named: Vec<(String, Vec<f64>)> = Vec::new();
    for (shard, gradient) in model.shards.iter().zip(gradients) {
        let whole = model.shard_group().all_gather(gradient)?;
        let mut begin = 0;
        for (name, shape) in &shard.unit.tensors {
            let n = shape.iter().product::<usize>() as i64;
            named.push((
                name.clone(),
                Vec::<f64>::try_from(whole.narrow(0, begin, n).to_kind(Kind::Double))?,
            ));
            begin += n;
        }
    }
    if model.group.rank() == 0 {
        std::fs::write(path, serde_json::to_vec(&named)?)?;
    }
    Ok(())
}

/// |a - b| / |b| of each tensor, by name.
pub fn distances(ours: &Path, theirs: &Path) -> Result<Vec<(String, f64)>, Failure> {
    let read = |path: &Path| -> Result<Vec<(String, Vec<f64>)>, Failure> {
        Ok(serde_json::from_slice(&std::fs::read(path)?)?)
    };
    let (ours, theirs) = (read(ours)?, read(theirs)?);
    if ours.len() != theirs.len() {
        return Err("they have not the same tensors".into());
    }
    let pairs = ours.into_iter().zip(theirs);
    Ok(pairs
        .map(|((name, a), (_, b))| {
            let apart: f64 = a.iter().zip(&b).map(|(a, b)| (a - b).powi(2)).sum();
            let size: f64 = b.iter().map(|b| b * b).sum();
            // Both are zero for an expert without tokens.
            (name, (apart / size.max(1e-300)).sqrt())
        })
        .collect())
}
