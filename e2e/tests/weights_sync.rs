//! How long a version takes to many replicas, over links of one rate: `make bench-sync` writes
//! bench/results/weights-sync.json.
//!
//! Each replica is a network namespace with an engine agent as a process; the driver's own server is the source. Every
//! end of every link sends at most [`RATE`]. The agents pull to memory-backed folders, as they do while episodes run.
//! The switch to the pulled version comes after it: episodes wait for that. Engines are played ones that load in no
//! time, so a switch is all that our processes add to an engine's load. Needs root, and a network namespace of its own.

use crate::support::{Result, repository};
use axum::extract::State;
use axum::routing::{get, post};
use axum::{Json, Router};
use grpo_auth::{LocalIssuer, ServiceAccount};
use grpo_bench_report::{Bench, Row};
use grpo_contracts::access::Service;
use grpo_driver::metrics::Metrics;
use grpo_driver::progress::Board;
use grpo_driver::serve;
use grpo_engine_protocol::{AgentStatus, BASE_VERSION, EngineState, LoadRequest, LoadResponse, Relay, WeightsOrder};
use grpo_records::store::sha256_hex;
use grpo_records::weights::{WeightsDelta, WeightsFile, WeightsManifest};
use grpo_records::{RunStore, paths};
use grpo_testing::program;
use grpo_weights_delta::Encoder;
use rand::{Rng, RngCore, SeedableRng, rngs::SmallRng};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::watch;

const REPLICAS: usize = 4;
/// Of every link, in bits a second, and in bytes.
const RATE: &str = "1gbit";
const BYTES_A_SECOND: f64 = 125e6;
/// The parameters of Qwen3-0.6B in 16 bits.
const BYTES: usize = 2 * 596_049_920;
const ROUNDS: usize = 5;
/// Of 1,000 values of 16 bits, those that a step changes: about as in the steps of `make bench-delta`.
const CHANGED: usize = 40;
const SOURCE: &str = "10.77.0.1";
const NAME: &str = "model.safetensors";
/// Memory-backed.
const FOLDER: &str = "/dev/shm";
const PATIENCE: Duration = Duration::from_secs(180);

/// How a version comes to the replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Each replica gets all of it from the source.
    Apart,
    /// Chunks are passed on.
    Relayed,
    /// As a delta from the version before.
    Delta,
}

const WAYS: [Way; 3] = [Way::Apart, Way::Relayed, Way::Delta];

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

/// Values of 16 bits as a model's, and the same ones after a step.
fn contents() -> [Vec<u8>; 2] {
    let mut random = SmallRng::seed_from_u64(1);
    let mut old = vec![0; BYTES];
    random.fill_bytes(&mut old);
    let mut new = old.clone();
    for word in new.chunks_exact_mut(2) {
        // Exponents are of a narrow range; what a step changes is the last place.
        word[1] = 0x3c;
        if random.random_range(0..1000) < CHANGED {
            word[0] ^= 1;
        }
    }
    for word in old.chunks_exact_mut(2) {
        word[1] = 0x3c;
    }
    [old, new]
}

fn delta(old: &[u8], new: &[u8]) -> Result<Vec<u8>> {
    let (mut encoder, mut delta) = (Encoder::new()?, Vec::new());
    encoder.begin(&mut delta);
    encoder.add(old, new, &mut delta)?;
    encoder.end(&mut delta);
    Ok(delta)
}

fn file_of(name: &str, bytes: &[u8]) -> WeightsFile {
    WeightsFile {
        name: name.to_owned(),
        bytes: bytes.len() as u64,
        sha256: sha256_hex(bytes),
    }
}

