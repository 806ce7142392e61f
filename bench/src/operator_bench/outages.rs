//! Figure 7: the API server stops, the operator is killed, two operators run at once. No object may be recreated, lost
//! or doubled.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use grpo_crds::GrpoRun;
use k8s_openapi::api::{coordination::v1::Lease, core::v1::Pod};
use kube::api::{Api, ListParams};
use nix::sys::signal::Signal;

use super::{
    RigError,
    fleet::{Fleet, Place, launch},
    rig::{LEASE, Operator, Rig, SYSTEM, kinds, uids, until},
};
use grpo_bench_report::Row;
use grpo_testing::cluster::api;
use grpo_testing::control_plane::{
    OPERATORS,
    audit::{Audit, Request},
};

/// The number and length of the outages.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    pub runs: usize,
    pub api_server_gone: Duration,
    pub kills: usize,
    pub frozen: Duration,
    pub patience: Duration,
    /// Time that a takeover may take in addition to the lease's. More than the bar's second where other tests use the
    /// machine too.
    pub slack: f64,
}

impl Scale {
    pub const FULL: Self = Self {
        runs: 20,
        api_server_gone: Duration::from_secs(60),
        kills: 20,
        frozen: Duration::from_secs(30),
        patience: Duration::from_secs(240),
        slack: 1.0,
    };
    pub const SHORT: Self = Self {
        runs: 5,
        api_server_gone: Duration::from_secs(10),
        kills: 3,
        frozen: Duration::from_secs(20),
        patience: Duration::from_secs(300),
        // A replica that gives its lease back is still replaced earlier than one that is killed.
        slack: 10.0,
    };
}

/// A replica that does not give its lease back is replaced after this time: see the operator's module `lease`.
const LEASE_SECONDS: f64 = 15.0;
/// A run has a driver and two trainers, an engine and a gateway.
const PODS_OF_A_RUN: usize = 5;

/// Uids by kind, namespace and name.
type Uids = BTreeMap<String, String>;

/// Measures everything in sequence, on one control plane.
pub async fn measure(scale: Scale) -> Result<Vec<Row>, RigError> {
    let mut rig = Rig::start().await?;
    let launched_later = scale.kills + 2;
    let all = Fleet::prepare(&rig, scale.runs + launched_later).await?;
    let (first, later) = all.runs.split_at(scale.runs);
    let mut fleet = Fleet { runs: first.to_vec() };
    let mut later = later.iter().cloned();
    let mut operator = rig.operator(0)?;
    fleet.launch(&rig, scale.patience).await?;

    let mut rows = Vec::new();
    rows.extend(api_server_gone(scale, &mut rig, &fleet).await?);
    rows.extend(killed(scale, &rig, &mut fleet, &mut later, &mut operator).await?);
    rows.extend(two(scale, &rig, &mut fleet, &mut later, operator).await?);
    for row in &mut rows {
        row.figure = format!("7: {}", row.figure);
    }
    Ok(rows)
}

fn say(what: &str) {
    eprintln!("    {what}");
}

/// Counts objects that were recreated under their name, or are gone.
fn recreated_or_lost(before: &Uids, after: &Uids) -> usize {
    let changed: Vec<&String> = before
        .iter()
        .filter(|(name, uid)| after.get(*name) != Some(uid))
        .map(|(name, _)| name)
        .collect();
    if !changed.is_empty() {
        say(&format!("recreated or lost: {changed:?}"));
    }
    changed.len()
}

/// Counts runs with too many or too few pods, and pod groups that are not in their first attempt.
async fn amiss(rig: &Rig, fleet: &Fleet) -> Result<usize, RigError> {
    let pods: Api<Pod> = Api::all(rig.admin.clone());
    let pods = pods
        .list_metadata(&ListParams::default())
        .await
        .map_err(api("listing", "pods"))?;
    let mut of_run: BTreeMap<Place, usize> = BTreeMap::new();
    for pod in &pods.items {
        let labels = pod.metadata.labels.clone().unwrap_or_default();
        let place = Place {
            namespace: pod.metadata.namespace.clone().unwrap_or_default(),
            name: labels.get("grpo.dev/run").cloned().unwrap_or_default(),
        };
        *of_run.entry(place).or_default() += 1;
    }
    let mut amiss = fleet
        .runs
        .iter()
        .filter(|run| of_run.get(run) != Some(&PODS_OF_A_RUN))
        .count();
    let runs: Api<GrpoRun> = Api::all(rig.admin.clone());
    for run in runs
        .list(&ListParams::default())
        .await
        .map_err(api("listing", "GrpoRuns"))?
    {
        let attempts = run.status.and_then(|status| status.attempts).unwrap_or_default();
        amiss += usize::from(attempts.driver.current != 1) + usize::from(attempts.trainer.current != 1);
    }
    if amiss > 0 {
        say(&format!("pods by run: {of_run:?}"));
    }
    Ok(amiss)
}

