//! Figure 6: the operator's memory and processor time at scale, its requests while nothing happens, and its latency
//! when something does.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::{Duration, Instant},
};

use k8s_openapi::api::core::v1::Pod;
use kube::{
    Client,
    api::{Api, Patch, PatchParams},
};
use serde_json::{Value, json};
use tokio::{sync::Semaphore, task::JoinSet, time::MissedTickBehavior};

use super::{
    RigError,
    fleet::{Fleet, PODS_PER_RUN, Place, SANDBOXES, sandbox_name},
    rig::{Operator, Rig},
};
use grpo_bench_report::Row;
use grpo_testing::cluster::api;
use grpo_testing::control_plane::{
    ADMIN,
    audit::{Audit, Request},
};

/// The size of the measurement.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    pub runs: usize,
    pub idle: Duration,
    pub events_for: Duration,
    /// The rates, measured in sequence. Each run has an event only every few seconds: more would be answered together.
    /// An API server writes two or three times for each event. On few cores it cannot do that at the highest rate; the
    /// lower rates show the operator's own latency.
    pub events_per_second: &'static [u64],
    /// The fleet counts as settled after this long without a write by the operator.
    pub quiet: Duration,
    /// Deadline for starting everything, and for becoming quiet again.
    pub patience: Duration,
}

impl Scale {
    pub const FULL: Self = Self {
        runs: 1000,
        idle: Duration::from_secs(600),
        events_for: Duration::from_secs(60),
        events_per_second: &[25, 50, 200],
        quiet: Duration::from_secs(12),
        patience: Duration::from_secs(1800),
    };
    pub const SHORT: Self = Self {
        runs: 50,
        idle: Duration::from_secs(60),
        events_for: Duration::from_secs(5),
        events_per_second: &[10],
        quiet: Duration::from_secs(6),
        // On a slow machine beside two other tests, 32 of 50 runs were up after a minute.
        patience: Duration::from_secs(300),
    };
}

/// An event that has no answer after this long never gets one.
const ANSWERED_WITHIN: Duration = Duration::from_secs(10);
/// Concurrent requests of the client that causes the events.
const HANDS: usize = 32;

/// Measures everything in sequence, on one fleet.
pub async fn measure(scale: Scale) -> Result<Vec<Row>, RigError> {
    let mut rig = Rig::start().await?;
    let fleet = Fleet::prepare(&rig, scale.runs).await?;
    let mut audit = rig.plane.audit();
    let operator = rig.operator(0)?;
    let begun = Instant::now();
    fleet.launch(&rig, scale.patience).await?;
    say(&format!("{} runs run after {:?}", scale.runs, begun.elapsed()));
    fleet.sandboxes(&rig, scale.patience).await?;
    say(&format!(
        "{} pods after {:?}",
        scale.runs * PODS_PER_RUN,
        begun.elapsed()
    ));
    quiet(scale, &mut audit, &operator).await?;
    let mut rows = vec![Row::new(
        "most memory while the runs were brought up",
        operator.most_resident(),
        "MiB",
        None,
    )];
    rows.extend(idle(scale, &mut audit, &operator).await?);
    let mut first = 0;
    for rate in scale.events_per_second {
        let window = Window {
            first,
            count: (scale.events_for.as_secs() * rate) as usize,
            per_second: *rate,
        };
        first += window.count;
        rows.extend(events(scale, window, &rig, &fleet, &mut audit, &operator).await?);
        quiet(scale, &mut audit, &operator).await?;
    }
    rows.extend(relist(scale, &mut rig, &mut audit, &operator).await?);
    let what = format!("{} GrpoRuns, {} pods: ", scale.runs, scale.runs * PODS_PER_RUN);
    for row in &mut rows {
        row.figure = format!("6: {what}{}", row.figure);
    }
    Ok(rows)
}

fn say(what: &str) {
    eprintln!("    {what}");
}

