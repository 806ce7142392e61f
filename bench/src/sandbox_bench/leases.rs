//! Figures 3 and 4: leases per second that are durable before they are granted, and the API server writes for each.

mod bare;
mod churn;

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use futures::{StreamExt, TryStreamExt, future::try_join_all, stream};
use grpo_sandbox_protocol::Priority;
use serde_json::json;

use super::{
    SandboxBenchError,
    caller::{Caller, RUN},
    median, percentile,
    rig::{Gateway, Rig},
};
use bare::{WRITERS, bare};
use churn::{churn_rows, churned};
use grpo_bench_report::Row;
use grpo_testing::cluster::api;
use grpo_testing::control_plane::{
    GATEWAY,
    audit::{Audit, Request},
};

/// Leases that are requested at the same moment.
const AT_ONCE: usize = 300;

/// The size of the measurement.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    pub sandboxes: usize,
    /// Callers that request the next lease as soon as they have an answer.
    pub callers: usize,
    /// Rounds with `callers` callers, and with these.
    pub rounds: usize,
    pub fewer_callers: &'static [usize],
    /// Leases taken one at a time, with no concurrent lease.
    pub alone: usize,
    /// The time for which leases are taken and released without a pause, in windows beside which the bare client is
    /// measured.
    pub churn: Duration,
    pub windows: usize,
}

impl Scale {
    pub const FULL: Self = Self {
        sandboxes: 2000,
        callers: 256,
        rounds: 5,
        fewer_callers: &[64, 16],
        alone: 20,
        churn: Duration::from_secs(60),
        windows: 6,
    };
    pub const SHORT: Self = Self {
        sandboxes: 300,
        callers: 128,
        rounds: 1,
        fewer_callers: &[],
        alone: 2,
        churn: Duration::from_secs(3),
        windows: 1,
    };
}

/// One round of the gateway, and of the bare client beside it.
struct Round {
    leases: f64,
    bare: f64,
    wait: Option<f64>,
    slowest: Option<f64>,
    writes_per_lease: f64,
    /// The gateway's processor time, in milliseconds per lease.
    processor: Option<f64>,
}

pub async fn measure(scale: Scale) -> Result<Vec<Row>, SandboxBenchError> {
    let rig = Rig::start(scale.sandboxes).await?;
    let mut audit = rig.plane.audit();
    let mut gateway = rig.gateway()?;
    gateway.serves().await?;
    gateway.caller.want(scale.sandboxes).await?;
    gateway.until_ready(scale.sandboxes).await?;
    let at_once = all_at_once(&mut gateway, scale).await?;
    let mut rounds = Vec::new();
    let mut number = 0;
    for callers in [scale.callers].iter().chain(scale.fewer_callers) {
        let mut of_so_many = Vec::new();
        for _ in 0..scale.rounds {
            gateway.until_ready(scale.sandboxes).await?;
            of_so_many.push(round(&rig, &gateway, &mut audit, scale.sandboxes, *callers, number).await?);
            number += 1;
        }
        rounds.push((*callers, of_so_many));
    }
    gateway.until_ready(scale.sandboxes).await?;
    gone(&rig, scale.sandboxes).await?;
    let alone = alone(&rig, &gateway, &mut audit, scale.alone).await?;
    let new_pods = churned(&rig, &mut gateway, &mut audit, scale, 0).await?;
    gateway.part.stop().await?;
    rig.write_spec(&json!({"reset": "ContainerRestart"}))?;
    let mut gateway = rig.gateway()?;
    gateway.serves().await?;
    gateway.caller.want(scale.sandboxes).await?;
    gateway.until_ready(scale.sandboxes).await?;
    gone(&rig, scale.sandboxes).await?;
    let used_again = churned(&rig, &mut gateway, &mut audit, scale, 1).await?;
    let (believed, refused) = rig.binds();
    if refused > 0 {
        let what = format!("{refused} binds of {} were wrong", believed + refused);
        return Err(SandboxBenchError::Wrong(what));
    }
    let mut rows = vec![Row::new(
        format!("3: {AT_ONCE} leases asked for at once, all there after"),
        median(at_once),
        "ms",
        Some("<= 300"),
    )];
    for (callers, rounds) in &rounds {
        rows.extend(burst_rows(scale, *callers, rounds));
    }
    rows.extend(churn_rows(scale, &new_pods, &used_again));
    rows.push(Row::new(
        "4: ledger writes of a lease alone and its end, at most",
        Some(alone.ledger),
        "writes",
        Some("<= 3"),
    ));
    rows.push(Row::new(
        "4: writes of a pod's life by the gateway, per lease alone",
        Some(alone.pods),
        "writes",
        None,
    ));
    Ok(rows)
}

fn burst_rows(scale: Scale, callers: usize, rounds: &[Round]) -> Vec<Row> {
    let of = |value: fn(&Round) -> Option<f64>| median(rounds.iter().filter_map(value).collect());
    let is_main = callers == scale.callers;
    let bar = |bar: &'static str| is_main.then_some(bar);
    let what = format!(
        "{} warm sandboxes leased, durable, by {callers} callers",
        scale.sandboxes
    );
    let burst = format!("3: {what}");
    let mut leased = Row::new(burst.clone(), of(|r| Some(r.leases)), "leases/s", bar(">= 1000"));
    leased.peer = Some(format!(
        "bare client, the same leases in as many ledger writes, {WRITERS} at a time"
    ));
    leased.peer_value = of(|r| Some(r.bare.round()));
    vec![
        leased,
        Row::new(
            format!("{burst}: of the bare client"),
            of(|r| Some(100.0 * r.leases / r.bare)),
            "%",
            None,
        ),
        Row::new(
            format!("{burst}: the gateway's processor time per lease"),
            of(|r| r.processor),
            "ms",
            None,
        ),
        Row::new(format!("{burst}: p50"), of(|r| r.wait), "ms", None),
        Row::new(format!("{burst}: p99"), of(|r| r.slowest), "ms", None),
        Row::new(
            format!("4: ledger writes per lease and its end, {what}"),
            of(|r| Some(r.writes_per_lease)),
            "writes",
            bar("<= 1"),
        ),
    ]
}

