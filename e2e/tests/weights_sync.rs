//! How long a version takes to many replicas, over links of one rate: `make bench-sync` writes
//! bench/results/weights-sync.json.
//!
//! Each replica is a network namespace with an engine agent as a process; the driver's own server is the source. Every
//! end of every link sends at most [`RATE`]. The agents pull to memory-backed folders, as they do while episodes run.
//! The switch to the pulled version comes after it: episodes wait for that. Engines are simulated and load in no
//! time, so a switch is all that our processes add to an engine's load. Needs root, and a network namespace of its own.

mod links;
mod replicas;
mod source;

use crate::support::{Result, repository};
use grpo_auth::LocalIssuer;
use grpo_bench_report::{Bench, Row};
use links::{BYTES_A_SECOND, Links, RATE, REPLICAS};
use replicas::Replicas;
use source::{BYTES, CHANGED, Way, order_of, source};

/// Memory-backed.
const FOLDER: &str = "/dev/shm";

/// Measured of one way.
#[derive(Default)]
struct Took {
    /// Until the last replica has the version on disk, and then until the last one serves it.
    pulling: Vec<f64>,
    switching: Vec<f64>,
    /// Bytes from the source, in copies of the version.
    copies: Vec<f64>,
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root and a network namespace of its own: make bench-sync"]
async fn a_version_comes_to_four_replicas_in_the_time_of_one_copy() -> Result<()> {
    let links = Links::make()?;
    let work = tempfile::tempdir_in(FOLDER)?;
    let issuer = LocalIssuer::new()?;
    let (source, versions) = source(work.path()).await?;
    let replicas = Replicas::start(&links, work.path(), &issuer).await?;
    let mut took = [Took::default(), Took::default(), Took::default()];
    for (way, version) in versions {
        let order = order_of(&source, work.path(), &version)?;
        let before = replicas.sent_by_source().await?;
        let cores = Cores::now()?;
        let pulling = replicas.pull(&order, way != Way::Apart).await?;
        let busy = cores.busy_since()?;
        let copies = (replicas.sent_by_source().await? - before) / BYTES as f64;
        let switching = replicas.switch(&order).await?;
        println!(
            "{version}, {way:?}: {pulling:.2} s, cores busy {:.0} %, {copies:.3} copies from the source, switch in \
             {switching:.3} s",
            100.0 * busy
        );
        let took = &mut took[way as usize];
        took.pulling.push(pulling);
        took.switching.push(switching);
        took.copies.push(copies);
    }
    let one = BYTES as f64 / BYTES_A_SECOND;
    let figure = format!(
        "2: {:.2} GB to {REPLICAS} replicas over links of {RATE}",
        BYTES as f64 / 1e9
    );
    let [mut apart, mut relayed, mut delta] = took;
    let beside = "each replica from the source";
    let (alone, wall) = (median(&mut apart.pulling), median(&mut delta.pulling));
    let rows = [
        Row::new(
            format!("{figure}, chunks passed on: time / (bytes / link)"),
            Some(median(&mut relayed.pulling) / one),
            "x",
            Some("<= 1.15"),
        )
        .beside(beside, alone / one),
        Row::new(
            format!("{figure}, chunks passed on: bytes from the source / one copy"),
            Some(median(&mut relayed.copies)),
            "x",
            Some("<= 1.3"),
        )
        .beside(beside, REPLICAS as f64),
        Row::new(
            format!("{figure}, as a delta of {CHANGED} of 1,000 values: until the last one has it on disk"),
            Some(wall),
            "s",
            None,
        )
        .beside(beside, alone),
        Row::new(
            format!("{figure}, as a delta of {CHANGED} of 1,000 values: bytes from the source / one copy"),
            Some(median(&mut delta.copies)),
            "x",
            None,
        )
        .beside(beside, REPLICAS as f64),
        Row::new(
            format!("{figure}, as a delta: episodes' pause beyond the engine's load"),
            Some(median(&mut delta.switching)),
            "s",
            Some("<= 0.2"),
        )
        .beside(beside, median(&mut apart.switching)),
    ];
    for row in &rows {
        println!("{}", serde_json::to_string(row)?);
    }
    Bench::of_this_machine(&rows).write(&repository().join("bench/results/weights-sync.json"))?;
    assert!(rows.iter().all(Row::meets_its_bar), "{rows:#?}");
    Ok(())
}

/// Time of this machine's cores so far: idle, and in all.
struct Cores([f64; 2]);

impl Cores {
    fn now() -> Result<Self> {
        let stat = std::fs::read_to_string("/proc/stat")?;
        let line = stat.lines().next().ok_or("/proc/stat is empty")?;
        let times: Vec<f64> = line.split_whitespace().skip(1).flat_map(str::parse).collect();
        let idle = times.iter().skip(3).take(2).sum();
        // Guests' time is in that of users.
        Ok(Self([idle, times.iter().take(8).sum()]))
    }

    /// The share that was not idle.
    fn busy_since(&self) -> Result<f64> {
        let Self([idle, all]) = Self::now()?;
        Ok(1.0 - (idle - self.0[0]) / (all - self.0[1]))
    }
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
