//! Launches as the GPU's own counters report them, beside those that [`crate::count`] finds without a GPU.

use std::collections::BTreeMap;
use std::time::Duration;

use grpo_bench_report::Row;
use grpo_native::linear::backward;
use grpo_native::profiler::{GpuWork, profiled};
use tch::{Device, Kind, Tensor};

use super::{Flags, one, sharded};
use crate::Failure;
use crate::count::{Counts, FirstBlock, Nowhere, Place};
use crate::published::{Model, cases};

/// Random numbers on a GPU.
struct OnGpu(usize);

impl Place for OnGpu {
    fn tensor(&self, size: &[i64], kind: Kind) -> Result<Tensor, Failure> {
        let numbers = Tensor::randn(size, (Kind::Float, Device::Cuda(self.0))) * 0.02;
        Ok(numbers.to_kind(kind))
    }

    fn placed(&self, tensor: &Tensor) -> Result<Tensor, Failure> {
        Ok(tensor.to_device(Device::Cuda(self.0)))
    }
}

/// Profiles a block forward and backward, and a complete step; prints each kernel's number and time.
pub fn launches(flags: &Flags, gpu: &str) -> Result<Vec<Row>, Failure> {
    let mut figures = Vec::new();
    for (case, rows) in cases(flags.tokens) {
        let config = flags.model.trained(flags.layers, flags.tokens)?;
        let expected = FirstBlock::of(config.clone(), &rows, flags.tokens, &Nowhere)?.operations()?;
        let block = FirstBlock::of(config, &rows, flags.tokens, &OnGpu(flags.gpu))?;
        // Compiles kernels, and makes plans and the tokens' angles.
        let above = block.forward();
        backward(&above, &above.detach())?;
        let (forward, y) = profiled(|| block.forward())?;
        let (back, done) = profiled(|| backward(&y, &y.detach()))?;
        done?;
        for (pass, found, counted) in [
            ("forward", forward, &expected.forward),
            ("backward", back, &expected.backward),
        ] {
            let what = format!("a block of {}, {case}, {pass}", flags.model.name());
            print_all(&what, &found);
            let bar = match (flags.model, pass) {
                (Model::LoraMixture, "forward") => Some("<= 60"),
                (Model::Full06B, "forward") => Some("<= 25"),
                (Model::Full06B, _) => Some("<= 45"),
                _ => None,
            };
            println!("  counted without a GPU: {}", Counts::of(counted).launches);
            let kernels = found.iter().filter(|work| work.is_kernel()).count();
            let row = |of: &str, value: usize, bar: Option<&str>| {
                Row::significant(format!("{what}, on {gpu}, {of}"), value as f64, "", bar)
            };
            figures.push(row("kernels", kernels, bar));
            figures.push(row("fills and copies", found.len() - kernels, None));
        }
    }
    step(flags)?;
    Ok(figures)
}

/// The work of a complete step.
fn step(flags: &Flags) -> Result<(), Failure> {
    let config = flags.model.config(flags.layers, flags.tokens)?;
    let mut model = sharded(flags.model, config, &flags.compute())?;
    for (case, rows) in cases(flags.tokens) {
        one(&mut model, &rows, flags.tokens)?;
        let (found, took) = profiled(|| one(&mut model, &rows, flags.tokens))?;
        print_all(&format!("a step of {}, {case}", flags.model.name()), &found);
        println!("  of {:.3} s by the host's clock", took?.seconds);
    }
    Ok(())
}

/// The time in which the GPU had nothing to do, and the longest pauses with the work before and after them.
fn print_pauses(found: &[GpuWork]) {
    let mut done = Duration::ZERO;
    let mut before = "";
    let mut pauses: Vec<(Duration, &str, &str)> = Vec::new();
    for work in found {
        if done > Duration::ZERO && work.begin > done {
            pauses.push((work.begin - done, before, &work.name));
        }
        if work.begin + work.took > done {
            (done, before) = (work.begin + work.took, &work.name);
        }
    }
    let all: Duration = pauses.iter().map(|(pause, _, _)| *pause).sum();
    println!(
        "  idle for {:.3} ms in {} pauses",
        all.as_secs_f64() * 1e3,
        pauses.len()
    );
    pauses.sort_by_key(|(pause, _, _)| std::cmp::Reverse(*pause));
    for (pause, before, after) in pauses.into_iter().take(6) {
        let short = |name: &str| name.chars().take(50).collect::<String>();
        println!(
            "    {:9.3} ms after {} before {}",
            pause.as_secs_f64() * 1e3,
            short(before),
            short(after)
        );
    }
}

/// Each name's number and time, the longest first.
fn print_all(what: &str, found: &[GpuWork]) {
    let mut by_name: BTreeMap<&str, (u64, Duration)> = BTreeMap::new();
    for work in found {
        let (count, took) = by_name.entry(&work.name).or_default();
        *count += 1;
        *took += work.took;
    }
    let kernels = found.iter().filter(|work| work.is_kernel()).count();
    let busy: Duration = found.iter().map(|work| work.took).sum();
    println!(
        "{what}: {kernels} kernels, {} copies and fills, {:.3} ms of work",
        found.len() - kernels,
        busy.as_secs_f64() * 1e3
    );
    print_pauses(found);
    let mut sorted: Vec<_> = by_name.into_iter().collect();
    sorted.sort_by_key(|(_, (_, took))| std::cmp::Reverse(*took));
    for (name, (count, took)) in sorted {
        let short: String = name.chars().take(110).collect();
        println!("  {count:4} {:9.3} ms  {short}", took.as_secs_f64() * 1e3);
    }
}
