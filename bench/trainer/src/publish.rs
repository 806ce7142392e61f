//! Time and memory of publishing a version of Qwen3-0.6B's geometry, beside `cp` of the same bytes, both durable.
//! Writes bench/results/publish.json.
//!
//! The values are random, and their publication does not depend on them. From the second version on, each has a delta
//! from the one before.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;
use grpo_bench_report::{Bench, Row};
use grpo_native::{Group, Rendezvous};
use grpo_records::paths;
use grpo_trainer::canary::canary;
use grpo_trainer::compute::{Compute, Precision};
use grpo_trainer::initial::initial_weights;
use grpo_trainer::sharded::Sharded;
use grpo_trainer::state::{Form, TrainerStore};

use crate::Failure;
use crate::figures::show;
use crate::median::median;
use crate::published::Model;
use crate::step::memory;

#[derive(Args)]
pub struct Flags {
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Layers of the model; by default all.
    #[arg(long)]
    layers: Option<usize>,
    /// On the disk that is measured; it must exist.
    #[arg(long, default_value = "/var/tmp")]
    folder: PathBuf,
    #[arg(long, default_value = "bench/results/publish.json")]
    out: PathBuf,
}

const MIB: f64 = (1 << 20) as f64;

pub fn bench(flags: &Flags) -> Result<bool, Failure> {
    let folder = tempfile::tempdir_in(&flags.folder)?;
    let config = Model::Full06B.config(flags.layers, 1024)?;
    let weights = initial_weights(&config, 1);
    let model = Sharded::new(config, Group::join(&Rendezvous::alone())?, &weights)?;
    drop(weights);
    let model = model.compute_as(Compute {
        precision: Precision::Bf16,
        ..Compute::default()
    });
    let units = model.shards.iter().map(|shard| 4 * shard.unit.numel());
    let most = format!("<= {}", (units.max().unwrap_or_default() >> 20) + 64);
    let version: usize = model.shards.iter().map(|shard| 2 * shard.unit.numel()).sum();
    let store = TrainerStore::existing(folder.path())?;
    let (mut published, mut copied, mut beside) = (Vec::new(), Vec::new(), Vec::new());
    for step in 0..=flags.rounds as u32 {
        fill_page_cache(folder.path(), 3 * version)?;
        let before = forget_peak()?;
        let began = Instant::now();
        let file = publish(&store, &model, folder.path(), step)?;
        let seconds = began.elapsed().as_secs_f64();
        let peak = memory("VmHWM:").saturating_sub(before) as f64 / MIB;
        let (file, copy) = (folder.path().join(file), folder.path().join("copy"));
        fill_page_cache(folder.path(), 3 * version)?;
        let began = Instant::now();
        fs::copy(&file, &copy)?;
        File::open(&copy)?.sync_all()?;
        let copying = began.elapsed().as_secs_f64();
        fs::remove_file(copy)?;
        eprintln!("version {step}: published in {seconds:.2} s, {peak:.0} MiB more memory; cp {copying:.2} s");
        // The first one has no delta, and finds no file in the page cache.
        if step > 0 {
            published.push(seconds);
            copied.push(copying);
            beside.push(peak);
        }
        store.prune_versions()?;
    }
    let of = |what: &str| format!("21.3: a version of Qwen3-0.6B's geometry in bf16, published with a delta, {what}");
    let (publishing, copying) = (median(published), median(copied));
    let rows = [
        Row::significant(
            of("time / cp of the same bytes, both fsynced"),
            publishing / copying,
            "x",
            Some("<= 2"),
        ),
        Row::significant(of("seconds"), publishing, "s", None).beside("cp", copying),
        // One rank on a CPU copies no unit: what is left are pieces.
        Row::significant(of("peak memory above the state"), median(beside), "MiB", Some(&most)),
    ];
    rows.iter().for_each(show);
    Bench::of_this_machine(&rows)
        .with_versions(&["torch 2.11.0".to_owned()])
        .write(&flags.out)?;
    Ok(rows.iter().all(Row::meets_its_bar))
}

/// Writes so many bytes, and removes them: what is written next uses their pages. A virtual machine gets pages from its
/// host when it first writes to them, four times as slowly, and gives them back when they are free for a while. Without
/// this, publications pay for pages that the copies after them use again.
fn fill_page_cache(folder: &Path, bytes: usize) -> Result<(), Failure> {
    let path = folder.join("pages");
    let mut file = File::create(&path)?;
    io::copy(&mut io::repeat(0).take(bytes as u64), &mut file)?;
    file.sync_all()?;
    Ok(fs::remove_file(path)?)
}

/// Publishes a version as rank 0 does; the path of its file with tensors.
fn publish(store: &TrainerStore, model: &Sharded, folder: &Path, step: u32) -> Result<String, Failure> {
    let (tensors, precision) = (model.published_tensors(false), model.published_precision(false));
    let parent = step.checked_sub(1).map(|parent| paths::weights_version("l1", parent));
    let mut publication = store.begin_version(Form::Model(folder), &tensors, precision, "l1", step, parent)?;
    publication.canary(canary(model)?);
    model.each_published(false, "publishing weights", |name, shape, values| {
        publication.tensor(name, shape, values)
    })?;
    let (manifest, _) = publication.finish()?;
    if manifest.deltas.len() != step.min(1) as usize {
        return Err(format!("{} has these deltas: {:?}", manifest.version, manifest.deltas).into());
    }
    Ok(paths::weights_file(&manifest.version, &manifest.files[0].name))
}

/// Has the peak begin at the present memory; its bytes.
fn forget_peak() -> Result<u64, Failure> {
    fs::write("/proc/self/clear_refs", "5")?;
    Ok(memory("VmRSS:"))
}
