//! Figure 5: pods per second that a gateway creates to fill its pool, beside a client that only creates pods.

use std::time::{Duration, Instant};

use futures::{StreamExt, TryStreamExt, stream};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ListParams, PostParams};

use super::{SandboxBenchError, median, rig::Rig};
use grpo_bench_report::Row;
use grpo_testing::cluster::api;
use grpo_testing::control_plane::{BARE, GATEWAY, audit::Request};

/// Concurrent pod creations of the bare client, as many as the gateway has.
const AT_A_TIME: usize = 32;
const POOL_LABEL: &str = "grpo.dev/sandbox-pool";
const BARE_POOL: &str = "bare";

/// The size of the measurement.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    pub rounds: usize,
    /// Pods of one round.
    pub pods: usize,
}

impl Scale {
    pub const FULL: Self = Self { rounds: 6, pods: 500 };
    pub const SHORT: Self = Self { rounds: 2, pods: 200 };
}

pub async fn measure(scale: Scale) -> Result<Vec<Row>, SandboxBenchError> {
    let rig = Rig::start(scale.pods * scale.rounds).await?;
    let mut audit = rig.plane.audit();
    let mut gateway = rig.gateway()?;
    gateway.serves().await?;
    let (mut filled, mut bare, mut ready) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..scale.rounds {
        // Each is first equally often.
        for is_gateway in [round % 2 == 0, round % 2 == 1] {
            quiet(&rig).await?;
            audit.fresh()?;
            if is_gateway {
                let (began, wanted) = (Instant::now(), (round + 1) * scale.pods);
                gateway.caller.want(wanted).await?;
                gateway.until_ready(wanted).await?;
                ready.push(scale.pods as f64 / began.elapsed().as_secs_f64());
                filled.extend(rate(&audit.fresh()?, GATEWAY));
            } else if let Some(model) = model(&rig).await? {
                create(&rig, &model, round, scale.pods).await?;
                bare.extend(rate(&audit.fresh()?, BARE));
            }
        }
    }
    let (filled, bare) = (median(filled), median(bare));
    let mut made = Row::new(
        format!("5: pods made by the gateway to fill its pool, {} at a time", scale.pods),
        filled,
        "pods/s",
        None,
    );
    made.peer = Some(format!("bare client, the same pods, {AT_A_TIME} requests at a time"));
    made.peer_value = bare.map(|rate| (rate * 10.0).round() / 10.0);
    let share = filled.zip(bare).map(|(own, peer)| 100.0 * own / peer);
    Ok(vec![
        made,
        Row::new(
            "5: pods made by the gateway, of the bare client's",
            share,
            "%",
            Some(">= 90"),
        ),
        Row::new(
            "5: sandboxes that came to be ready, scheduler and KWOK included",
            median(ready),
            "pods/s",
            None,
        ),
    ])
}

/// Creations per second, from the receipt of the first until the answer to the last.
fn rate(requests: &[Request], by: &str) -> Option<f64> {
    let created = |request: &&Request| {
        request.by == by
            && request.verb == "create"
            && request.resource == "pods"
            && request.subresource.is_empty()
            && request.code == 201
    };
    let created: Vec<&Request> = requests.iter().filter(created).collect();
    let first: Timestamp = created.iter().map(|request| request.received).min()?;
    let last: Timestamp = created.iter().map(|request| request.answered).max()?;
    Some(created.len() as f64 / last.duration_since(first).as_secs_f64())
}

/// A pod of the gateway as a template for the bare client; `None` before the gateway created one.
async fn model(rig: &Rig) -> Result<Option<Pod>, SandboxBenchError> {
    let one = ListParams::default().limit(1).labels("grpo.dev/role=sandbox");
    let found = rig.pods(&rig.admin).list(&one).await.map_err(api("listing", "pods"))?;
    let Some(mut pod) = found.items.into_iter().next() else {
        return Ok(None);
    };
    pod.status = None;
    pod.metadata.uid = None;
    pod.metadata.resource_version = None;
    pod.metadata.creation_timestamp = None;
    pod.metadata.managed_fields = None;
    if let Some(spec) = &mut pod.spec {
        spec.node_name = None;
    }
    let labels = pod.metadata.labels.get_or_insert_default();
    labels.insert(POOL_LABEL.to_owned(), BARE_POOL.to_owned());
    Ok(Some(pod))
}

async fn create(rig: &Rig, model: &Pod, round: usize, count: usize) -> Result<(), SandboxBenchError> {
    let pods = rig.pods(&rig.bare);
    stream::iter(0..count)
        .map(|number| {
            let (pods, mut pod) = (pods.clone(), model.clone());
            pod.metadata.name = Some(format!("bare-sbx-{round:04x}{number:06x}"));
            tokio::spawn(async move {
                pods.create(&PostParams::default(), &pod)
                    .await
                    .map_err(api("creating pod", "of the bare client"))
            })
        })
        .buffer_unordered(AT_A_TIME)
        .map(|made| Ok::<_, SandboxBenchError>(made??))
        .try_for_each(async |_| Ok(()))
        .await
}

/// Waits until every pod runs, so that the previous round has no work left. The bare client's pods stay: the next round
/// of both has the same number beside it.
async fn quiet(rig: &Rig) -> Result<(), SandboxBenchError> {
    let pods = rig.pods(&rig.admin);
    let pending = ListParams::default().fields("status.phase=Pending").limit(1);
    while !pods
        .list_metadata(&pending)
        .await
        .map_err(api("listing", "pods"))?
        .items
        .is_empty()
    {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Ok(())
}