async fn everything(rig: &Rig) -> Result<Uids, RigError> {
    uids(&rig.admin, &kinds()).await
}

async fn api_server_gone(scale: Scale, rig: &mut Rig, fleet: &Fleet) -> Result<Vec<Row>, RigError> {
    let before = everything(rig).await?;
    rig.plane.stop_apiserver().await?;
    tokio::time::sleep(scale.api_server_gone).await;
    rig.plane.start_apiserver().await?;
    let back = Instant::now();
    // The operator works again when it recreates a deleted child.
    let begun = probe(rig, fleet, scale.patience).await?;
    say(&format!(
        "at work again {begun:?} after the API server, all seen {:?} after",
        back.elapsed()
    ));
    let after = everything(rig).await?;
    let probed = fleet.runs.first().map(probed).unwrap_or_default();
    let before = before.into_iter().filter(|(name, _)| *name != probed).collect();
    let seconds = scale.api_server_gone.as_secs();
    Ok(vec![
        Row::new(
            format!("objects recreated or lost, API server gone for {seconds} s"),
            Some((recreated_or_lost(&before, &after) + amiss(rig, fleet).await?) as f64),
            "objects",
            Some("= 0"),
        ),
        Row::new(
            "until the operator works again after the API server does",
            Some(begun.as_secs_f64()),
            "s",
            None,
        ),
    ])
}

fn probed(run: &Place) -> String {
    format!("Service {}/{}-driver", run.namespace, run.name)
}

/// Deletes a Service of the first run, and returns the time until the operator has recreated it.
async fn probe(rig: &Rig, fleet: &Fleet, limit: Duration) -> Result<Duration, RigError> {
    use k8s_openapi::api::core::v1::Service;
    let Some(run) = fleet.runs.first() else {
        return Ok(Duration::ZERO);
    };
    let services: Api<Service> = Api::namespaced(rig.admin.clone(), &run.namespace);
    let name = format!("{}-driver", run.name);
    services
        .delete(&name, &Default::default())
        .await
        .map_err(api("deleting service", &name))?;
    let begun = Instant::now();
    until(limit, "the operator to make a deleted Service again", async || {
        let there = services.get_opt(&name).await.map_err(api("reading service", &name))?;
        Ok(there.map_or_else(|| Err("no service".into()), |_| Ok(())))
    })
    .await?;
    Ok(begun.elapsed())
}

/// Kills the operator repeatedly, each time while a new run starts, and restarts it as a Deployment would.
async fn killed(
    scale: Scale,
    rig: &Rig,
    fleet: &mut Fleet,
    later: &mut impl Iterator<Item = Place>,
    operator: &mut Operator,
) -> Result<Vec<Row>, RigError> {
    let before = everything(rig).await?;
    let mut made_twice = 0;
    let mut watcher = rig.plane.audit();
    watcher.fresh()?;
    for kill in 0..scale.kills {
        let Some(run) = later.next() else { break };
        launch(&rig.admin, &run).await?;
        fleet.runs.push(run);
        // Later with every kill: before any object of the run exists, then in the middle, then after the last one.
        tokio::time::sleep(Duration::from_millis(1500 * kill as u64 / scale.kills as u64)).await;
        operator.part.kill().await?;
        operator.part.again()?;
        fleet.running(&rig.admin, scale.patience).await?;
    }
    for (what, count) in created(&watcher.fresh()?, &OPERATORS) {
        if count > 1 {
            say(&format!("{what} was made {count} times"));
            made_twice += count - 1;
        }
    }
    let after = everything(rig).await?;
    Ok(vec![
        Row::new(
            format!("objects recreated or lost, operator killed {} times", scale.kills),
            Some((recreated_or_lost(&before, &after) + amiss(rig, fleet).await?) as f64),
            "objects",
            Some("= 0"),
        ),
        Row::new(
            "objects made twice meanwhile",
            Some(made_twice as f64),
            "objects",
            Some("= 0"),
        ),
    ])
}

/// The number of successful creations of each of our objects.
fn created(requests: &[Request], by: &[&str]) -> BTreeMap<String, usize> {
    let mut count = BTreeMap::new();
    let made = requests
        .iter()
        .filter(|r| by.contains(&r.by.as_str()) && r.code == 201 && r.resource != "events");
    for request in made {
        let name = format!("{} {}/{}", request.resource, request.namespace, request.name);
        *count.entry(name).or_default() += 1;
    }
    count
}

