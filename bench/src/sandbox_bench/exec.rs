//! Figure 2: commands in a real sandboxd, directly and through the gateway, beside swe-rex's server and a loop that
//! only spawns processes.

use std::{
    net::{Ipv4Addr, SocketAddr},
    process::Stdio,
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, Instant},
};

use bytes::Bytes;
use futures::future::try_join_all;
use grpo_sandbox_protocol::{
    Bind, ExecRequest, Priority, Signed, Signer,
    signature::{EPOCH_HEADER, LEASE_HEADER, SIGNATURE_HEADER, TIME_HEADER},
};
use hyper::Method;
use jiff::Timestamp;
use serde_json::json;

use super::{
    SandboxBenchError,
    caller::Caller,
    median, percentile,
    rig::{OURS, Rig, sandboxd, signer},
};
use grpo_bench_report::Row;
use grpo_testing::cluster::cache;
use grpo_testing::control_plane::{Part, free_port};

const LEASE: &str = "direct";
const EPOCH: u64 = 1;
const SWEREX: &str = "swe-rex 1.4.0";
/// Concurrent spawners and callers: sandboxd runs 32 commands, and accepts 16 new connections from one address.
const SPAWNERS: usize = 8;
const ASKERS: usize = 16;
static CALLS: AtomicUsize = AtomicUsize::new(0);

/// The size of the measurement.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    pub rounds: usize,
    /// The time for each server in each round.
    pub window: Duration,
    /// Whether to measure swe-rex too, which must be installed.
    pub swerex: bool,
}

impl Scale {
    pub const FULL: Self = Self {
        rounds: 5,
        window: Duration::from_secs(3),
        swerex: true,
    };
    pub const SHORT: Self = Self {
        rounds: 1,
        window: Duration::from_secs(1),
        swerex: false,
    };
}

/// A server that can run a command.
enum Server {
    Sandboxd {
        caller: Caller,
        signer: Box<Signer>,
    },
    Gateway {
        caller: Caller,
    },
    /// By `/execute`, or by `/run_in_session`.
    Swerex {
        caller: Caller,
        in_session: bool,
    },
}

const TOKEN: &str = "of-the-bench";

impl Server {
    /// Runs `true`.
    async fn run(&self, id: &str) -> Result<(), SandboxBenchError> {
        let (path, headers, body) = match self {
            Self::Sandboxd { signer, .. } => {
                let body = command(id);
                ("/exec".to_owned(), signed(signer, "/exec", &body), body)
            }
            Self::Gateway { .. } => (format!("/v1/leases/{LEASE}/exec"), Vec::new(), command(id)),
            Self::Swerex { in_session, .. } => {
                let key = vec![("x-api-key", TOKEN.to_owned())];
                let (path, body) = match in_session {
                    true => (
                        "/run_in_session",
                        json!({"action_type": "bash", "command": "true", "timeout": 10}),
                    ),
                    false => ("/execute", json!({"command": ["/bin/true"], "timeout": 10})),
                };
                (path.to_owned(), key, body.to_string().into())
            }
        };
        let (status, answer) = self
            .caller()
            .send_with(Method::POST, &path, &with_json(headers), body)
            .await?;
        match status.is_success() {
            true => Ok(()),
            false => Err(SandboxBenchError::Call {
                doing: format!("running a command by {path}"),
                what: format!("{status}: {}", String::from_utf8_lossy(&answer)),
            }),
        }
    }

    fn caller(&self) -> &Caller {
        match self {
            Self::Sandboxd { caller, .. } | Self::Gateway { caller } | Self::Swerex { caller, .. } => caller,
        }
    }
}

