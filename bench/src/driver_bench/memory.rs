//! Figure 5, memory: the driver's memory for each live episode of 16,000 tokens.
//!
//! The base is the resident memory of a driver that has started while the engine serves no weights: it has sent no
//! request yet. 2,000 episodes then work until each sends the engine a prompt of 16,000 tokens, and wait there for the
//! answer. The growth divided by the number of episodes is the figure: rows, texts, connections, requests under way,
//! and the reserve of the allocator (the C library's own, as in the image). Then the engine answers, and the episodes
//! wait for a command.

use super::driver::{DriverProcess, RunShape, SAMPLES};
use super::engine::PlayedEngine;
use super::gateway::PlayedGateway;
use super::model::Model;
use super::turns::{answers, bash_loop};
use super::{DriverBenchError, Place, bodies};
use grpo_bench_report::Row;
use std::time::{Duration, Instant};

const TOKENS: usize = 16_000;
/// More turns than an episode reaches.
const TURNS: usize = 60;
const LOOK: Duration = Duration::from_millis(200);
/// Memory that is freed late is freed within this time.
const SETTLE: Duration = Duration::from_secs(3);
/// A driver starts within this time.
const WITHIN: Duration = Duration::from_secs(180);
/// More time for each episode, until all have their tokens.
const EACH: Duration = Duration::from_millis(60);

/// The rows of the figure, for this many episodes.
pub async fn measure(place: &Place, episodes: usize) -> Result<Vec<Row>, DriverBenchError> {
    let model = Model::open(&place.model)?;
    let engine = PlayedEngine::start(&answers(&model)?, TOKENS).await?;
    let (gateway, _sessions) = PlayedGateway::start(&bodies::output()).await?;
    let shape = RunShape {
        agent: bash_loop(TURNS),
        episodes,
        samples: SAMPLES,
        training: None,
    };
    let mut driver = DriverProcess::start(&shape, &engine, &gateway, &model)?;
    let base = steady(&mut driver).await?;
    engine.serve_weights();
    wait(&mut driver, "for the engine", episodes, || engine.driver.held()).await?;
    let sampling = driver.memory()? - base;
    gateway.end_commands(false);
    engine.driver.open(true);
    wait(&mut driver, "for a command", episodes, || gateway.running()).await?;
    let acting = driver.memory()? - base;
    driver.kill().await?;
    let each = |grown: f64| Some(grown / 1e3 / episodes as f64);
    eprintln!(
        "  base {:.0} MB, grown by {:.0} and {:.0} MB",
        base / 1e6,
        sampling / 1e6,
        acting / 1e6
    );
    let words =
        |what: &str| format!("5: memory of each of {episodes} live episodes of 16k tokens that wait for {what}");
    Ok(vec![
        Row::new(words("the engine"), each(sampling), "kB", Some("<= 200")),
        Row::new(words("a command"), each(acting), "kB", None),
    ])
}

/// The memory of a driver that has read its input and waits for the engine.
async fn steady(driver: &mut DriverProcess) -> Result<f64, DriverBenchError> {
    let (mut last, began) = (0.0, Instant::now());
    loop {
        tokio::time::sleep(SETTLE).await;
        driver.runs()?;
        let now = driver.memory()?;
        if driver.has_begun() && (now - last).abs() < 1e6 {
            return Ok(now);
        }
        if began.elapsed() > WITHIN {
            return Err(DriverBenchError::Wrong(format!(
                "the driver was not ready within {WITHIN:?}"
            )));
        }
        last = now;
    }
}

/// Waits until this many episodes wait.
async fn wait(
    driver: &mut DriverProcess,
    what: &str,
    episodes: usize,
    waiting: impl Fn() -> usize,
) -> Result<(), DriverBenchError> {
    let began = Instant::now();
    let within = WITHIN + EACH * u32::try_from(episodes).unwrap_or(u32::MAX);
    while waiting() < episodes {
        driver.runs()?;
        if began.elapsed() > within {
            let message = format!("{} of {episodes} episodes wait {what} after {within:?}", waiting());
            return Err(DriverBenchError::Wrong(message));
        }
        tokio::time::sleep(LOOK).await;
    }
    eprintln!("  {episodes} episodes wait {what}");
    tokio::time::sleep(SETTLE).await;
    Ok(())
}