/// Two operators, one waiting: it takes over from a killed one, from one that ends regularly, and from one that is
/// frozen and continues later.
async fn two(
    scale: Scale,
    rig: &Rig,
    fleet: &mut Fleet,
    later: &mut impl Iterator<Item = Place>,
    first: Operator,
) -> Result<Vec<Row>, RigError> {
    let before = everything(rig).await?;
    let mut audit = rig.plane.audit();
    let (mut a, mut b) = (first, rig.operator(1)?);
    serves(rig, &b, scale.patience).await?;

    audit.fresh()?;
    let killed = Instant::now();
    a.part.kill().await?;
    let run = later.next();
    if let Some(run) = &run {
        launch(&rig.admin, run).await?;
        fleet.runs.push(run.clone());
    }
    holds(rig, &b, scale.patience).await?;
    let taken_over = killed.elapsed();
    fleet.running(&rig.admin, scale.patience).await?;
    say(&format!(
        "taken over after {taken_over:?}, the new run runs after {:?}",
        killed.elapsed()
    ));

    a.part.again()?;
    serves(rig, &a, scale.patience).await?;
    let told = Instant::now();
    b.part.stop().await?;
    holds(rig, &a, scale.patience).await?;
    let handed_over = told.elapsed();

    b.part.again()?;
    serves(rig, &b, scale.patience).await?;
    // A request that is already under way leaves the process when it continues. The operator cannot recall it, and it
    // carries out an earlier decision only. So the test freezes the operator when it has no more writes to send.
    says_nothing(&mut audit, &a, scale.patience).await?;
    a.part.send(Signal::SIGSTOP)?;
    holds(rig, &b, scale.patience + scale.frozen).await?;
    audit.fresh()?;
    if let Some(run) = later.next() {
        launch(&rig.admin, &run).await?;
        fleet.runs.push(run);
    }
    // It continues while the other operator is working.
    a.part.send(Signal::SIGCONT)?;
    fleet.running(&rig.admin, scale.patience).await?;
    let woken: Vec<Request> = audit
        .fresh()?
        .into_iter()
        .filter(|r| r.by == a.account && r.is_write() && !r.is_heartbeat())
        .collect();
    if let Some(write) = woken.first() {
        say(&format!("the woken operator wrote: {write:?}"));
    }

    let after = everything(rig).await?;
    Ok(vec![
        Row::new(
            "takeover from a killed operator",
            Some(taken_over.as_secs_f64()),
            "s",
            Some(&format!("<= {}", LEASE_SECONDS + scale.slack)),
        ),
        Row::new(
            "takeover from one that is told to end",
            Some(handed_over.as_secs_f64()),
            "s",
            Some(&format!("<= {}", 1.0 + scale.slack)),
        ),
        Row::new(
            "writes of an operator that was frozen, after the other took over",
            Some(woken.len() as f64),
            "requests",
            Some("= 0"),
        ),
        Row::new(
            "objects recreated or lost, two operators",
            Some((recreated_or_lost(&before, &after) + amiss(rig, fleet).await?) as f64),
            "objects",
            Some("= 0"),
        ),
    ])
}

/// Waits until an operator has sent no write for a while.
async fn says_nothing(audit: &mut Audit, operator: &Operator, limit: Duration) -> Result<(), RigError> {
    audit.fresh()?;
    let (begun, while_quiet) = (Instant::now(), Duration::from_millis(1500));
    loop {
        tokio::time::sleep(while_quiet).await;
        let by_it = |r: &Request| r.by == operator.account && r.is_write() && !r.is_heartbeat();
        let Some(write) = audit.fresh()?.into_iter().find(by_it) else {
            return Ok(());
        };
        if begun.elapsed() > limit {
            return Err(RigError::Never {
                what: "an operator to have written all".to_owned(),
                limit,
                there: format!("{write:?}"),
            });
        }
    }
}

/// Waits until an operator process answers, with or without the lease.
async fn serves(rig: &Rig, operator: &Operator, limit: Duration) -> Result<(), RigError> {
    until(limit, "an operator to serve its metrics", async || {
        let leads = rig.metric(operator, "grpo_operator_leader").await;
        Ok(leads.map_or_else(|| Err("no answer".into()), |_| Ok(())))
    })
    .await
}

/// Waits until an operator holds the lease.
async fn holds(rig: &Rig, operator: &Operator, limit: Duration) -> Result<(), RigError> {
    let leases: Api<Lease> = Api::namespaced(rig.admin.clone(), SYSTEM);
    until(limit, "the lease to be taken over", async || {
        let lease = leases.get(LEASE).await.map_err(api("reading lease", LEASE))?;
        let holder = lease.spec.and_then(|spec| spec.holder_identity).unwrap_or_default();
        Ok(if holder == operator.account {
            Ok(())
        } else {
            Err(holder)
        })
    })
    .await
}

#[cfg(test)]
mod tests;
