//! Figure 4: requests per second and latency of the recording endpoint, of a passthrough and of LiteLLM's proxy,
//! measured in turn in front of the same engine.
//!
//! Each client has one request at a time. The clients of our endpoint are the agents of the driver's episodes: the end
//! of a conversation ends its episode and writes its records, and the client continues in the next episode. The figure
//! includes those costs.

use super::bodies::{self, Body, TURNS};
use super::driver::{DriverProcess, RunShape, SAMPLES};
use super::engine::{Answers, PlayedEngine};
use super::gateway::{PlayedGateway, Session};
use super::model::Model;
use super::peers::Proxy;
use super::{DriverBenchError, LITELLM, Place, Scale};
use crate::sandbox_bench::caller::Caller;
use crate::sandbox_bench::{median, percentile};
use grpo_bench_report::Row;
use grpo_sandbox_protocol::RELAY_LEASE_HEADER;
use hyper::{Method, StatusCode};
use serde_json::json;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

/// Concurrent clients, where there are several.
const CLIENTS: usize = 8;
/// After a measurement, the last requests are answered within this time.
const SETTLE: Duration = Duration::from_millis(500);
/// Within this time an endpoint answers as many requests as the conversations of all clients have.
const WARM_WITHIN: Duration = Duration::from_secs(120);
const PASSTHROUGH: &str = "axum passthrough";

/// The rows of the figure.
pub async fn measure(place: &Place, scale: Scale) -> Result<Vec<Row>, DriverBenchError> {
    let model = Model::open(&place.model)?;
    let answers = Answers {
        ids: model.answer(&bodies::answer())?,
        content: bodies::CONTENT.into(),
        call: Some((bodies::TOOL.into(), bodies::ARGUMENTS.into())),
    };
    let engine = PlayedEngine::start(&answers, 0).await?;
    engine.driver.open(true);
    engine.stream.open(true);
    engine.serve_weights();
    let (gateway, sessions) = PlayedGateway::start("").await?;
    let shape = RunShape {
        agent: json!({
            "cli": {"image": "agent:1", "command": ["/agent", "{{ prompt }}"]},
            "limits": {"turns": TURNS, "contextTokens": 40960, "commandTimeout": "12h", "episodeTimeout": "12h"},
        }),
        // The next episodes have begun before a client needs them.
        episodes: 2 * CLIENTS,
        samples: SAMPLES,
        training: None,
    };
    let mut driver = DriverProcess::start(&shape, &engine, &gateway, &model)?;
    let folder = tempfile::tempdir().map_err(DriverBenchError::io("making a folder"))?;
    let mut passthrough = Proxy::passthrough(&engine, folder.path()).await?;
    let mut litellm = Proxy::litellm(place, &engine, folder.path()).await?;

    let bodies: Arc<[Body]> = bodies::conversation().into();
    let sessions = Arc::new(tokio::sync::Mutex::new(sessions));
    let ours = Clients::start(&driver.url, Entry::Session(sessions), &bodies);
    let through = Clients::start(&passthrough.url, Entry::Fixed, &bodies);
    let proxied = Clients::start(&litellm.url, Entry::Fixed, &bodies);
    let all = [&ours, &through, &proxied];
    for clients in all {
        clients.warm_up().await?;
    }
    let mut loaded = [Vec::new(), Vec::new(), Vec::new()];
    let mut alone = [Vec::new(), Vec::new(), Vec::new()];
    for round in 0..scale.rounds {
        for at in 0..all.len() {
            // Each endpoint is first equally often.
            let at = (at + round) % all.len();
            loaded[at].push(all[at].round(CLIENTS, scale.round).await?);
            alone[at].push(all[at].round(1, scale.round / 2).await?);
        }
        let rates = [0, 1, 2].map(|at| loaded[at][round].rate);
        let waits = [0, 1, 2].map(|at| alone[at][round].p50);
        eprintln!(
            "  round {}: ours, passthrough, LiteLLM: {rates:.0?} requests/s; one at a time {waits:.2?} ms",
            round + 1
        );
    }
    driver.runs()?;
    driver.stop().await?;
    let recorded = driver.recorded(TURNS as u32).await?;
    eprintln!("  {recorded} episodes are recorded, each {TURNS} turns in one row");
    for proxy in [&mut passthrough, &mut litellm] {
        proxy.runs()?;
        proxy.stop().await?;
    }
    Ok(rows(&loaded, &alone))
}

