//! Figure 6: gateways are killed and overlap, while their watches are late, doubled and out of order. No sandbox may be
//! given to two callers, no lease lost, and no pod be left over.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use futures::{StreamExt, future::try_join_all};
use grpo_sandbox_protocol::{Lease, LeaseRequest, Priority};
use hyper::{Method, StatusCode};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    api::{Api, ListParams},
    runtime::watcher::{self, Event, watcher},
};
use rand::{Rng, SeedableRng, rngs::StdRng};

use super::{
    SandboxBenchError,
    caller::{Caller, IMAGE, RUN, read},
    disturbed::Disturbed,
    rig::{Gateway, Rig},
};
use grpo_bench_report::Row;
use grpo_testing::cluster::api;
use grpo_testing::control_plane::{GATEWAY, free_port};

/// A call without an answer fails after this long.
const PATIENCE: Duration = Duration::from_secs(120);
const SANDBOXES: &str = "grpo.dev/role=sandbox";

/// The size of the test.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    pub sandboxes: usize,
    pub callers: usize,
    pub kills: usize,
}

impl Scale {
    pub const FULL: Self = Self {
        sandboxes: 300,
        callers: 48,
        kills: 20,
    };
    pub const SHORT: Self = Self {
        sandboxes: 60,
        callers: 12,
        kills: 4,
    };
}

/// The callers' observations.
#[derive(Default)]
struct LeaseObservations {
    /// The lease that each pod was given to: pods are not reused here.
    given: HashMap<String, String>,
    twice: Vec<String>,
    lost: Vec<String>,
    leases: usize,
}

/// The gateways that callers may call: more than one when two believe that they own the pool.
#[derive(Clone, Default)]
struct GatewayList(Arc<Mutex<Vec<Caller>>>);

impl GatewayList {
    fn set(&self, callers: Vec<Caller>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = callers;
    }

    fn any(&self, random: &mut StdRng) -> Option<Caller> {
        let gateways = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        (!gateways.is_empty()).then(|| gateways[random.random_range(0..gateways.len())].clone())
    }
}

pub async fn measure(scale: Scale) -> Result<Vec<Row>, SandboxBenchError> {
    let rig = Rig::start(scale.sandboxes).await?;
    let disturbed = Disturbed::serve(rig.plane.user(GATEWAY)?.client().await?, rig.plane.folder()).await?;
    let begin = || rig.gateway_with(&disturbed.kubeconfig, free_port()?);
    let mut gateway = begin()?;
    gateway.serves().await?;
    gateway.caller.want(scale.sandboxes).await?;
    gateway.until_ready(scale.sandboxes).await?;
    let gateways = GatewayList::default();
    gateways.set(vec![gateway.caller.clone()]);

    let most = Arc::new(AtomicUsize::new(0));
    let counting = tokio::spawn(count_pods(rig.pods(&rig.admin), most.clone()));
    let (seen, is_over) = (
        Arc::new(Mutex::new(LeaseObservations::default())),
        Arc::new(AtomicBool::new(false)),
    );
    let callers = (0..scale.callers).map(|number| {
        let (gateways, seen, is_over) = (gateways.clone(), seen.clone(), is_over.clone());
        tokio::spawn(async move { come_and_go(number, &gateways, &seen, &is_over).await })
    });
    let callers: Vec<_> = callers.collect();

    let mut random = StdRng::seed_from_u64(1);
    for kill in 0..scale.kills {
        tokio::time::sleep(Duration::from_millis(random.random_range(500..2500))).await;
        let before = gateway;
        gateway = match kill % 2 {
            0 => replaced(before, &begin, &gateways).await?,
            _ => met(before, &begin, &gateways, random.random_range(200..2000)).await?,
        };
        gateway.caller.want(scale.sandboxes).await?;
    }
    gateway.until_ready(1).await?;
    is_over.store(true, Ordering::Relaxed);
    for caller in try_join_all(callers).await? {
        caller?;
    }
    gateway.until_ready(scale.sandboxes).await?;
    let left = settled(&rig, scale.sandboxes).await?;
    counting.abort();
    gateway.part.stop().await?;
    let seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
    for what in seen.twice.iter().chain(&seen.lost) {
        eprintln!("{what}");
    }
    let what = format!(
        "6: {} sandboxes, {} callers, gateway killed {} times, of these {} beside its successor, watches 1 s late, doubled, out of order",
        scale.sandboxes,
        scale.callers,
        scale.kills,
        scale.kills / 2
    );
    let none = |figure: &str, count: usize, unit: &'static str| {
        Row::new(format!("{what}: {figure}"), Some(count as f64), unit, Some("<= 0"))
    };
    Ok(vec![
        none("sandboxes given to two", seen.twice.len(), "sandboxes"),
        none("leases lost", seen.lost.len(), "leases"),
        none(
            "pods more than the pool may have, at any time",
            most.load(Ordering::Relaxed).saturating_sub(scale.sandboxes),
            "pods",
        ),
        none("pods left over at the end", left, "pods"),
        Row::new(
            format!("{what}: leases given"),
            Some(seen.leases as f64),
            "leases",
            None,
        ),
    ])
}