/// Waits until the operator writes nothing but its lease.
async fn quiet(scale: Scale, audit: &mut Audit, operator: &Operator) -> Result<(), RigError> {
    let limit = scale.patience;
    let begun = Instant::now();
    let mut last = Instant::now();
    let mut busy = String::new();
    while last.elapsed() < scale.quiet {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let written: Vec<Request> = audit
            .fresh()?
            .into_iter()
            .filter(|request| is_work(request, operator))
            .collect();
        if let Some(one) = written.last() {
            last = Instant::now();
            busy = format!(
                "{} {}/{} {}/{}",
                one.verb, one.resource, one.subresource, one.namespace, one.name
            );
        }
        if begun.elapsed() > limit {
            return Err(RigError::Never {
                what: "the operator to have nothing to do".into(),
                limit,
                there: busy,
            });
        }
    }
    Ok(())
}

/// A write other than the renewal of the lease, which only shows that the operator lives.
fn is_work(request: &Request, operator: &Operator) -> bool {
    request.by == operator.account && request.is_write() && !request.is_heartbeat()
}

/// Measures the operator while nothing happens.
async fn idle(scale: Scale, audit: &mut Audit, operator: &Operator) -> Result<Vec<Row>, RigError> {
    audit.fresh()?;
    let before = operator.processor_seconds();
    let mut most: f64 = 0.0;
    let begun = Instant::now();
    while begun.elapsed() < scale.idle {
        tokio::time::sleep(Duration::from_secs(1)).await;
        most = most.max(operator.resident().unwrap_or(f64::INFINITY));
    }
    let used = operator
        .processor_seconds()
        .zip(before)
        .map(|(after, before)| after - before);
    let asked: Vec<Request> = audit
        .fresh()?
        .into_iter()
        .filter(|request| request.by == operator.account)
        .collect();
    let count =
        |counted: &dyn Fn(&Request) -> bool| Some(asked.iter().filter(|request| counted(request)).count() as f64);
    let minutes = scale.idle.as_secs() / 60;
    let in_minutes = |what: &str| format!("{what} in {minutes} idle minutes");
    show_kinds("idle", &asked);
    Ok(vec![
        Row::new("memory at rest", Some(most), "MiB", Some("<= 96")),
        Row::new(
            in_minutes("writes"),
            count(&|r| is_work(r, operator)),
            "requests",
            Some("= 0"),
        ),
        Row::new(
            in_minutes("lists"),
            count(&|r| r.verb == "list"),
            "requests",
            Some("= 0"),
        ),
        Row::new(
            in_minutes("renewals of the lease"),
            count(&|r| r.is_write() && r.is_heartbeat()),
            "requests",
            None,
        ),
        Row::new(
            in_minutes("gets"),
            count(&|r| r.verb == "get" && !r.is_heartbeat()),
            "requests",
            None,
        ),
        Row::new(
            "processor at rest",
            used.map(|used| 1000.0 * used / scale.idle.as_secs_f64()),
            "mcores",
            None,
        ),
    ])
}

/// Logs the requests of a window by kind, to explain an unexpected number.
fn show_kinds(window: &str, requests: &[Request]) {
    let mut kinds: BTreeMap<String, usize> = BTreeMap::new();
    for request in requests {
        *kinds
            .entry(format!("{} {}/{}", request.verb, request.resource, request.subresource))
            .or_default() += 1;
    }
    say(&format!("{window}: {kinds:?}"));
}

/// An event, and the write that it must cause.
struct Happening {
    pod: String,
    run: Place,
    /// Plural of the kind whose status shows it.
    shown_by: &'static str,
    change: Value,
}

