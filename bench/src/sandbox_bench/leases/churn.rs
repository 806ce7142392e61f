//! Leases that are taken and released without a pause.

use std::time::{Duration, Instant};

use futures::future::try_join_all;
use grpo_bench_report::Row;
use grpo_testing::control_plane::{GATEWAY, audit::Audit};

use super::{Scale, bare::bare_churn, emptied, name, priority, writes};
use crate::sandbox_bench::{
    SandboxBenchError,
    caller::Caller,
    median, percentile,
    rig::{Gateway, Rig},
};

/// The results of such leases, window by window.
#[derive(Default)]
pub struct Churned {
    rates: Vec<f64>,
    shares: Vec<f64>,
    bare: Vec<f64>,
    waits: Vec<Duration>,
    leases: usize,
    ledger_writes: usize,
    pods_made: usize,
    processor: f64,
}

impl Churned {
    /// Whether sandboxes were reused, instead of a new pod for each lease.
    fn is_used_again(&self) -> bool {
        self.pods_made * 4 < self.leases
    }
}

pub fn churn_rows(scale: Scale, new_pods: &Churned, used_again: &Churned) -> Vec<Row> {
    let seconds = scale.churn.as_secs();
    let callers = format!("leases that come and go for {seconds} s, {} callers", scale.callers);
    let mut rows = Vec::new();
    for (churned, how, is_reset) in [
        (used_again, "sandboxes reset and used again", true),
        (new_pods, "a pod made and deleted for each", false),
    ] {
        let what = format!("3: {callers}, {how}");
        let bar = |bar: &'static str| is_reset.then_some(bar);
        // A gateway that cannot reset creates pods here too.
        let is_it = churned.is_used_again() || !is_reset;
        let value = |value: Option<f64>| value.filter(|_| is_it);
        let mut waits = churned.waits.clone();
        let mut rate = Row::new(
            what.clone(),
            value(median(churned.rates.clone())),
            "leases/s",
            bar(">= 1000"),
        );
        rate.peer = Some("bare client, the same ledger writes".to_owned());
        rate.peer_value = value(median(churned.bare.clone())).map(f64::round);
        let leases = churned.leases as f64;
        rows.extend([
            rate,
            Row::new(
                format!("{what}: of the bare client"),
                value(median(churned.shares.clone())),
                "%",
                bar(">= 90"),
            ),
            Row::new(
                format!("{what}: the gateway's processor time per lease"),
                value(Some(churned.processor * 1e3 / leases)),
                "ms",
                None,
            ),
            Row::new(format!("{what}: p50"), value(percentile(&mut waits, 50.0)), "ms", None),
            Row::new(format!("{what}: p99"), value(percentile(&mut waits, 99.0)), "ms", None),
            Row::new(
                format!("4: ledger writes per lease and its end, {how}"),
                value(Some(churned.ledger_writes as f64 / leases)),
                "writes",
                Some("<= 1").filter(|_| is_it),
            ),
            Row::new(
                format!("4: pods made per lease, {how}"),
                value(Some(churned.pods_made as f64 / leases)),
                "pods",
                None,
            ),
        ]);
    }
    rows
}

/// Takes and releases leases, alternating with the bare client's writes.
pub async fn churned(
    rig: &Rig,
    gateway: &mut Gateway,
    audit: &mut Audit,
    scale: Scale,
    which: usize,
) -> Result<Churned, SandboxBenchError> {
    let mut all = Churned::default();
    for window in 0..scale.windows {
        gateway.until_ready(scale.sandboxes).await?;
        audit.fresh()?;
        let before = gateway.part.processor_seconds();
        let length = scale.churn / scale.windows as u32;
        let waits = churn(&gateway.caller, scale.callers, length, &format!("c{which}-{window}")).await?;
        all.processor += gateway
            .part
            .processor_seconds()
            .zip(before)
            .map_or(0.0, |(now, before)| now - before);
        emptied(rig).await?;
        let requests = audit.fresh()?;
        let ledger = writes(&requests, "configmaps");
        let made = requests
            .iter()
            .filter(|request| request.by == GATEWAY && request.verb == "create");
        all.pods_made += made.filter(|request| request.resource == "pods").count();
        let leases = waits.len();
        let rate = leases as f64 / length.as_secs_f64();
        let bare = bare_churn(
            rig,
            leases.div_ceil(ledger.max(1)),
            scale.callers,
            length / 2,
            which * 100 + window,
        )
        .await?;
        all.rates.push(rate);
        all.bare.push(bare);
        all.shares.push(100.0 * rate / bare);
        all.leases += leases;
        all.ledger_writes += ledger;
        all.waits.extend(waits);
    }
    Ok(all)
}

/// Callers that take a lease, release it and take another. Returns their waiting times.
async fn churn(
    caller: &Caller,
    callers: usize,
    length: Duration,
    round: &str,
) -> Result<Vec<Duration>, SandboxBenchError> {
    let began = Instant::now();
    let callers = (0..callers).map(|number| {
        let (caller, round) = (caller.clone(), format!("{round}-{number}"));
        tokio::spawn(async move {
            let mut waits = Vec::new();
            while began.elapsed() < length {
                let name = name(&round, waits.len());
                let asked = Instant::now();
                caller.lease(&name, priority(number)).await?;
                waits.push(asked.elapsed());
                caller.release(&name).await?;
            }
            Ok::<_, SandboxBenchError>(waits)
        })
    });
    let mut waits = Vec::new();
    for caller in try_join_all(callers).await? {
        waits.extend(caller?);
    }
    Ok(waits)
}
