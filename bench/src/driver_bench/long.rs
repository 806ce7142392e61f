//! A long run: 2,000 iterations of 50 episodes with a policy, sandboxes and a trainer that answer at once. The driver's
//! memory, and the cost of its last iterations beside that of its first (issue 20's figure 9). Then the driver is
//! killed and starts again: how long until it asks for its next sandbox, and how much memory it takes (issue 21's
//! figure 4).
//!
//! For each tenth of the run it prints what an iteration cost ([`super::cost`]), and the times in the driver's records.
//!
//! Episodes have one turn and an empty patch; each leaves its records in the store, a folder in memory, its entry in
//! the journal and its row in a batch. The sampler is a frozen one: engines are told no weights, whose sync has a bench
//! of its own.

use super::cost::{IterationCost, Reading};
use super::driver::{DriverProcess, RunShape, Training};
use super::engine::PlayedEngine;
use super::gateway::PlayedGateway;
use super::model::Model;
use super::trainer::PlayedTrainer;
use super::turns::{answers, bash_loop};
use super::{DriverBenchError, Place, bodies};
use grpo_bench_report::Row;
use grpo_records::IterationRecord;
use std::time::{Duration, Instant};

const PROMPTS: usize = 10;
const SAMPLES: usize = 5;
const LOOK: Duration = Duration::from_millis(100);
const SHOW: Duration = Duration::from_secs(30);
/// An iteration takes less.
const EACH: Duration = Duration::from_secs(2);
/// The first sandbox is wanted within this time.
const WITHIN: Duration = Duration::from_secs(300);
/// The restarted driver works for so long before its memory is read.
const WORKS: Duration = Duration::from_secs(5);
const MIB: f64 = 1024.0 * 1024.0;

/// The rows of the figures, after this many iterations.
pub async fn measure(place: &Place, iterations: usize) -> Result<Vec<Row>, DriverBenchError> {
    let model = Model::open(&place.model)?;
    let engine = PlayedEngine::start(&answers(&model)?, 0).await?;
    let (gateway, _sessions) = PlayedGateway::start(&bodies::output()).await?;
    let trainer = PlayedTrainer::start().await?;
    engine.serve_weights();
    engine.driver.open(true);
    let shape = RunShape {
        agent: bash_loop(1),
        episodes: PROMPTS * SAMPLES,
        samples: SAMPLES,
        training: Some(Training {
            trainer: trainer.address,
            // The restarted driver has work.
            iterations: 2 * iterations,
            prompts: PROMPTS,
        }),
    };
    let mut driver = DriverProcess::start(&shape, &engine, &gateway, &model)?;
    let began = Instant::now();
    let (mut shown, mut readings) = (Instant::now(), Vec::new());
    loop {
        let done = trainer.orders().len();
        if done >= iterations {
            break;
        }
        driver.runs()?;
        if began.elapsed() > EACH * iterations as u32 + WITHIN {
            let message = format!("{done} of {iterations} iterations ended after {:?}", began.elapsed());
            return Err(DriverBenchError::Wrong(message));
        }
        // After the first step, and after every tenth of the run.
        if done > 0 && done * 10 / iterations >= readings.len() {
            readings.push(Reading::after(done, &driver)?);
        }
        if shown.elapsed() > SHOW {
            shown = Instant::now();
            eprintln!("  {done} iterations after {:.0} s", began.elapsed().as_secs_f64());
        }
        tokio::time::sleep(LOOK).await;
    }
    readings.push(Reading::after(trainer.orders().len(), &driver)?);
    let peak = driver.peak_memory()?;
    driver.kill().await?;
    let costs = costs(&readings, &driver).await?;
    let tenth = (iterations / 10).max(1);
    let times = trainer.orders();
    let cost = |from: usize| (times[from + tenth - 1] - times[from]).as_secs_f64() / (tenth - 1).max(1) as f64;
    let (first, last) = (cost(0), cost(iterations - tenth));
    let (restarted, after) = restart(&mut driver, &gateway).await?;
    let episodes = iterations * PROMPTS * SAMPLES;
    let words = |what: &str| format!("{iterations} iterations, {episodes} episodes of one turn: {what}");
    let after_kill = |what: &str| format!("21.4: a driver killed after {episodes} finished episodes, {what}");
    let mib = |at: usize| readings.get(at).map_or(f64::NAN, |reading| reading.memory) / MIB;
    let processor = |cost: Option<&IterationCost>| cost.map_or(f64::NAN, IterationCost::processor);
    Ok(vec![
        Row::significant(
            format!("20.9: {}", words("peak memory of the driver")),
            peak / MIB,
            "MiB",
            Some("<= 256"),
        ),
        Row::significant(
            format!(
                "20.9: {}",
                words("its memory after nine tenths, beside that after one tenth")
            ),
            mib(readings.len().saturating_sub(2)),
            "MiB",
            None,
        )
        .beside("after one tenth", mib(1)),
        Row::significant(
            format!(
                "20.9: {}",
                words("cost of an iteration in the last tenth / in the first")
            ),
            last / first,
            "x",
            Some("<= 1.1"),
        ),
        Row::significant(
            format!("20.9: {}", words("seconds of an iteration in the last tenth")),
            last,
            "s",
            None,
        )
        .beside("in the first tenth", first),
        Row::significant(
            format!(
                "20.9: {}",
                words("processor time of the driver for an iteration in the last tenth")
            ),
            processor(costs.last()),
            "s",
            None,
        )
        .beside("in the first tenth", processor(costs.first())),
        Row::significant(
            after_kill("start to the first sandbox it asks for"),
            restarted,
            "s",
            Some("<= 10"),
        ),
        Row::significant(
            after_kill("peak memory after its restart"),
            after / MIB,
            "MiB",
            Some("<= 256"),
        ),
    ])
}