fn name(round: &str, number: usize) -> String {
    format!("{RUN}-{round}-{number}")
}

/// Every fourth lease is a grader's: agents leave graders a quarter of the pool.
fn priority(number: usize) -> Priority {
    match number % 4 {
        0 => Priority::Grader,
        _ => Priority::Agent,
    }
}

/// Milliseconds until the last of [`AT_ONCE`] leases is granted, several times.
async fn all_at_once(gateway: &mut Gateway, scale: Scale) -> Result<Vec<f64>, SandboxBenchError> {
    let count = AT_ONCE.min(scale.sandboxes / 2);
    let mut took = Vec::new();
    for round in 0..scale.rounds.max(3) {
        let tries = scale.sandboxes / count;
        if round % tries == 0 {
            gateway.until_ready(scale.sandboxes).await?;
        }
        let names: Vec<String> = (0..count).map(|number| name(&format!("once{round}"), number)).collect();
        let began = Instant::now();
        try_join_all(
            names
                .iter()
                .enumerate()
                .map(|(number, name)| gateway.caller.lease(name, priority(number))),
        )
        .await?;
        took.push(began.elapsed().as_secs_f64() * 1e3);
        release(&gateway.caller, &names).await?;
    }
    Ok(took)
}

async fn release(caller: &Caller, names: &[String]) -> Result<(), SandboxBenchError> {
    stream::iter(names)
        .map(|name| caller.release(name))
        .buffer_unordered(32)
        .try_for_each(async |()| Ok(()))
        .await
}

/// Leases all sandboxes as fast as possible, then releases them.
async fn round(
    rig: &Rig,
    gateway: &Gateway,
    audit: &mut Audit,
    sandboxes: usize,
    callers: usize,
    number: usize,
) -> Result<Round, SandboxBenchError> {
    audit.fresh()?;
    let names: Vec<String> = (0..sandboxes).map(|lease| name(&format!("r{number}"), lease)).collect();
    let caller = &gateway.caller;
    let (began, processor) = (Instant::now(), gateway.part.processor_seconds());
    let mut waits: Vec<Duration> = stream::iter(names.iter().enumerate())
        .map(async |(number, name)| {
            let asked = Instant::now();
            caller.lease(name, priority(number)).await.map(|_| asked.elapsed())
        })
        .buffer_unordered(callers)
        .try_collect()
        .await?;
    let leases = names.len() as f64 / began.elapsed().as_secs_f64();
    let used = gateway
        .part
        .processor_seconds()
        .zip(processor)
        .map(|(now, before)| now - before);
    let to_lease = writes(&audit.fresh()?, "configmaps");
    let bare = bare(rig, names.len(), to_lease, number).await?;
    release(caller, &names).await?;
    emptied(rig).await?;
    let to_end = writes(&audit.fresh()?, "configmaps");
    Ok(Round {
        leases,
        bare,
        wait: percentile(&mut waits, 50.0),
        slowest: percentile(&mut waits, 99.0),
        writes_per_lease: (to_lease + to_end) as f64 / names.len() as f64,
        processor: used.map(|seconds| seconds * 1e3 / names.len() as f64),
    })
}

/// The gateway's requests that changed an object of this kind.
fn writes(requests: &[Request], resource: &str) -> usize {
    let own = requests
        .iter()
        .filter(|request| request.by == GATEWAY && request.is_write());
    own.filter(|request| request.resource == resource).count()
}

/// Waits until the ledger is empty.
async fn emptied(rig: &Rig) -> Result<(), SandboxBenchError> {
    let maps = rig.maps(&rig.admin);
    loop {
        let all = maps
            .list(&Default::default())
            .await
            .map_err(api("listing", "ConfigMaps"))?;
        let of_the_ledger = |name: &Option<String>| name.as_deref().is_some_and(|name| name.starts_with("ledger-"));
        let mut ledger = all.iter().filter(|map| of_the_ledger(&map.metadata.name));
        if ledger.all(|map| map.data.as_ref().is_none_or(BTreeMap::is_empty)) {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Waits until no surplus pod is left: deletions are requested again as long as a pod exists.
async fn gone(rig: &Rig, sandboxes: usize) -> Result<(), SandboxBenchError> {
    let pods = rig.pods(&rig.admin);
    while pods
        .list_metadata(&Default::default())
        .await
        .map_err(api("listing", "pods"))?
        .items
        .len()
        > sandboxes
    {
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    Ok(())
}

struct Alone {
    ledger: f64,
    pods: f64,
}

/// Takes leases one after another; each is released and forgotten before the next is requested.
async fn alone(rig: &Rig, gateway: &Gateway, audit: &mut Audit, count: usize) -> Result<Alone, SandboxBenchError> {
    let (mut ledger, mut pods) = (0, 0);
    for number in 0..count {
        audit.fresh()?;
        let name = name("alone", number);
        gateway.caller.lease(&name, Priority::Agent).await?;
        gateway.caller.release(&name).await?;
        emptied(rig).await?;
        let requests = audit.fresh()?;
        ledger = ledger.max(writes(&requests, "configmaps"));
        pods += writes(&requests, "pods");
    }
    Ok(Alone {
        ledger: ledger as f64,
        pods: pods as f64 / count as f64,
    })
}
