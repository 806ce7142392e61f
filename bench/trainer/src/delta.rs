//! Deltas of published weights between real optimizer steps: their size, and the time of making and applying them,
//! beside XOR and zstd, the encoding of slime and of Stitch. Writes bench/results/weights-delta.json.
//!
//! The model has Qwen3-0.6B's geometry and normal random weights of a deviation of 0.02. Each step computes gradients
//! of other tokens and updates by AdamW at a rate of 1e-6. After each step the weights are rounded to bf16 as they are
//! published, and both encodings work on the same two buffers, one after the other. No disk is involved.

use std::io::Write;
use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use grpo_bench_report::{Bench, Row};
use grpo_model::weights::Precision;
use grpo_native::{Group, Rendezvous};
use grpo_trainer::TrainError;
use grpo_trainer::initial::initial_weights;
use grpo_trainer::sharded::Sharded;
use grpo_weights_delta::{Encoder, apply};
use zstd::bulk::{Compressor, Decompressor};

use crate::Failure;
use crate::figures::show;
use crate::gpu::one;
use crate::median::median;
use crate::published::{Model, row};

#[derive(Args)]
pub struct Flags {
    #[arg(long, default_value_t = 10)]
    steps: usize,
    /// Tokens of a step.
    #[arg(long, default_value_t = 128)]
    tokens: usize,
    /// Layers of the model; by default all.
    #[arg(long)]
    layers: Option<usize>,
    #[arg(long, default_value = "bench/results/weights-delta.json")]
    out: PathBuf,
}

const PEER: &str = "XOR and zstd -1";

/// Bytes that the peer compresses at a time.
const BLOCK: usize = 4 << 20;

/// Ours, the peer's, and a copy of the file.
#[derive(Default)]
struct Measured {
    /// Shares of the file.
    sizes: Vec<f64>,
    peer_sizes: Vec<f64>,
    /// Seconds.
    making: Vec<f64>,
    peer_making: Vec<f64>,
    applying: Vec<f64>,
    peer_applying: Vec<f64>,
    copying: Vec<f64>,
    exact: usize,
}

pub fn bench(flags: &Flags) -> Result<bool, Failure> {
    let config = Model::Full06B.config(flags.layers, flags.tokens)?;
    let weights = initial_weights(&config, 1);
    let mut model = Sharded::new(config, Group::join(&Rendezvous::alone())?, &weights)?;
    drop(weights);
    let mut old = published(&model)?;
    let mut out = vec![0; old.len()];
    let mut measured = Measured::default();
    for step in 1..=flags.steps {
        one(&mut model, &[row(step, 16, flags.tokens - 16)], flags.tokens)?;
        let new = published(&model)?;
        measured.add(&old, &new, &mut out)?;
        let last = |values: &[f64]| values.last().copied().unwrap_or(f64::NAN);
        eprintln!(
            "step {step}: {:.3} % of {} MB, {PEER}: {:.3} %",
            100.0 * last(&measured.sizes),
            new.len() / 1_000_000,
            100.0 * last(&measured.peer_sizes)
        );
        old = new;
    }
    let rows = measured.rows(old.len());
    rows.iter().for_each(show);
    Bench::of_this_machine(&rows)
        .with_versions(&[
            "torch 2.11.0".to_owned(),
            format!("zstd {}", zstd::zstd_safe::version_string()),
        ])
        .write(&flags.out)?;
    Ok(rows.iter().all(Row::meets_its_bar))
}

/// The tensors' bytes as they are published by a trainer that computes in bf16.
fn published(model: &Sharded) -> Result<Vec<u8>, TrainError> {
    let mut bytes = Vec::new();
    model.each_published(false, "comparing weights", |_, _, values| {
        bytes.extend(Precision::Bf16.encoded(values));
        Ok(())
    })?;
    Ok(bytes)
}

/// The result and the seconds of a call.
fn timed<T>(call: impl FnOnce() -> Result<T, Failure>) -> Result<(T, f64), Failure> {
    let began = Instant::now();
    let result = call()?;
    Ok((result, began.elapsed().as_secs_f64()))
}