/// The costs of an iteration between each two readings, which are also printed.
async fn costs(readings: &[Reading], driver: &DriverProcess) -> Result<Vec<IterationCost>, DriverBenchError> {
    let mut costs = Vec::new();
    for pair in readings.windows(2) {
        let cost = pair[0].until(&pair[1]);
        let (from, to) = (pair[0].iterations, pair[1].iterations);
        let records = driver.iterations(from + 1..to + 1).await?;
        let each = |of: fn(&IterationRecord) -> u64| {
            let episodes: u32 = records.iter().map(|record| record.episodes).sum();
            records.iter().map(of).sum::<u64>() as f64 / f64::from(episodes)
        };
        eprintln!(
            "  iterations {} to {to}, each: {cost}; an episode: {:.1} ms with its agent, {:.1} ms waiting; {:.0} MiB",
            from + 1,
            each(|record| record.agent_millis),
            each(|record| record.waited_millis),
            pair[1].memory / MIB
        );
        costs.push(cost);
    }
    Ok(costs)
}

/// Seconds until a restarted driver asks for a sandbox, and its peak memory in bytes.
async fn restart(driver: &mut DriverProcess, gateway: &PlayedGateway) -> Result<(f64, f64), DriverBenchError> {
    // Requests of the killed driver may still arrive.
    let mut leases = gateway.leased();
    loop {
        tokio::time::sleep(10 * LOOK).await;
        let now = gateway.leased();
        if now == leases {
            break;
        }
        leases = now;
    }
    let began = Instant::now();
    driver.again()?;
    while gateway.leased() == leases {
        driver.runs()?;
        if began.elapsed() > WITHIN {
            let message = format!("the restarted driver asked for no sandbox within {WITHIN:?}");
            return Err(DriverBenchError::Wrong(message));
        }
        tokio::time::sleep(LOOK / 10).await;
    }
    let seconds = began.elapsed().as_secs_f64();
    tokio::time::sleep(WORKS).await;
    driver.runs()?;
    let peak = driver.peak_memory()?;
    driver.kill().await?;
    Ok((seconds, peak))
}
