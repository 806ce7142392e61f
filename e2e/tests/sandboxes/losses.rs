//! Sandboxes that are really taken from their holders: each holder gets the cause. `sandbox_faults` has the faults that
//! cannot be caused here.

use std::collections::BTreeMap;

use grpo_driver::sandbox::SandboxError;
use grpo_sandbox_protocol::{Priority, SandboxCause};
use grpo_testing::cluster::wait;
use kube::ResourceExt;
use kube::api::{DeleteParams, EvictParams};
use serde_json::json;

use super::pool::{Pool, SANDBOXES, command, shell, task};
use crate::support::{Result, SOON};

/// The faults by name, with their causes.
const FAULTS: [(&str, SandboxCause); 7] = [
    ("deleted", SandboxCause::Deleted),
    ("force-deleted", SandboxCause::Deleted),
    ("evicted", SandboxCause::Disrupted),
    ("container killed", SandboxCause::Killed),
    ("out of memory", SandboxCause::OutOfMemory),
    ("disk full", SandboxCause::DiskFull),
    ("expired", SandboxCause::Expired),
];

fn rounds() -> usize {
    let rounds = std::env::var("GRPO_LOSS_ROUNDS").ok();
    rounds.and_then(|text| text.parse().ok()).unwrap_or(1)
}

/// Causes a fault; returns the cause that the holder of the lease gets.
async fn cause_of(pool: &Pool, fault: &str, id: &str) -> Result<Option<SandboxCause>> {
    let image = task()?["image"].as_str().unwrap_or_default().to_owned();
    let sandbox = pool.gateway()?.lease(id, &image, Priority::Agent, SOON).await?;
    let (pods, name) = (pool.scene.pods(), sandbox.lease.sandbox.clone());
    let waits = shell("wait", "sleep 100", 100);
    match fault {
        "deleted" => drop(pods.delete(&name, &DeleteParams::default()).await?),
        "force-deleted" => drop(pods.delete(&name, &DeleteParams::default().grace_period(0)).await?),
        "evicted" => drop(pods.evict(&name, &EvictParams::default()).await?),
        "container killed" => pool
            .scene
            .kill("sandbox", pods, wait::named(&name), None)
            .await
            .map(drop)?,
        "out of memory" => {
            let hog = shell("hog", "python3 -c \"x = bytearray(b'x') * 2_000_000_000\"", 60);
            return Ok(match pool.exec(id, &hog).await? {
                // On cgroup v1 the sandbox survives its command.
                Ok(result) => result.killed.map(|_| SandboxCause::OutOfMemory),
                Err(cause) => Some(cause),
            });
        }
        "disk full" => {
            let fill = shell("fill", "head -c 400000000 /dev/zero > /big; sleep 100", 120);
            return Ok(pool.exec(id, &fill).await?.err());
        }
        _ => {
            let renew = json!({"ttlSeconds": 1});
            pool.http
                .post(format!("{}/v1/leases/{id}/renew", pool.url))
                .json(&renew)
                .send()
                .await?;
        }
    }
    Ok(pool.exec(id, &waits).await?.err())
}

/// Figure 8, for the faults that can be caused on a node.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a cluster: make test-sandboxes"]
async fn whoever_loses_a_sandbox_hears_why_and_none_is_left_over() -> Result<()> {
    let limits = json!({"cpu": "2", "memory": "512Mi", "ephemeral-storage": "256Mi"});
    let spec = json!({"max": 16, "allowUnenforced": true, "resources": {"limits": limits}});
    let pool = Pool::new("losses", spec).await?;
    let (mut heard, mut wrong) = (BTreeMap::<&str, u32>::new(), Vec::new());
    for round in 0..rounds() {
        let all = FAULTS.map(|(fault, wanted)| {
            let pool = &pool;
            async move {
                (
                    fault,
                    wanted,
                    cause_of(pool, fault, &format!("{}-{round}", fault.replace(' ', "-"))).await,
                )
            }
        });
        for (fault, wanted, cause) in futures::future::join_all(all).await {
            *heard.entry(fault).or_default() += 1;
            match cause {
                Ok(Some(cause)) if cause == wanted => {}
                other => wrong.push(format!("{fault}: {other:?}")),
            }
        }
    }
    let missing = pool
        .gateway()?
        .lease("missing", "127.0.0.1:1/none:1", Priority::Agent, SOON)
        .await;
    match missing.map(|sandbox| sandbox.lease.clone()) {
        Err(SandboxError::ImageUnavailable { .. }) => {}
        other => wrong.push(format!("image missing: {other:?}")),
    }
    println!("{heard:?}");
    assert!(wrong.is_empty(), "{wrong:?}");
    // A healthy sandbox, to show that the pool works.
    let image = task()?["image"].as_str().unwrap_or_default().to_owned();
    let well = pool.gateway()?.lease("well", &image, Priority::Agent, SOON).await?;
    assert_eq!(well.exec(&command("true", &["true"], 10)).await?.exit_code, Some(0));
    for fault in heard.keys().filter(|fault| **fault == "out of memory") {
        for round in 0..rounds() {
            let id = format!("{}-{round}", fault.replace(' ', "-"));
            pool.http.delete(format!("{}/v1/leases/{id}", pool.url)).send().await?;
        }
    }
    well.release().await;
    let none = |there: &wait::Objects<k8s_openapi::api::core::v1::Pod>| {
        let names: Vec<String> = there.values().map(ResourceExt::name_any).collect();
        names.is_empty().then_some(())
    };
    pool.scene.until_pods(SANDBOXES, SOON, "no sandbox left", none).await?;
    pool.scene.clear().await
}
