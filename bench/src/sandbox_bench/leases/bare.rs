//! The client that the gateway is compared with: it only writes the same leases into ConfigMaps.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};

use futures::{StreamExt, TryStreamExt, stream};
use grpo_contracts::names::LEASES_PER_SHARD;
use grpo_sandbox_protocol::LedgerEntry;
use grpo_testing::cluster::api;
use kube::api::PostParams;

use super::{name, priority};
use crate::sandbox_bench::{
    SandboxBenchError,
    caller::{IMAGE, RUN},
    rig::{Rig, shards},
};

/// Concurrent shard writes of the bare client, as many as the gateway has at most.
pub const WRITERS: usize = 4;

/// Leases per second of a client that only writes. Each write has `batch` new leases in place of the oldest. Writes do
/// not overlap, as in the gateway while fewer than 128 leases wait.
pub async fn bare_churn(
    rig: &Rig,
    batch: usize,
    live: usize,
    length: Duration,
    round: usize,
) -> Result<f64, SandboxBenchError> {
    let names = [format!("bare-churn-{round}")];
    rig.make_maps(&names).await?;
    let maps = rig.maps(&rig.bare);
    let [name] = &names;
    let mut shard = maps.get(name).await.map_err(api("reading ConfigMap", name))?;
    let mut entries: VecDeque<(String, String)> = (0..live.min(LEASES_PER_SHARD)).map(entry).collect();
    let (mut next, began) = (entries.len(), Instant::now());
    let mut leases = 0;
    while began.elapsed() < length {
        entries.drain(..batch.min(entries.len()));
        entries.extend((next..next + batch).map(entry));
        next += batch;
        shard.data = Some(entries.iter().cloned().collect());
        let mut written = maps
            .replace(name, &PostParams::default(), &shard)
            .await
            .map_err(api("replacing ConfigMap", name))?;
        written.data = None;
        shard = written;
        leases += batch;
    }
    let rate = leases as f64 / began.elapsed().as_secs_f64();
    maps.delete(name, &Default::default())
        .await
        .map_err(api("deleting ConfigMap", name))?;
    Ok(rate)
}

/// Leases per second of a client that only writes the same leases, in as many writes.
pub async fn bare(rig: &Rig, leases: usize, writes: usize, round: usize) -> Result<f64, SandboxBenchError> {
    let names = shards(&format!("bare-{round}"), leases);
    rig.make_maps(&names).await?;
    let maps = Arc::new(rig.maps(&rig.bare));
    let mut shards = Vec::new();
    for name in &names {
        shards.push(maps.get(name).await.map_err(api("reading ConfigMap", name))?);
    }
    let batch = leases.div_ceil(writes.max(1)).max(1);
    let began = Instant::now();
    stream::iter(shards.into_iter().enumerate())
        .map(|(number, mut shard)| {
            let maps = maps.clone();
            let of_this = LEASES_PER_SHARD.min(leases - number * LEASES_PER_SHARD);
            tokio::spawn(async move {
                let mut entries = BTreeMap::new();
                while entries.len() < of_this {
                    let from = entries.len();
                    entries.extend(
                        (from..of_this.min(from + batch)).map(|lease| entry(number * LEASES_PER_SHARD + lease)),
                    );
                    shard.data = Some(entries.clone());
                    let name = shard.metadata.name.clone().unwrap_or_default();
                    let mut written = maps
                        .replace(&name, &PostParams::default(), &shard)
                        .await
                        .map_err(api("replacing ConfigMap", name))?;
                    written.data = None;
                    shard = written;
                }
                Ok::<_, SandboxBenchError>(())
            })
        })
        .buffer_unordered(WRITERS)
        .map(|ended| ended?)
        .try_for_each(async |()| Ok(()))
        .await?;
    let rate = leases as f64 / began.elapsed().as_secs_f64();
    for name in &names {
        maps.delete(name, &Default::default())
            .await
            .map_err(api("deleting ConfigMap", name))?;
    }
    Ok(rate)
}

/// The gateway's entry for a lease.
fn entry(number: usize) -> (String, String) {
    let lease = name("r0", number);
    let entry = LedgerEntry {
        lease: lease.clone(),
        run: RUN.into(),
        sandbox: format!("pool-sbx-{number:010x}"),
        pod_uid: "00000000-0000-4000-8000-000000000000".into(),
        restarts: 0,
        image: IMAGE.into(),
        epoch: 1_700_000_000_000,
        expires_at: 1_700_000_000_000,
        ttl_millis: 3_600_000,
        priority: priority(number),
    };
    (lease, serde_json::to_string(&entry).unwrap_or_default())
}