fn with_json(mut headers: Vec<(&'static str, String)>) -> Vec<(&'static str, String)> {
    headers.push(("content-type", "application/json".to_owned()));
    headers
}

fn command(id: &str) -> Bytes {
    let request = ExecRequest {
        id: id.to_owned(),
        argv: vec!["/bin/true".to_owned()],
        cwd: None,
        env: Default::default(),
        user: None,
        activate: None,
        stdin: None,
        timeout_seconds: 10,
        max_output_bytes: None,
    };
    serde_json::to_vec(&request).unwrap_or_default().into()
}

fn signed(signer: &Signer, target: &str, body: &[u8]) -> Vec<(&'static str, String)> {
    let now = Timestamp::now().as_millisecond();
    let signature = signer.sign(&Signed {
        method: "POST",
        target,
        lease: LEASE,
        epoch: EPOCH,
        unix_millis: now,
        body,
    });
    vec![
        (SIGNATURE_HEADER, signature),
        (LEASE_HEADER, LEASE.to_owned()),
        (EPOCH_HEADER, EPOCH.to_string()),
        (TIME_HEADER, now.to_string()),
    ]
}

/// The result of one round: calls per second, and their latencies.
#[derive(Default)]
struct Found {
    rates: Vec<f64>,
    p50: Vec<f64>,
    p99: Vec<f64>,
}

impl Found {
    /// Calls for a while, with this many callers that each wait for their answer. `again` is the id of a command that
    /// has already run.
    async fn add(
        &mut self,
        server: &Server,
        callers: usize,
        window: Duration,
        again: Option<&str>,
    ) -> Result<(), SandboxBenchError> {
        let began = Instant::now();
        let callers = (0..callers).map(|_| async move {
            let mut waits = Vec::new();
            while began.elapsed() < window {
                let fresh = format!("{:x}", CALLS.fetch_add(1, Ordering::Relaxed));
                let asked = Instant::now();
                server.run(again.unwrap_or(&fresh)).await?;
                waits.push(asked.elapsed());
            }
            Ok::<_, SandboxBenchError>(waits)
        });
        let mut waits = try_join_all(callers).await?.concat();
        self.rates.push(waits.len() as f64 / began.elapsed().as_secs_f64());
        self.p50.extend(percentile(&mut waits, 50.0));
        self.p99.extend(percentile(&mut waits, 99.0));
        Ok(())
    }

    fn rate(&self) -> Option<f64> {
        median(self.rates.clone())
    }

    fn p50(&self) -> Option<f64> {
        median(self.p50.clone())
    }

    fn p99(&self) -> Option<f64> {
        median(self.p99.clone())
    }
}

pub async fn measure(scale: Scale) -> Result<Vec<Row>, SandboxBenchError> {
    let rig = Rig::with_a_sandboxd().await?;
    let mut gateway = rig.gateway()?;
    gateway.serves().await?;
    gateway.caller.lease(LEASE, Priority::Agent).await?;
    let through = Server::Gateway {
        caller: gateway.caller.clone(),
    };
    let folder = tempfile::tempdir()?;
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()?));
    let _sandboxd = sandboxd(address, folder.path())?;
    let straight = bound(address).await?;
    let mut swerex = match scale.swerex {
        true => Some(Swerex::start(folder.path()).await?),
        false => None,
    };
    let (mut one, mut one_through, mut many, mut many_through) =
        (Found::default(), Found::default(), Found::default(), Found::default());
    let (mut nothing, mut nothing_through) = (Found::default(), Found::default());
    let (mut bare, mut bare_one) = (Vec::new(), Found::default());
    for round in 0..scale.rounds {
        let window = scale.window;
        one.add(&straight, 1, window, None).await?;
        one_through.add(&through, 1, window, None).await?;
        // sandboxd keeps only the last results.
        let again = format!("again-{round}");
        straight.run(&again).await?;
        through.run(&again).await?;
        nothing.add(&straight, ASKERS, window, Some(&again)).await?;
        nothing_through.add(&through, ASKERS, window, Some(&again)).await?;
        many.add(&straight, SPAWNERS, window, None).await?;
        bare.push(spawned(SPAWNERS, window).await?.len() as f64 / window.as_secs_f64());
        bare_one.p50.extend(percentile(&mut spawned(1, window).await?, 50.0));
        many_through.add(&through, SPAWNERS, window, None).await?;
        if let Some(swerex) = &mut swerex {
            swerex.one.add(&swerex.execute, 1, window, None).await?;
            swerex.session.add(&swerex.in_session, 1, window, None).await?;
            swerex.many.add(&swerex.execute, SPAWNERS, window, None).await?;
        }
    }
    let beside = |row: Row, what: &str, value: Option<f64>| Row {
        peer: value.map(|_| format!("{SWEREX}, {what}")),
        peer_value: value.map(|value| (value * 100.0).round() / 100.0),
        ..row
    };
    let peer = |of: fn(&Swerex) -> Option<f64>| swerex.as_ref().and_then(of);
    let ceiling = median(bare);
    let share = |found: &Found| found.rate().zip(ceiling).map(|(rate, ceiling)| 100.0 * rate / ceiling);
    Ok(vec![
        beside(
            Row::new(
                "2: `true` straight to sandboxd, 1 caller: p50",
                one.p50(),
                "ms",
                Some("<= 1"),
            ),
            "/execute",
            peer(|s| s.one.p50()),
        ),
        beside(
            Row::new("2: `true` straight to sandboxd, 1 caller: p99", one.p99(), "ms", None),
            "/execute",
            peer(|s| s.one.p99()),
        ),
        Row::new(
            "2: a process started by a loop that does nothing else, one after the other: p50",
            bare_one.p50(),
            "ms",
            None,
        ),
        beside(
            Row::new(
                "2: `true` through the gateway, 1 caller: p50",
                one_through.p50(),
                "ms",
                Some("<= 1"),
            ),
            "/run_in_session",
            peer(|s| s.session.p50()),
        ),
        beside(
            Row::new(
                "2: `true` through the gateway, 1 caller: p99",
                one_through.p99(),
                "ms",
                None,
            ),
            "/run_in_session",
            peer(|s| s.session.p99()),
        ),
        Row::new(
            format!("2: calls that start nothing, straight to sandboxd, {ASKERS} callers"),
            nothing.rate(),
            "calls/s",
            Some(">= 5000"),
        ),
        Row::new(
            format!("2: calls that start nothing, straight to sandboxd, {ASKERS} callers: p99"),
            nothing.p99(),
            "ms",
            Some("<= 10"),
        ),
        Row::new(
            format!("2: calls that start nothing, through the gateway, {ASKERS} callers"),
            nothing_through.rate(),
            "calls/s",
            None,
        ),
        beside(
            Row::new(
                format!("2: `true` straight to sandboxd, {SPAWNERS} callers"),
                many.rate(),
                "calls/s",
                None,
            ),
            "/execute",
            peer(|s| s.many.rate()),
        ),
        Row::new(
            format!("2: processes started by a loop that does nothing else, {SPAWNERS} at a time"),
            ceiling,
            "processes/s",
            None,
        ),
        Row::new(
            format!("2: `true` straight to sandboxd, {SPAWNERS} callers, of that loop"),
            share(&many),
            "%",
            Some(">= 60"),
        ),
        Row::new(
            format!("2: `true` through the gateway, {SPAWNERS} callers, of that loop"),
            share(&many_through),
            "%",
            None,
        ),
    ])
}