/// Alternates between sandboxes and trainers: a counter of the pool changes, or the run stops running (and later runs
/// again).
fn happening(fleet: &Fleet, number: usize) -> Happening {
    let (run, round) = (&fleet.runs[number % fleet.runs.len()], number / fleet.runs.len());
    let well = round % 2 == 1;
    if number.is_multiple_of(2) {
        let status = if well { "True" } else { "False" };
        return Happening {
            pod: sandbox_name(&run.name, number % SANDBOXES),
            run: run.clone(),
            shown_by: "sandboxpools",
            change: json!({"status": {"conditions": [{"type": "Ready", "status": status}]}}),
        };
    }
    let state = if well {
        json!({"running": {}, "waiting": null})
    } else {
        json!({"running": null, "waiting": {"reason": "CreateContainerError", "message": "no such device"}})
    };
    Happening {
        pod: format!("{}-trainer-1-0", run.name),
        run: run.clone(),
        shown_by: "grporuns",
        change: json!({"status": {"containerStatuses": [{
            "name": "trainer", "image": "", "imageID": "", "ready": well, "restartCount": 0, "state": state,
        }]}}),
    }
}

/// The number and the rate of the events. Their numbers continue across windows, so that the next window repairs what
/// this one broke.
#[derive(Clone, Copy, Debug)]
struct Window {
    first: usize,
    count: usize,
    per_second: u64,
}

/// Causes events at a steady rate; the operator answers each with a status write.
async fn events(
    scale: Scale,
    window: Window,
    rig: &Rig,
    fleet: &Fleet,
    audit: &mut Audit,
    operator: &Operator,
) -> Result<Vec<Row>, RigError> {
    audit.fresh()?;
    let Window {
        first,
        count,
        per_second,
    } = window;
    let hands = Arc::new(Semaphore::new(HANDS));
    let mut clock = tokio::time::interval(Duration::from_micros(1_000_000 / per_second));
    clock.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let before = operator.processor_seconds();
    let (begun, mut working) = (Instant::now(), JoinSet::new());
    let mut expected: HashMap<(String, String), (Place, &'static str)> = HashMap::new();
    for number in first..first + count {
        clock.tick().await;
        let Ok(hand) = hands.clone().acquire_owned().await else {
            break;
        };
        let event = happening(fleet, number);
        expected.insert(
            (event.run.namespace.clone(), event.pod.clone()),
            (event.run.clone(), event.shown_by),
        );
        let client = rig.admin.clone();
        working.spawn(async move {
            let done = bring_about(&client, &event).await;
            drop(hand);
            done
        });
    }
    while let Some(done) = working.join_next().await {
        done??;
    }
    let (took, ended) = (begun.elapsed(), Instant::now());
    tokio::time::sleep(scale.quiet).await;
    let used = operator
        .processor_seconds()
        .zip(before)
        .map(|(after, before)| after - before);
    let mut requests = audit.fresh()?;
    let mut found = latencies(&requests, &expected, operator);
    while found.1 > 0 && ended.elapsed() < ANSWERED_WITHIN {
        tokio::time::sleep(Duration::from_millis(500)).await;
        requests.extend(audit.fresh()?);
        found = latencies(&requests, &expected, operator);
    }
    let own: Vec<Request> = requests.iter().filter(|r| r.by == operator.account).cloned().collect();
    show_kinds("events", &own);
    let (mut latencies, unanswered) = found;
    latencies.sort_by(f64::total_cmp);
    let rate = format!(">= {}", per_second * 97 / 100);
    let at_rate = |what: &str| format!("at {per_second} events/s: {what}");
    let at = |quantile: f64| {
        latencies
            .get(((latencies.len().max(1) - 1) as f64 * quantile).round() as usize)
            .copied()
    };
    say(&format!(
        "latency in ms: p50 {:?}, p90 {:?}, p99 {:?}, most {:?}",
        at(0.5),
        at(0.9),
        at(0.99),
        at(1.0)
    ));
    Ok(vec![
        Row::new(
            at_rate("events"),
            Some(count as f64 / took.as_secs_f64()),
            "events/s",
            Some(&rate),
        ),
        Row::new(at_rate("event to first write, p50"), at(0.5), "ms", None),
        Row::new(at_rate("event to first write, p99"), at(0.99), "ms", Some("<= 100")),
        Row::new(
            at_rate("events that no write followed"),
            Some(unanswered as f64),
            "events",
            Some("= 0"),
        ),
        Row::new(
            at_rate("memory after the events"),
            operator.resident(),
            "MiB",
            Some("<= 96"),
        ),
        Row::new(
            at_rate("processor during the events"),
            used.map(|used| 1000.0 * used / took.as_secs_f64()),
            "mcores",
            None,
        ),
    ])
}

async fn bring_about(client: &Client, event: &Happening) -> Result<(), RigError> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), &event.run.namespace);
    pods.patch_status(&event.pod, &PatchParams::default(), &Patch::Strategic(&event.change))
        .await
        .map_err(api("changing the status of pod", &event.pod))?;
    Ok(())
}

