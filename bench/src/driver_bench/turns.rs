//! Figure 5, speed: turns per second of the driver's bash loop and of mini-swe-agent, measured in turn with the same
//! engine.
//!
//! A turn is an answer of the engine, whose counter is read at both ends of a round. Episodes have 30 turns and reach
//! 16,000 tokens; an ended episode is recorded, and another one follows. The driver calls the engine and the gateway
//! over HTTP; mini-swe-agent calls the engine over HTTP, and its sandboxes are objects of its own process.

use super::driver::{DriverProcess, RunShape, SAMPLES};
use super::engine::{Answers, PlayedEngine, Tap};
use super::gateway::PlayedGateway;
use super::model::Model;
use super::{DriverBenchError, MINI_SWE_AGENT, Place, Scale, bodies, peers};
use crate::sandbox_bench::median;
use grpo_bench_report::Row;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// Turns of an episode.
const TURNS: usize = 30;
/// Concurrent episodes of our driver.
const EPISODES: usize = 64;
/// Threads of mini-swe-agent: its batch runner has one for each episode. More are no faster, because one holds the
/// interpreter.
const THREADS: usize = 8;
/// Requests with fewer ids only prove that the engine samples; real prompts have more.
const REQUEST: usize = 100;
/// Everything waits within this time after a round.
const SETTLE: Duration = Duration::from_millis(500);
const READY_WITHIN: Duration = Duration::from_secs(120);

/// `spec.agent` of a bash loop with this many turns.
pub(super) fn bash_loop(turns: usize) -> Value {
    json!({
        "bash": {"preset": "MiniSweAgent1"},
        "limits": {"turns": turns, "contextTokens": 40960, "commandTimeout": "12h", "episodeTimeout": "12h"},
    })
}

/// The policy's answers, the same in every turn.
pub(super) fn answers(model: &Model) -> Result<Answers, DriverBenchError> {
    let said = |fence: &str| {
        format!(
            "THOUGHT: The reader splits its input at every comma, also within quotes, so I look at the function that does \
             it and at the tests that it has, before I change anything.\n\n```{fence}\nsed -n '120,160p' lib/read.py && \
             grep -n 'def test' tests/test_read.py\n```"
        )
    };
    Ok(Answers {
        ids: model.answer(&said("bash"))?,
        content: said("mswea_bash_command"),
        call: None,
    })
}

/// The rows of the figure.
pub async fn measure(place: &Place, scale: Scale) -> Result<Vec<Row>, DriverBenchError> {
    let model = Model::open(&place.model)?;
    let engine = PlayedEngine::start(&answers(&model)?, REQUEST).await?;
    engine.serve_weights();
    let output = bodies::output();
    let (gateway, _sessions) = PlayedGateway::start(&output).await?;
    let shape = RunShape {
        agent: bash_loop(TURNS),
        episodes: EPISODES,
        samples: SAMPLES,
        training: None,
    };
    let mut driver = DriverProcess::start(&shape, &engine, &gateway, &model)?;
    let folder = super::folder_in_memory()?;
    let mut mini = peers::mini_swe_agent(place, &engine, (THREADS, TURNS), &output, folder.path())?;
    for (tap, waiting) in [(&engine.driver, EPISODES), (&engine.chat, THREADS)] {
        let began = Instant::now();
        while tap.held() < waiting {
            driver.runs()?;
            mini.runs()?;
            if began.elapsed() > READY_WITHIN {
                let message = format!("{} of {waiting} episodes came to their first turn", tap.held());
                return Err(DriverBenchError::Wrong(message));
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
    let taps = [&engine.driver, &engine.chat];
    for tap in taps {
        round(tap, scale.round / 4).await;
    }
    let (mut rates, mut shares) = ([Vec::new(), Vec::new()], Vec::new());
    for number in 0..scale.rounds {
        for at in 0..taps.len() {
            let at = (at + number) % taps.len();
            let before = driver.processor_seconds();
            let rate = round(taps[at], scale.round).await;
            rates[at].push(rate);
            if at == 0 {
                shares.push((driver.processor_seconds() - before) / scale.round.as_secs_f64() / rate * 1e6);
            }
        }
        let [ours, peer] = [0, 1].map(|at| rates[at][number]);
        eprintln!("  round {}: {ours:.0} turns/s, mini-swe-agent {peer:.0}", number + 1);
    }
    driver.runs()?;
    mini.runs()?;
    driver.stop().await?;
    mini.stop().await?;
    let recorded = driver.recorded(TURNS as u32).await?;
    eprintln!("  {recorded} episodes are recorded, each {TURNS} turns in one row");
    let pairs = rates[0].iter().zip(&rates[1]);
    let times = median(pairs.map(|(ours, peer)| ours / peer).collect());
    let [ours, peer] = rates.map(|rates| median(rates).unwrap_or(f64::NAN));
    let words = format!("5: turns/s of the bash loop, {TURNS} turns to 16k tokens");
    Ok(vec![
        Row::new(
            format!("{words}, as a multiple of mini-swe-agent's"),
            times,
            "x",
            Some(">= 50"),
        ),
        Row::significant(words, ours, "1/s", None).beside(MINI_SWE_AGENT, peer),
        Row::significant(
            "5: processor time of the driver for a turn",
            median(shares).unwrap_or(f64::NAN),
            "us",
            None,
        ),
    ])
}

/// Answers per second while a tap is open for this long.
async fn round(tap: &Tap, length: Duration) -> f64 {
    let (before, began) = (tap.answered(), Instant::now());
    tap.open(true);
    tokio::time::sleep(length).await;
    let answers = tap.answered() - before;
    let rate = answers as f64 / began.elapsed().as_secs_f64();
    tap.open(false);
    tokio::time::sleep(SETTLE).await;
    rate
}
