//! How long a version takes to many replicas, over links of one rate: `make bench-sync` writes
//! bench/results/weights-sync.json.
//!
//! Each replica is a network namespace with an engine agent and an embedded engine as processes; the driver's own
//! server is the source. Every end of every link sends at most [`RATE`]. The agents pull to memory-backed folders, as
//! they do while episodes run: loading is not part of it. Needs root, and a network namespace of its own.

use crate::support::{Result, repository};
use grpo_auth::{LocalIssuer, ServiceAccount};
use grpo_bench_report::{Bench, Row};
use grpo_contracts::access::Service;
use grpo_driver::metrics::Metrics;
use grpo_driver::progress::Board;
use grpo_driver::serve;
use grpo_engine_protocol::{AgentStatus, Relay, WeightsOrder};
use grpo_records::store::sha256_hex;
use grpo_records::weights::{WeightsFile, WeightsManifest};
use grpo_records::{RunStore, paths};
use grpo_testing::program;
use rand::{RngCore, SeedableRng, rngs::SmallRng};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;

const REPLICAS: usize = 4;
/// Of every link, in bits a second, and in bytes.
const RATE: &str = "1gbit";
const BYTES_A_SECOND: f64 = 125e6;
/// The parameters of Qwen3-0.6B in 16 bits.
const BYTES: usize = 2 * 596_049_920;
const ROUNDS: usize = 5;
const SOURCE: &str = "10.77.0.1";
const NAME: &str = "model.safetensors";
/// Memory-backed.
const FOLDER: &str = "/dev/shm";
const PATIENCE: Duration = Duration::from_secs(180);

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root and a network namespace of its own: make bench-sync"]
async fn a_version_comes_to_four_replicas_in_the_time_of_one_copy() -> Result<()> {
    let links = Links::make()?;
    let work = tempfile::tempdir_in(FOLDER)?;
    let issuer = LocalIssuer::new()?;
    let (source, versions) = source(work.path(), 2 * ROUNDS).await?;
    let replicas = Replicas::start(&links, work.path(), &issuer).await?;
    let (mut apart, mut relayed, mut sent) = (Vec::new(), Vec::new(), Vec::new());
    for (round, version) in versions.iter().enumerate() {
        let order = order_of(&source, work.path(), version)?;
        let before = replicas.from_source().await?;
        let relay = round % 2 == 1;
        let seconds = replicas.pull(&order, relay).await?;
        let copies = (replicas.from_source().await? - before) / BYTES as f64;
        println!("{version}, relay {relay}: {seconds:.2} s, {copies:.3} copies from the source");
        match relay {
            false => apart.push(seconds),
            true => {
                relayed.push(seconds);
                sent.push(copies);
            }
        }
    }
    let one = BYTES as f64 / BYTES_A_SECOND;
    let figure = format!(
        "2: {:.2} GB to {REPLICAS} replicas over links of {RATE}",
        BYTES as f64 / 1e9
    );
    let rows = [
        Row::new(
            format!("{figure}, chunks passed on: time / (bytes / link)"),
            Some(median(&mut relayed) / one),
            "x",
            Some("<= 1.15"),
        )
        .beside("each replica from the source", median(&mut apart) / one),
        Row::new(
            format!("{figure}, chunks passed on: bytes from the source / one copy"),
            Some(median(&mut sent)),
            "x",
            Some("<= 1.3"),
        )
        .beside("each replica from the source", REPLICAS as f64),
    ];
    for row in &rows {
        println!("{}", serde_json::to_string(row)?);
    }
    Bench::of_this_machine(&rows).write(&repository().join("bench/results/weights-sync.json"))?;
    assert!(rows.iter().all(Row::meets_its_bar), "{rows:#?}");
    Ok(())
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn run(line: &str) -> Result<()> {
    let mut words = line.split_whitespace();
    let program = words.next().ok_or("an empty command")?;
    let ended = Command::new(program).args(words).output()?;
    match ended.status.success() {
        true => Ok(()),
        false => Err(format!("{line}: {}", String::from_utf8_lossy(&ended.stderr).trim()).into()),
    }
}

/// A bridge with the source's address, and a namespace for each replica behind it.
struct Links;

impl Links {
    fn make() -> Result<Self> {
        if std::fs::read_dir("/sys/class/net")?.count() != 1 {
            return Err("this network namespace has more than a loopback device; run it by make bench-sync".into());
        }
        run("ip link set lo up")?;
        run("ip link add pool type bridge")?;
        run(&format!("ip address add {SOURCE}/24 dev pool"))?;
        run("ip link set pool up")?;
        shape("", "pool")?;
        for replica in 0..REPLICAS {
            let space = format!("replica-{replica}");
            run(&format!("ip netns add {space}"))?;
            run(&format!(
                "ip link add r{replica} type veth peer name eth0 netns {space}"
            ))?;
            run(&format!("ip link set r{replica} master pool up"))?;
            shape("", &format!("r{replica}"))?;
            let inside = format!("ip netns exec {space}");
            run(&format!("{inside} ip link set lo up"))?;
            run(&format!(
                "{inside} ip address add {}/24 dev eth0",
                Self::address(replica)
            ))?;
            run(&format!("{inside} ip link set eth0 up"))?;
            shape(&inside, "eth0")?;
        }
        Ok(Self)
    }

    fn address(replica: usize) -> String {
        format!("10.77.0.{}", 10 + replica)
    }
}

impl Drop for Links {
    fn drop(&mut self) {
        for replica in 0..REPLICAS {
            // The namespace ends with this process in any case.
            let _ = run(&format!("ip netns delete replica-{replica}"));
        }
    }
}

/// What a device sends is limited to the rate.
fn shape(inside: &str, device: &str) -> Result<()> {
    run(&format!(
        "{inside} tc qdisc add dev {device} root tbf rate {RATE} burst 512kb latency 50ms"
    ))
}

/// The driver's server of weights with so many versions of one file; its URL.
async fn source(work: &Path, count: usize) -> Result<(String, Vec<String>)> {
    let store = RunStore::open(work, "store")?;
    let mut bytes = vec![0; BYTES];
    SmallRng::seed_from_u64(1).fill_bytes(&mut bytes);
    let file = WeightsFile {
        name: NAME.to_owned(),
        bytes: BYTES as u64,
        sha256: sha256_hex(&bytes),
    };
    let first = work.join("store").join(paths::weights_file("a-v1", NAME));
    std::fs::create_dir_all(first.parent().ok_or("a file without a folder")?)?;
    std::fs::write(&first, &bytes)?;
    let mut versions = Vec::new();
    for step in 1..=count as u32 {
        let version = format!("a-v{step}");
        let manifest = WeightsManifest {
            version: version.clone(),
            lineage: "a".into(),
            step,
            parent: None,
            files: vec![file.clone()],
            tensors_sha256: file.sha256.clone(),
        };
        if step > 1 {
            let other = work.join("store").join(paths::weights_file(&version, NAME));
            std::fs::create_dir_all(other.parent().ok_or("a file without a folder")?)?;
            std::fs::hard_link(&first, other)?;
        }
        std::fs::write(manifest_of(work, &version), serde_json::to_vec(&manifest)?)?;
        versions.push(version);
    }
    let listener = tokio::net::TcpListener::bind((SOURCE, 8070)).await?;
    let board = Board::new("uid", 1);
    let router = serve::router(&store, board, Arc::new(Metrics::default()), watch::channel(None).1);
    tokio::spawn(async move { axum::serve(listener, router).await });
    Ok((format!("http://{SOURCE}:8070/weights"), versions))
}

fn manifest_of(work: &Path, version: &str) -> PathBuf {
    work.join("store").join(paths::weights_manifest(version))
}

fn order_of(source: &str, work: &Path, version: &str) -> Result<WeightsOrder> {
    Ok(WeightsOrder {
        version: version.to_owned(),
        source: format!("{source}/{version}"),
        manifest_sha256: sha256_hex(&std::fs::read(manifest_of(work, version))?),
        relay: None,
    })
}

/// Engine agents, each with an engine.
struct Replicas {
    http: reqwest::Client,
    token: String,
    processes: Vec<Child>,
}

impl Drop for Replicas {
    fn drop(&mut self) {
        for process in &mut self.processes {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

impl Replicas {
    async fn start(_links: &Links, work: &Path, issuer: &LocalIssuer) -> Result<Self> {
        let (driver, engines) = (
            ServiceAccount::new("team", "run-driver"),
            ServiceAccount::new("team", "run-engines"),
        );
        let (tokens, keys) = (work.join("tokens"), work.join("issuer.json"));
        issuer
            .write_tokens(&tokens, &engines, &[Service::EngineAgent])
            .map_err(|error| error.to_string())?;
        std::fs::write(&keys, issuer.file())?;
        let of = |name: &str| program(name).ok_or_else(|| format!("{name} is not built (make build)"));
        let (agent, engine) = (of("grpo-engine-agent")?, of("grpo-engine")?);
        let mut replicas = Self {
            http: reqwest::Client::builder().no_proxy().build()?,
            token: issuer.token(&driver, Service::EngineAgent)?,
            processes: Vec::new(),
        };
        for replica in 0..REPLICAS {
            let space = format!("replica-{replica}");
            let inside = |program: &Path| {
                let mut command = Command::new("ip");
                command.args(["netns", "exec", &space]).arg(program);
                command.stdout(Stdio::null()).stderr(Stdio::null());
                command
            };
            let mut engine = inside(&engine);
            engine.arg("--model-dir").arg(repository().join("demo/model"));
            replicas.processes.push(engine.spawn()?);
            let mut agent = inside(&agent);
            agent.arg("--cache-dir").arg(work.join(&space));
            agent.arg("--tokens").arg(&tokens);
            agent.arg("--issuer-file").arg(&keys);
            agent.args(["--allow", "team/run-driver", "--allow", "team/run-engines"]);
            replicas.processes.push(agent.spawn()?);
        }
        for replica in 0..REPLICAS {
            replicas.until(replica, |status| status.serving.is_some()).await?;
        }
        Ok(replicas)
    }

    fn url(replica: usize) -> String {
        format!("http://{}:8000", Links::address(replica))
    }

    async fn get(&self, replica: usize, path: &str) -> Result<reqwest::Response> {
        let call = self.http.get(format!("{}{path}", Self::url(replica)));
        Ok(call.bearer_auth(&self.token).send().await?.error_for_status()?)
    }

    /// Asks an agent until its status is as wanted.
    async fn until(&self, replica: usize, wanted: impl Fn(&AgentStatus) -> bool) -> Result<()> {
        let began = Instant::now();
        loop {
            let last = match self.get(replica, "/agent/v1/status").await {
                Ok(answer) => {
                    let status: AgentStatus = answer.json().await?;
                    if wanted(&status) {
                        return Ok(());
                    }
                    format!("{status:?}")
                }
                Err(error) => error.to_string(),
            };
            if began.elapsed() > PATIENCE {
                return Err(format!("replica {replica} stays at {last}").into());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Has all of them pull a version; the seconds until the last one has it.
    async fn pull(&self, order: &WeightsOrder, relay: bool) -> Result<f64> {
        let members: Vec<String> = (0..REPLICAS).map(Self::url).collect();
        let began = Instant::now();
        for own in 0..REPLICAS {
            let relay = relay.then(|| Relay {
                members: members.clone(),
                own,
            });
            let order = WeightsOrder { relay, ..order.clone() };
            let call = self.http.put(format!("{}/agent/v1/prefetch", Self::url(own)));
            let call = call.bearer_auth(&self.token).json(&order);
            call.send().await?.error_for_status()?;
        }
        for replica in 0..REPLICAS {
            let has = |status: &AgentStatus| status.pulled.as_ref() == Some(&order.version);
            self.until(replica, has).await?;
        }
        Ok(began.elapsed().as_secs_f64())
    }

    /// Bytes that all of them got from the source so far.
    async fn from_source(&self) -> Result<f64> {
        let mut bytes = 0.0;
        for replica in 0..REPLICAS {
            let metrics = self.get(replica, "/metrics").await?.text().await?;
            let line = metrics
                .lines()
                .find_map(|line| line.strip_prefix("grpo_agent_pulled_source_bytes_total "));
            bytes += line.ok_or("an agent counts no bytes")?.parse::<f64>()?;
        }
        Ok(bytes)
    }
}
