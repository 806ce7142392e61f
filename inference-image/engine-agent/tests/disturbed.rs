//! Syncs of weights to three replicas, each disturbed in another way: no answer is credited to weights that did not
//! sample it, and no replica stays behind.
//!
//! Agents are processes, engines are real ones. Each version has a random model, which the engines load, and a large
//! file with a delta from the version before; whole or as the delta, it comes in chunks from several agents. Meanwhile
//! every replica is asked for samples, and each answer is compared with that of a separate engine of the version it
//! names. `GRPO_SYNCS`: how many syncs; `make test-syncs`.

use crate::support::engine::{self, Random, Running};
use crate::support::{Source, at_own_port, bearing, driver, engines, model_of};
use grpo_auth::LocalIssuer;
use grpo_contracts::access::Service;
use grpo_engine_protocol::{
    AgentState, AgentStatus, BASE_VERSION, CompletionRequest, CompletionResponse, Relay, WEIGHTS_HEADER, WeightsOrder,
};
use grpo_free_port::free_port;
use reqwest::Client;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::net::TcpListener;

const REPLICAS: usize = 3;
/// Five chunks. A part of it is new in each version: the delta has two.
const LARGE: usize = 4 * Relay::CHUNK as usize + 77;
const NEW: usize = LARGE / 3;
const DELTA: &str = "large.bin.delta";
/// A sync that takes longer is stuck.
const LIMIT: Duration = Duration::from_secs(180);

/// What happens during a sync.
#[derive(Clone, Copy, Debug)]
enum Disturbance {
    Nothing,
    /// The source ends a transfer early: that of the delta, or of the whole file of a version without one.
    CutDelta(usize),
    Cut(usize),
    /// A replica's copy of the version before has another byte.
    WrongBase(usize),
    /// The delta at the source has another byte, or is not there.
    SpoiltDelta,
    NoDelta,
    /// An agent is killed, and starts again.
    Killed(usize),
    /// Another replica takes the place of one: its disk is empty.
    Joins(usize),
    /// An engine starts again, with the weights it boots with.
    EngineStarts(usize),
    /// A replica gets an order for a manifest that does not exist first.
    WrongOrder(usize),
    /// Each replica gets other members, one of which does not exist.
    OtherMembers,
    /// Some replicas get another version first, of a lineage that ends.
    Superseded,
}

impl Disturbance {
    fn any(random: &mut Random) -> Self {
        let replica = random.below(REPLICAS as u64) as usize;
        match random.below(12) {
            0 => Self::Nothing,
            1 => Self::CutDelta(random.below(NEW as u64) as usize),
            2 => Self::Killed(replica),
            3 => Self::Joins(replica),
            4 => Self::EngineStarts(replica),
            5 => Self::WrongOrder(replica),
            6 => Self::OtherMembers,
            7 => Self::WrongBase(replica),
            8 => Self::SpoiltDelta,
            9 => Self::NoDelta,
            10 => Self::Cut(random.below(LARGE as u64) as usize),
            _ => Self::Superseded,
        }
    }
}

fn request() -> CompletionRequest {
    CompletionRequest {
        ignore_eos: true,
        ..CompletionRequest::of_tokens("policy", vec![5, 6, 7], 8, 1)
    }
}

/// What the model in a folder samples.
async fn sampled(model: &Path) -> Vec<u32> {
    let engine = engine::start(engine::options(model)).await;
    let call = Client::new()
        .post(format!("{}/v1/completions", engine.url))
        .json(&request());
    let answer: CompletionResponse = call.send().await.unwrap().json().await.unwrap();
    answer.choices[0].token_ids.clone()
}

/// A replica: an engine, and an agent as a process.
struct Replica {
    port: u16,
    cache: TempDir,
    agent: Child,
    engine: Option<Running>,
}

impl Drop for Replica {
    fn drop(&mut self) {
        self.agent.kill().unwrap();
        self.agent.wait().unwrap();
    }
}

struct Pool {
    base: TempDir,
    /// Tokens, and the issuer's keys.
    access: TempDir,
    client: Client,
    replicas: Vec<Replica>,
    source: Source,
    /// What each version samples.
    expected: Arc<Mutex<BTreeMap<String, Vec<u32>>>>,
}

impl Pool {
    async fn start() -> Self {
        let (base, access) = (model_of(1), tempfile::tempdir().unwrap());
        let issuer = LocalIssuer::new().unwrap();
        issuer
            .write_tokens(&access.path().join("tokens"), &engines(), &[Service::EngineAgent])
            .unwrap();
        std::fs::write(access.path().join("issuer.json"), issuer.file()).unwrap();
        let mut pool = Self {
            client: bearing(&issuer.token(&driver(), Service::EngineAgent).unwrap()),
            replicas: Vec::new(),
            source: Source::start().await,
            expected: Arc::default(),
            base,
            access,
        };
        let tokens = sampled(pool.base.path()).await;
        pool.expected.lock().unwrap().insert(BASE_VERSION.to_owned(), tokens);
        for _ in 0..REPLICAS {
            let engine = engine::start_on(at_own_port().await, engine::options(pool.base.path()));
            let (port, cache) = (free_port().unwrap(), tempfile::tempdir().unwrap());
            let agent = pool.agent(port, &engine.url, cache.path());
            pool.replicas.push(Replica {
                port,
                cache,
                agent,
                engine: Some(engine),
            });
        }
        pool
    }