/// Milliseconds from the API server's answer to each event to its receipt of the operator's first write about it, and
/// the number of events without such a write.
fn latencies(
    requests: &[Request],
    expected: &HashMap<(String, String), (Place, &'static str)>,
    operator: &Operator,
) -> (Vec<f64>, usize) {
    let mut writes: HashMap<(&str, &str, &str), Vec<&Request>> = HashMap::new();
    for write in requests.iter().filter(|request| is_work(request, operator)) {
        writes
            .entry((&write.resource, &write.namespace, &write.name))
            .or_default()
            .push(write);
    }
    let (mut latencies, mut unanswered) = (Vec::new(), 0);
    for event in requests
        .iter()
        .filter(|r| r.by == ADMIN && r.resource == "pods" && r.subresource == "status")
    {
        let Some((run, shown_by)) = expected.get(&(event.namespace.clone(), event.name.clone())) else {
            continue;
        };
        let about = writes.get(&(*shown_by, run.namespace.as_str(), run.name.as_str()));
        // The watch may report a change before the request that made it is answered.
        let answer = about
            .into_iter()
            .flatten()
            .filter(|write| write.received >= event.received)
            .map(|write| write.received)
            .min();
        let within = |at: jiff::Timestamp| at.duration_since(event.answered).as_secs_f64();
        match answer
            .map(within)
            .filter(|seconds| *seconds < ANSWERED_WITHIN.as_secs_f64())
        {
            Some(seconds) => latencies.push(seconds.max(0.0) * 1000.0),
            None => unanswered += 1,
        }
    }
    (latencies, unanswered)
}

/// The API server is restarted. It can resume nothing from memory, so every watch lists again.
async fn relist(scale: Scale, rig: &mut Rig, audit: &mut Audit, operator: &Operator) -> Result<Vec<Row>, RigError> {
    let before = operator.resident();
    audit.fresh()?;
    rig.plane.stop_apiserver().await?;
    rig.plane.start_apiserver().await?;
    let (begun, mut most, mut lists): (Instant, f64, usize) = (Instant::now(), 0.0, 0);
    let mut quiet_since = Instant::now();
    while quiet_since.elapsed() < scale.quiet || lists == 0 {
        most = most.max(operator.resident().unwrap_or(f64::INFINITY));
        tokio::time::sleep(Duration::from_millis(50)).await;
        let fresh = audit.fresh()?;
        let own = |r: &&Request| r.by == operator.account && !r.is_heartbeat();
        let listed = fresh.iter().filter(own).filter(|r| r.verb == "list").count();
        lists += listed;
        if fresh.iter().filter(own).any(|r| r.verb == "list" || r.is_write()) {
            quiet_since = Instant::now();
        }
        if begun.elapsed() > scale.patience {
            return Err(RigError::Never {
                what: "watches to be taken up again".into(),
                limit: scale.patience,
                there: format!("{lists} lists"),
            });
        }
    }
    let ratio = before.map(|before| most / before);
    Ok(vec![
        Row::new(
            "lists after the API server's restart",
            Some(lists as f64),
            "requests",
            Some("> 0"),
        ),
        Row::new("most memory during a full relist", Some(most), "MiB", Some("<= 96")),
        Row::new(
            "most memory during a full relist, of that before",
            ratio,
            "ratio",
            Some("<= 1.3"),
        ),
    ])
}