fn rows(loaded: &[Vec<Measured>; 3], alone: &[Vec<Measured>; 3]) -> Vec<Row> {
    let middle = |of: &[Measured], what: fn(&Measured) -> f64| median(of.iter().map(what).collect());
    let rate = |at: usize| middle(&loaded[at], |one| one.rate).unwrap_or(f64::NAN);
    let times = |peer: usize| {
        let pairs = loaded[0].iter().zip(&loaded[peer]);
        median(pairs.map(|(ours, peer)| ours.rate / peer.rate).collect())
    };
    let added = |of: &[Vec<Measured>; 3]| {
        let pairs = of[0].iter().zip(&of[1]);
        median(pairs.map(|(ours, peer)| ours.p50 - peer.p50).collect())
    };
    let p50 = |of: &[Vec<Measured>; 3], at: usize| middle(&of[at], |one| one.p50).unwrap_or(f64::NAN);
    let requests = format!("bodies of 13 to 64 kB, {CLIENTS} clients");
    let mut rows = vec![
        Row::new(
            format!("4: requests/s as a multiple of a passthrough's, {requests}"),
            times(1),
            "x",
            Some(">= 0.6"),
        ),
        Row::new(
            format!("4: requests/s as a multiple of LiteLLM's, {requests}"),
            times(2),
            "x",
            Some(">= 20"),
        ),
        Row::new(
            "4: median time added to a passthrough's, one request at a time",
            added(alone),
            "ms",
            Some("<= 1"),
        ),
        Row::new(format!("4: the same, {CLIENTS} at a time"), added(loaded), "ms", None),
    ];
    for (peer, name) in [(1, PASSTHROUGH), (2, LITELLM)] {
        rows.push(Row::significant("4: requests/s", rate(0), "1/s", None).beside(name, rate(peer)));
        let words = "4: median time of a request, one at a time";
        rows.push(Row::significant(words, p50(alone, 0), "ms", None).beside(name, p50(alone, peer)));
    }
    rows
}

/// The results of one round.
#[derive(Clone, Copy, Debug)]
struct Measured {
    /// Requests per second.
    rate: f64,
    /// Milliseconds.
    p50: f64,
}

/// How a client gets the URL that it calls.
#[derive(Clone)]
enum Entry {
    /// The client is the agent of the next episode.
    Session(Arc<tokio::sync::Mutex<mpsc::UnboundedReceiver<Session>>>),
    Fixed,
}

/// Clients of one endpoint. Between rounds they pause, each in the middle of its conversation.
struct Clients {
    active: watch::Sender<usize>,
    waits: Arc<Mutex<Vec<Duration>>>,
    fault: Arc<Mutex<Option<String>>>,
    tasks: Vec<JoinHandle<()>>,
}

impl Clients {
    fn start(url: &str, entry: Entry, bodies: &Arc<[Body]>) -> Self {
        let active = watch::channel(0).0;
        let conversations = Arc::default();
        let (waits, fault) = (Arc::default(), Arc::default());
        let tasks = (0..CLIENTS).map(|number| {
            let client = Client {
                number,
                caller: Caller::new(url.to_owned()),
                active: active.subscribe(),
                waits: Arc::clone(&waits),
                bodies: bodies.clone(),
                conversations: Arc::clone(&conversations),
            };
            let (entry, fault) = (entry.clone(), Arc::clone(&fault));
            tokio::spawn(async move {
                let failed = client.converse(&entry).await;
                *lock(&fault) = Some(failed);
            })
        });
        let tasks = tasks.collect();
        Self {
            active,
            waits,
            fault,
            tasks,
        }
    }