    fn agent(&self, port: u16, engine: &str, cache: &Path) -> Child {
        let mut command = Command::new(env!("CARGO_BIN_EXE_grpo-engine-agent"));
        command.args(["--listen", &format!("127.0.0.1:{port}"), "--engine", engine]);
        command.arg("--cache-dir").arg(cache);
        command.arg("--tokens").arg(self.access.path().join("tokens"));
        command.arg("--issuer-file").arg(self.access.path().join("issuer.json"));
        command.args([
            "--allow",
            &driver().to_string(),
            "--allow-chunks",
            &engines().to_string(),
        ]);
        command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    }

    fn kill_agent(&mut self, replica: usize) {
        let it = &mut self.replicas[replica];
        it.agent.kill().unwrap();
        it.agent.wait().unwrap();
    }

    fn start_agent(&mut self, replica: usize) {
        let it = &self.replicas[replica];
        let engine = it.engine.as_ref().unwrap().url.clone();
        let agent = self.agent(it.port, &engine, it.cache.path());
        self.replicas[replica].agent = agent;
    }

    async fn restart_engine(&mut self, replica: usize) {
        let Running { url, stop, ended, .. } = self.replicas[replica].engine.take().unwrap();
        stop.send(()).unwrap();
        ended.await.unwrap();
        let listener = TcpListener::bind(url.trim_start_matches("http://")).await.unwrap();
        let engine = engine::start_on(listener, engine::options(self.base.path()));
        self.replicas[replica].engine = Some(engine);
    }

    fn url(&self, replica: usize) -> String {
        format!("http://127.0.0.1:{}", self.replicas[replica].port)
    }

    /// Publishes a version with a model of its own, and a large file with a delta from that of `base`.
    async fn publish(&self, version: &str, seed: u64, base: Option<&str>) -> WeightsOrder {
        let model = model_of(seed);
        let read = |name: &str| std::fs::read(model.path().join(name)).unwrap();
        let mut random = Random(seed);
        let mut large = base.map_or_else(|| vec![0; LARGE], |base| self.source.file(&format!("{base}/large.bin")));
        for word in large[..NEW].chunks_exact_mut(8) {
            word.copy_from_slice(&random.next().to_le_bytes());
        }
        let tensors = grpo_engine::model::Model::load(model.path(), version, None)
            .unwrap()
            .sha256;
        let files = vec![
            ("config.json", read("config.json")),
            ("model.safetensors", read("model.safetensors")),
            ("large.bin", large),
        ];
        let samples = sampled(model.path()).await;
        self.expected.lock().unwrap().insert(version.to_owned(), samples);
        let order = self.source.publish_files(version, files, &tensors, |_| {});
        match base {
            Some(base) => self.source.add_delta(&order, base, "large.bin"),
            None => order,
        }
    }

    /// Changes a byte of a replica's copy of a version.
    fn spoil(&self, replica: usize, version: &str) {
        let copy = self.replicas[replica].cache.path().join(version).join("large.bin");
        let mut bytes = std::fs::read(&copy).unwrap();
        bytes[LARGE - 1] ^= 1;
        std::fs::write(&copy, bytes).unwrap();
    }

    /// The order for a replica, with these members.
    async fn tell(&self, replica: usize, order: &WeightsOrder, members: Vec<String>) {
        let relay = Some(Relay { members, own: replica });
        let order = WeightsOrder { relay, ..order.clone() };
        // An agent that is not there gets the next one.
        let call = self.client.put(format!("{}/agent/v1/weights", self.url(replica)));
        let _ = call.json(&order).timeout(Duration::from_secs(5)).send().await;
    }

    fn members(&self) -> Vec<String> {
        (0..REPLICAS).map(|replica| self.url(replica)).collect()
    }