/// A sandboxd that obeys our signer.
async fn bound(address: SocketAddr) -> Result<Server, SandboxBenchError> {
    let (caller, signer) = (Caller::new(format!("http://{address}")), Box::new(signer()));
    answers(&caller, "/healthz", &[]).await?;
    let bind = Bind {
        lease: LEASE.to_owned(),
        epoch: EPOCH,
        ttl_seconds: 3600,
    };
    let body = serde_json::to_vec(&bind).unwrap_or_default();
    let headers = signed(&signer, "/bind", &body);
    let (status, _) = caller.send_with(Method::POST, "/bind", &headers, body.into()).await?;
    match status.is_success() {
        true => Ok(Server::Sandboxd { caller, signer }),
        false => Err(SandboxBenchError::Wrong(format!("sandboxd refused a bind: {status}"))),
    }
}

/// Waits until a server answers, for 30 s.
async fn answers(caller: &Caller, path: &str, headers: &[(&str, String)]) -> Result<(), SandboxBenchError> {
    let began = Instant::now();
    loop {
        match caller.send_with(Method::GET, path, headers, Bytes::new()).await {
            Ok((status, _)) if status.is_success() => return Ok(()),
            Err(error) if began.elapsed() > Duration::from_secs(30) => return Err(error),
            _ => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}

/// Spawns processes and waits for them, for a while. Returns the time of each.
async fn spawned(at_a_time: usize, window: Duration) -> Result<Vec<Duration>, SandboxBenchError> {
    let began = Instant::now();
    let loops = (0..at_a_time).map(|_| {
        tokio::spawn(async move {
            let mut took = Vec::new();
            while began.elapsed() < window {
                let started = Instant::now();
                let mut command = tokio::process::Command::new("/bin/true");
                command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
                command.env_remove(OURS.0).status().await?;
                took.push(started.elapsed());
            }
            Ok::<_, SandboxBenchError>(took)
        })
    });
    let mut all = Vec::new();
    for took in try_join_all(loops).await? {
        all.extend(took?);
    }
    Ok(all)
}

/// swe-rex's server, unchanged.
struct Swerex {
    execute: Server,
    in_session: Server,
    one: Found,
    session: Found,
    many: Found,
    _part: Part,
}

impl Swerex {
    async fn start(folder: &std::path::Path) -> Result<Self, SandboxBenchError> {
        let program = cache().join("venv-swerex/bin/swerex-remote");
        if !program.exists() {
            let missing = format!("there is no {}; run e2e/setup/swerex.sh", program.display());
            return Err(SandboxBenchError::Wrong(missing));
        }
        let port = free_port()?;
        let flags = [
            "--host",
            "127.0.0.1",
            "--port",
            &port.to_string(),
            "--auth-token",
            TOKEN,
        ]
        .map(str::to_owned);
        let ours = vec![(OURS.0.to_owned(), OURS.1.to_owned())];
        let part = Part::start_with("swerex", &program, flags.into(), ours, folder)?;
        let caller = Caller::new(format!("http://127.0.0.1:{port}"));
        let key = [
            ("x-api-key", TOKEN.to_owned()),
            ("content-type", "application/json".to_owned()),
        ];
        answers(&caller, "/is_alive", &key).await?;
        let session = Bytes::from_static(br#"{"session_type": "bash", "startup_timeout": 20}"#);
        let (status, answer) = caller.send_with(Method::POST, "/create_session", &key, session).await?;
        if !status.is_success() {
            let what = format!("{status}: {}", String::from_utf8_lossy(&answer));
            let doing = "making a session of swe-rex".to_owned();
            return Err(SandboxBenchError::Call { doing, what });
        }
        let server = |in_session| Server::Swerex {
            caller: caller.clone(),
            in_session,
        };
        Ok(Self {
            execute: server(false),
            in_session: server(true),
            one: Found::default(),
            session: Found::default(),
            many: Found::default(),
            _part: part,
        })
    }
}