impl Measured {
    fn add(&mut self, old: &[u8], new: &[u8], out: &mut [u8]) -> Result<(), Failure> {
        let (delta, making) = timed(|| {
            let (mut encoder, mut delta) = (Encoder::new()?, Vec::new());
            encoder.begin(&mut delta);
            encoder.add(old, new, &mut delta)?;
            encoder.end(&mut delta);
            Ok(delta)
        })?;
        let (blocks, peer_making) = timed(|| xor(old, new))?;
        let ((), copying) = timed(|| {
            out.copy_from_slice(std::hint::black_box(old));
            Ok(())
        })?;
        let ((), peer_applying) = timed(|| unxor(old, &blocks, out))?;
        if out != new {
            return Err("XOR and zstd made another file".into());
        }
        out.fill(0);
        let ((), applying) = timed(|| {
            apply(old, &delta[..], Place(out))?;
            Ok(())
        })?;
        self.exact += usize::from(out == new);
        let share = |bytes: usize| bytes as f64 / new.len() as f64;
        self.sizes.push(share(delta.len()));
        self.peer_sizes.push(share(blocks.iter().map(Vec::len).sum()));
        for (all, seconds) in [
            (&mut self.making, making),
            (&mut self.peer_making, peer_making),
            (&mut self.applying, applying),
            (&mut self.peer_applying, peer_applying),
            (&mut self.copying, copying),
        ] {
            all.push(seconds);
        }
        Ok(())
    }

    fn rows(self, bytes: usize) -> Vec<Row> {
        let largest = |sizes: &[f64]| sizes.iter().copied().fold(0.0, f64::max);
        let (size, peer_size) = (largest(&self.sizes), largest(&self.peer_sizes));
        let (steps, exact) = (self.sizes.len(), self.exact);
        let speed = |seconds: Vec<f64>| bytes as f64 / 1e9 / median(seconds);
        let (copy, apply, peer_apply) = (speed(self.copying), speed(self.applying), speed(self.peer_applying));
        let of = |what: &str| format!("3: delta between steps of AdamW at 1e-6, Qwen3-0.6B's geometry in bf16, {what}");
        vec![
            Row::significant(
                of(&format!("largest of steps 1 to {steps}, share of the weights")),
                size,
                "",
                Some("<= 0.03"),
            )
            .beside(PEER, peer_size),
            Row::significant(of("making it"), speed(self.making), "GB/s of weights", None)
                .beside(PEER, speed(self.peer_making)),
            Row::significant(of("applying it"), apply, "GB/s of weights", None).beside(PEER, peer_apply),
            Row::significant(of("applying it / memcpy"), apply / copy, "x", Some(">= 0.5"))
                .beside(PEER, peer_apply / copy),
            Row::new(
                of("steps whose file is not made bit by bit"),
                Some((steps - exact) as f64),
                "",
                Some("<= 0"),
            ),
        ]
    }
}

/// The new file, in memory that is there.
struct Place<'a>(&'a mut [u8]);

impl Write for Place<'_> {
    fn write(&mut self, piece: &[u8]) -> std::io::Result<usize> {
        self.0.write(piece)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// The exclusive or of both files, compressed block by block.
fn xor(old: &[u8], new: &[u8]) -> Result<Vec<Vec<u8>>, Failure> {
    let mut compressor = Compressor::new(1)?;
    let mut mixed = vec![0; BLOCK];
    let blocks = old.chunks(BLOCK).zip(new.chunks(BLOCK));
    blocks
        .map(|(old, new)| {
            let mixed = &mut mixed[..old.len()];
            for (mixed, (old, new)) in mixed.iter_mut().zip(old.iter().zip(new)) {
                *mixed = old ^ new;
            }
            Ok(compressor.compress(mixed)?)
        })
        .collect()
}

/// Makes the new file of the old one and [`xor`]'s blocks.
fn unxor(old: &[u8], blocks: &[Vec<u8>], out: &mut [u8]) -> Result<(), Failure> {
    let mut decompressor = Decompressor::new()?;
    let mut mixed = vec![0; BLOCK];
    for ((old, out), block) in old.chunks(BLOCK).zip(out.chunks_mut(BLOCK)).zip(blocks) {
        let length = decompressor.decompress_to_buffer(block, &mut mixed[..old.len()])?;
        for (out, (old, mixed)) in out.iter_mut().zip(old.iter().zip(&mixed[..length])) {
            *out = old ^ mixed;
        }
    }
    Ok(())
}