    /// Has all replicas serve a version, as a driver does: looks at each and orders again.
    async fn sync(&mut self, order: &WeightsOrder, disturbance: Disturbance) {
        let began = Instant::now();
        let mut looks = 0;
        loop {
            let mut behind = Vec::new();
            for replica in 0..REPLICAS {
                let status = status_of(&self.client, &self.url(replica)).await;
                let serves = |status: &AgentStatus| {
                    status.serving.as_ref() == Some(&order.version) && status.state == AgentState::Idle
                };
                if !status.as_ref().is_some_and(serves) {
                    let mut members = self.members();
                    if matches!(disturbance, Disturbance::OtherMembers) && looks == 0 {
                        members[(replica + 1) % REPLICAS] = "http://127.0.0.1:9".to_owned();
                    }
                    self.tell(replica, order, members).await;
                    behind.push((replica, status));
                }
            }
            if behind.is_empty() {
                return;
            }
            // In the middle of the pull, or of the load.
            if looks == 1 {
                match disturbance {
                    Disturbance::Killed(replica) => {
                        self.kill_agent(replica);
                        self.start_agent(replica);
                    }
                    Disturbance::Joins(replica) => {
                        self.kill_agent(replica);
                        self.replicas[replica].cache = tempfile::tempdir().unwrap();
                        self.restart_engine(replica).await;
                        self.start_agent(replica);
                    }
                    Disturbance::EngineStarts(replica) => self.restart_engine(replica).await,
                    _ => {}
                }
            }
            looks += 1;
            assert!(
                began.elapsed() < LIMIT,
                "{disturbance:?}: {} is stuck, of these replicas: {behind:?}",
                order.version
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

async fn status_of(client: &Client, url: &str) -> Option<AgentStatus> {
    let call = client.get(format!("{url}/agent/v1/status"));
    call.timeout(Duration::from_secs(5))
        .send()
        .await
        .ok()?
        .json()
        .await
        .ok()
}

/// Samples from a replica with the weights that it says it serves, again and again.
async fn ask(client: Client, url: String, expected: Arc<Mutex<BTreeMap<String, Vec<u32>>>>, answers: Arc<AtomicU64>) {
    loop {
        if let Some(serving) = status_of(&client, &url).await.and_then(|status| status.serving) {
            let call = client
                .post(format!("{url}/v1/completions"))
                .header(WEIGHTS_HEADER, &serving);
            if let Ok(answer) = call.json(&request()).send().await
                && answer.status().is_success()
                && let Ok(answer) = answer.json::<CompletionResponse>().await
            {
                assert_eq!(answer.weights_version, serving);
                assert_eq!(
                    answer.choices[0].token_ids,
                    expected.lock().unwrap()[&serving],
                    "of {serving}"
                );
                answers.fetch_add(1, Ordering::Relaxed);
            }
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn disturbed_syncs_end_with_every_replica_at_the_version_and_no_answer_of_another_one() {
    let syncs: u64 = std::env::var("GRPO_SYNCS").map_or(8, |count| count.parse().unwrap());
    let mut pool = Pool::start().await;
    let mut askers = tokio::task::JoinSet::new();
    let counts: Vec<Arc<AtomicU64>> = (0..REPLICAS).map(|_| Arc::default()).collect();
    for (replica, count) in counts.iter().enumerate() {
        askers.spawn(ask(
            pool.client.clone(),
            pool.url(replica),
            pool.expected.clone(),
            count.clone(),
        ));
    }
    let mut random = Random(7);
    for step in 1..=syncs {
        let version = format!("a-v{step}");
        let disturbance = Disturbance::any(&mut random);
        let base = (step > 1 && !matches!(disturbance, Disturbance::Cut(_))).then(|| format!("a-v{}", step - 1));
        let order = pool.publish(&version, 100 + step, base.as_deref()).await;
        pool.source.keep_only(&version);
        match disturbance {
            Disturbance::Cut(bytes) => pool.source.break_after(&format!("{version}/large.bin"), bytes),
            Disturbance::CutDelta(bytes) if base.is_some() => {
                pool.source.break_after(&format!("{version}/{DELTA}"), bytes);
            }
            Disturbance::WrongBase(replica) => {
                if let Some(base) = &base {
                    pool.spoil(replica, base);
                }
            }
            Disturbance::SpoiltDelta if base.is_some() => pool.source.corrupt(&format!("{version}/{DELTA}")),
            Disturbance::NoDelta if base.is_some() => pool.source.remove(&format!("{version}/{DELTA}")),
            Disturbance::WrongOrder(replica) => {
                let wrong = WeightsOrder {
                    manifest_sha256: "0".repeat(64),
                    ..order.clone()
                };
                pool.tell(replica, &wrong, pool.members()).await;
            }
            Disturbance::Superseded => {
                let other = pool.publish(&format!("b-v{step}"), 10_000 + step, None).await;
                for replica in 1..REPLICAS {
                    pool.tell(replica, &other, pool.members()).await;
                }
            }
            _ => {}
        }
        let began = Instant::now();
        pool.sync(&order, disturbance).await;
        println!("{version}, {disturbance:?}: {:.1} s", began.elapsed().as_secs_f64());
        if let Some(ended) = askers.try_join_next() {
            ended.unwrap();
        }
    }
    while let Some(ended) = askers.try_join_next() {
        ended.unwrap();
    }
    let mut made = 0;
    for replica in 0..REPLICAS {
        let metrics = pool
            .client
            .get(format!("{}/metrics", pool.url(replica)))
            .send()
            .await
            .unwrap();
        let metrics = metrics.text().await.unwrap();
        let line = metrics
            .lines()
            .find(|line| line.starts_with("grpo_agent_made_files_total"))
            .unwrap();
        made += line.rsplit(' ').next().unwrap().parse::<u64>().unwrap();
    }
    println!("{made} files were made from deltas since the agents started");
    assert!(made > 0);
    let answers: Vec<u64> = counts.iter().map(|count| count.load(Ordering::Relaxed)).collect();
    println!("{syncs} syncs, answers of each replica: {answers:?}");
    assert!(answers.iter().all(|count| *count >= syncs), "{answers:?}");
}