    /// Runs all clients until each had one conversation on average: an endpoint's first answers are slow.
    async fn warm_up(&self) -> Result<(), DriverBenchError> {
        let began = Instant::now();
        self.active.send_replace(CLIENTS);
        while lock(&self.waits).len() < CLIENTS * TURNS && lock(&self.fault).is_none() {
            if began.elapsed() > WARM_WITHIN {
                let message = format!(
                    "{} requests were answered within {WARM_WITHIN:?}",
                    lock(&self.waits).len()
                );
                return Err(DriverBenchError::Wrong(message));
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        self.active.send_replace(0);
        tokio::time::sleep(SETTLE).await;
        Ok(())
    }

    /// Runs this many clients for this long.
    async fn round(&self, clients: usize, length: Duration) -> Result<Measured, DriverBenchError> {
        lock(&self.waits).clear();
        let began = Instant::now();
        self.active.send_replace(clients);
        tokio::time::sleep(length).await;
        let mut waits = std::mem::take(&mut *lock(&self.waits));
        let seconds = began.elapsed().as_secs_f64();
        self.active.send_replace(0);
        tokio::time::sleep(SETTLE).await;
        if let Some(fault) = lock(&self.fault).clone() {
            return Err(DriverBenchError::Wrong(fault));
        }
        let nothing = || DriverBenchError::Wrong(format!("nothing was answered within {length:?}"));
        Ok(Measured {
            rate: waits.len() as f64 / seconds,
            p50: percentile(&mut waits, 50.0).ok_or_else(nothing)?,
        })
    }
}

impl Drop for Clients {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

struct Client {
    number: usize,
    caller: Caller,
    active: watch::Receiver<usize>,
    waits: Arc<Mutex<Vec<Duration>>>,
    bodies: Arc<[Body]>,
    /// How many conversations have begun, of all clients of an endpoint.
    conversations: Arc<AtomicU32>,
}

impl Client {
    /// Holds one conversation after another until one fails, and returns the failure.
    async fn converse(mut self, entry: &Entry) -> String {
        loop {
            if let Err(fault) = self.conversation(entry).await {
                return fault;
            }
        }
    }

    async fn conversation(&mut self, entry: &Entry) -> Result<(), String> {
        let bodies = self.bodies.clone();
        self.turn_comes().await;
        let session = match entry {
            Entry::Fixed => None,
            Entry::Session(begun) => {
                let session = begun.lock().await.recv().await;
                Some(session.ok_or("the gateway is gone")?)
            }
        };
        let mut headers = vec![("content-type", "application/json".to_owned())];
        let mut path = "/v1/chat/completions".to_owned();
        if let Some(session) = &session {
            let at = session.url.find("/sessions").ok_or("no session in the relay's URL")?;
            path = format!("{}{path}", &session.url[at..]);
            headers.push((RELAY_LEASE_HEADER, session.lease.clone()));
        }
        let number = self.conversations.fetch_add(1, Ordering::Relaxed);
        for (turn, body) in bodies.iter().enumerate() {
            self.turn_comes().await;
            let body = body.of_conversation(number);
            let bytes = body.len();
            let began = Instant::now();
            let sent = self.caller.send_with(Method::POST, &path, &headers, body).await;
            let (status, answer) = sent.map_err(|error| error.to_string())?;
            let took = began.elapsed();
            // The measured endpoint streams to the end and names the call so; anything else is an error.
            let call = match &session {
                Some(_) => format!("call_{turn}_0"),
                None => "call_0_0".to_owned(),
            };
            let text = std::str::from_utf8(&answer).unwrap_or_default();
            if status != StatusCode::OK || !text.contains(&call) || !text.contains("[DONE]") {
                return Err(format!(
                    "turn {turn} ({bytes} bytes) was answered {status} without {call}: {text}"
                ));
            }
            lock(&self.waits).push(took);
        }
        Ok(())
    }

    async fn turn_comes(&mut self) {
        let number = self.number;
        // The sender exists until this task is aborted.
        let _ = self.active.wait_for(|active| number < *active).await;
    }
}

fn lock<T>(of: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}