/// The driver's server of weights, with a version for each round and way; its URL. Two contents alternate: a delta is
/// always from the version before, and a whole version never is what a replica has.
async fn source(work: &Path) -> Result<(String, Vec<(Way, String)>)> {
    let store = RunStore::open(work, "store")?;
    let place = |version: &str, name: &str| work.join("store").join(paths::weights_file(version, name));
    let contents = contents();
    let deltas = [delta(&contents[1], &contents[0])?, delta(&contents[0], &contents[1])?];
    let mut kept = Vec::new();
    for (at, (content, delta)) in contents.iter().zip(&deltas).enumerate() {
        let (whole, step) = (work.join(format!("content-{at}")), work.join(format!("delta-{at}")));
        std::fs::write(&whole, content)?;
        std::fs::write(&step, delta)?;
        let names = (file_of(NAME, content), file_of(&WeightsDelta::name_of(NAME), delta));
        kept.push((whole, step, names));
    }
    drop((contents, deltas));
    let (mut versions, mut content) = (Vec::new(), 0);
    for step in 1..=(ROUNDS * WAYS.len()) {
        let way = WAYS[(step - 1) % WAYS.len()];
        let version = format!("a-v{step}");
        let base = &kept[content].2.0;
        let (whole, step_file, (file, delta)) = &kept[1 - content];
        content = 1 - content;
        std::fs::create_dir_all(place(&version, NAME).parent().ok_or("a file without a folder")?)?;
        std::fs::hard_link(whole, place(&version, NAME))?;
        let mut manifest = WeightsManifest {
            version: version.clone(),
            lineage: "a".into(),
            step: step as u32,
            parent: None,
            files: vec![file.clone()],
            deltas: Vec::new(),
            tensors_sha256: file.sha256.clone(),
            canary: None,
        };
        if way == Way::Delta {
            std::fs::hard_link(step_file, place(&version, &delta.name))?;
            manifest.deltas.push(WeightsDelta {
                of: NAME.into(),
                base: format!("a-v{}", step - 1),
                base_sha256: base.sha256.clone(),
                file: delta.clone(),
            });
        }
        std::fs::write(manifest_of(work, &version), serde_json::to_vec(&manifest)?)?;
        versions.push((way, version));
    }
    let listener = tokio::net::TcpListener::bind((SOURCE, 8070)).await?;
    let board = Board::new("uid", 1);
    let router = serve::router(&store, board, Arc::new(Metrics::default()), watch::channel(None).1);
    tokio::spawn(async move { axum::serve(listener, router).await });
    Ok((format!("http://{SOURCE}:8070/weights"), versions))
}

/// What a played engine has loaded.
type Loaded = Arc<Mutex<EngineState>>;

async fn load(State(loaded): State<Loaded>, Json(request): Json<LoadRequest>) -> Json<LoadResponse> {
    let (version, sha256) = (request.version, request.sha256.unwrap_or_default());
    if let Ok(mut loaded) = loaded.lock() {
        (loaded.version, loaded.sha256) = (version.clone(), sha256.clone());
    }
    Json(LoadResponse { version, sha256 })
}

async fn loaded(State(loaded): State<Loaded>) -> Json<Option<EngineState>> {
    Json(loaded.lock().map(|loaded| loaded.clone()).ok())
}

/// An engine that has loaded what it is told to load; its URL.
async fn played_engine(replica: usize) -> Result<String> {
    let router = Router::new()
        .route("/admin/load", post(load))
        .route("/admin/state", get(loaded))
        .with_state(Arc::new(Mutex::new(EngineState {
            version: BASE_VERSION.to_owned(),
            sha256: String::new(),
            draining: Vec::new(),
            asleep: false,
            running: 0,
            waiting: 0,
            max_rows: 1,
            max_context: 1024,
        })));
    let listener = tokio::net::TcpListener::bind((SOURCE, 9000 + replica as u16)).await?;
    let url = format!("http://{}", listener.local_addr()?);
    tokio::spawn(async move { axum::serve(listener, router).await });
    Ok(url)
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

/// Engine agents.
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
        let agent = of("grpo-engine-agent")?;
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
            let mut agent = inside(&agent);
            agent.args(["--engine", &played_engine(replica).await?]);
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
        let has = |status: &AgentStatus| status.pulled.as_ref() == Some(&order.version);
        self.tell("prefetch", order, relay, has).await
    }

    /// Has all of them serve a version that they have; the seconds until the last one does.
    async fn switch(&self, order: &WeightsOrder) -> Result<f64> {
        let serves = |status: &AgentStatus| status.serving.as_ref() == Some(&order.version);
        self.tell("weights", order, false, serves).await
    }

    async fn tell(
        &self,
        what: &str,
        order: &WeightsOrder,
        relay: bool,
        done: impl Fn(&AgentStatus) -> bool,
    ) -> Result<f64> {
        let members: Vec<String> = (0..REPLICAS).map(Self::url).collect();
        let began = Instant::now();
        for own in 0..REPLICAS {
            let relay = relay.then(|| Relay {
                members: members.clone(),
                own,
            });
            let order = WeightsOrder { relay, ..order.clone() };
            let call = self.http.put(format!("{}/agent/v1/{what}", Self::url(own)));
            let call = call.bearer_auth(&self.token).json(&order);
            call.send().await?.error_for_status()?;
        }
        for replica in 0..REPLICAS {
            self.until(replica, &done).await?;
        }
        Ok(began.elapsed().as_secs_f64())
    }

    /// Bytes that all of them got from the source so far.
    async fn sent_by_source(&self) -> Result<f64> {
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