/// Kills the gateway, and starts another one after it has ended.
async fn replaced(
    mut before: Gateway,
    begin: &impl Fn() -> Result<Gateway, SandboxBenchError>,
    gateways: &GatewayList,
) -> Result<Gateway, SandboxBenchError> {
    before.part.kill().await?;
    let mut next = begin()?;
    gateways.set(vec![next.caller.clone()]);
    next.serves().await?;
    Ok(next)
}

/// Starts a second gateway beside the first, and callers call both for a while. The ledger shows the first that it no
/// longer owns the pool.
async fn met(
    mut before: Gateway,
    begin: &impl Fn() -> Result<Gateway, SandboxBenchError>,
    gateways: &GatewayList,
    millis: u64,
) -> Result<Gateway, SandboxBenchError> {
    let mut next = begin()?;
    gateways.set(vec![before.caller.clone(), next.caller.clone()]);
    next.serves().await?;
    tokio::time::sleep(Duration::from_millis(millis)).await;
    gateways.set(vec![next.caller.clone()]);
    before.part.kill().await?;
    Ok(next)
}

/// One caller: takes a lease, holds it for a while, releases it.
async fn come_and_go(
    number: usize,
    gateways: &GatewayList,
    seen: &Mutex<LeaseObservations>,
    is_over: &AtomicBool,
) -> Result<(), SandboxBenchError> {
    let mut random = StdRng::seed_from_u64(number as u64);
    let seen = || seen.lock().unwrap_or_else(PoisonError::into_inner);
    for turn in 0.. {
        if is_over.load(Ordering::Relaxed) {
            break;
        }
        let id = format!("chaos-{number}-{turn}");
        let request = LeaseRequest {
            id: id.clone(),
            run: RUN.into(),
            image: IMAGE.into(),
            ttl_seconds: 3600,
            wait_seconds: 20,
            priority: Priority::Agent,
        };
        let body = serde_json::to_vec(&request).unwrap_or_default();
        let (_, answer) = insist(gateways, &mut random, Method::POST, "/v1/leases", &body, &[]).await?;
        let lease: Lease = read(&answer.into())?;
        {
            let mut seen = seen();
            seen.leases += 1;
            let holder = seen.given.insert(lease.sandbox.clone(), id.clone());
            if let Some(holder) = holder.filter(|holder| *holder != id) {
                seen.twice
                    .push(format!("{} was given to {holder} and to {id}", lease.sandbox));
            }
        }
        tokio::time::sleep(Duration::from_millis(random.random_range(0..300))).await;
        let path = format!("/v1/leases/{id}");
        let gone = [StatusCode::NOT_FOUND, StatusCode::GONE];
        let (held, answer) = insist(gateways, &mut random, Method::GET, &path, b"null", &gone).await?;
        if !held.is_success() {
            let why = String::from_utf8_lossy(&answer).into_owned();
            seen().lost.push(format!("{id} in {} was lost: {why}", lease.sandbox));
        }
        insist(gateways, &mut random, Method::DELETE, &path, b"", &gone).await?;
    }
    Ok(())
}

/// Calls a random gateway repeatedly, until one returns success or one of the final statuses.
async fn insist(
    gateways: &GatewayList,
    random: &mut StdRng,
    method: Method,
    path: &str,
    body: &[u8],
    ends: &[StatusCode],
) -> Result<(StatusCode, Vec<u8>), SandboxBenchError> {
    let began = Instant::now();
    loop {
        let what = match gateways.any(random) {
            None => "there is no gateway".to_owned(),
            Some(door) => match door.send(method.clone(), path, body.to_vec().into()).await {
                Ok((status, answer)) if status.is_success() || ends.contains(&status) => {
                    return Ok((status, answer.to_vec()));
                }
                Ok((status, answer)) => format!("{status}: {}", String::from_utf8_lossy(&answer)),
                Err(error) => error.to_string(),
            },
        };
        if began.elapsed() > PATIENCE {
            let doing = format!("{method} {path} for {PATIENCE:?}");
            return Err(SandboxBenchError::Call { doing, what });
        }
        tokio::time::sleep(Duration::from_millis(random.random_range(10..50))).await;
    }
}

/// Keeps the largest number of pods that existed at one time and were not being deleted.
async fn count_pods(pods: Api<Pod>, most: Arc<AtomicUsize>) {
    let mut events = std::pin::pin!(watcher(pods, watcher::Config::default().labels(SANDBOXES)));
    let mut there = HashSet::new();
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Apply(pod) | Event::InitApply(pod)) => {
                let name = pod.metadata.name.unwrap_or_default();
                match pod.metadata.deletion_timestamp {
                    None => there.insert(name),
                    Some(_) => there.remove(&name),
                };
            }
            Ok(Event::Delete(pod)) => {
                there.remove(&pod.metadata.name.unwrap_or_default());
            }
            Ok(Event::Init | Event::InitDone) | Err(_) => {}
        }
        most.fetch_max(there.len(), Ordering::Relaxed);
    }
}

/// Surplus pods, once no deletion is under way, or after a deadline.
async fn settled(rig: &Rig, sandboxes: usize) -> Result<usize, SandboxBenchError> {
    let (pods, began) = (rig.pods(&rig.admin), Instant::now());
    let wanted = ListParams::default().labels(SANDBOXES);
    loop {
        let all = pods.list_metadata(&wanted).await.map_err(api("listing", "pods"))?.items;
        let left = all.len().saturating_sub(sandboxes);
        if left == 0 || began.elapsed() > PATIENCE {
            return Ok(left);
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}
