//! The operator at rest, as a process: hardly any processor time, no list, and no write except the renewal of its
//! lease.
//!
//! Needs etcd and kube-apiserver, which the test starts itself: `make test-operator`. The bench at full scale is
//! `make bench-operator`.

use std::time::{Duration, Instant};

use super::{Operator, get, namespace, until};
use crate::support::Result;
use grpo_testing::ask::{Verb, ask};
use grpo_testing::chart;
use grpo_testing::control_plane::audit::{Audit, Request};
use grpo_testing::control_plane::{ControlPlane, OPERATORS, Options};
use serde_json::json;

/// The time without events, once it has asked for nothing for a while.
const IDLE: Duration = Duration::from_secs(20);
const SETTLE: Duration = Duration::from_secs(5);
const SETTLES_WITHIN: Duration = Duration::from_secs(60);
const MOST_MILLICORES: f64 = 5.0;

#[tokio::test]
#[ignore = "needs etcd and kube-apiserver: make test-operator"]
async fn an_operator_that_has_nothing_to_do_neither_lists_nor_writes_and_hardly_computes() -> Result<()> {
    let plane = ControlPlane::start(Options {
        controller_manager: true,
        audit: true,
        ..Options::default()
    })
    .await?;
    let client = plane.admin().await?;
    chart::install(&client).await?;
    namespace(&client, "at-rest", json!({})).await?;
    let operator = Operator::start(&plane, "warn").await?;
    let mut run = crate::manifests::bases()["train"].clone();
    run["metadata"]["namespace"] = json!("at-rest");
    ask(&client, Verb::Create, &run, false).await?;
    let driver =
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "run-driver-1-0", "namespace": "at-rest"}});
    until(Duration::from_secs(30), "the run's driver", async || {
        get(&client, &driver)
            .await
            .map(drop)
            .map_err(|refusal| refusal.to_string())
    })
    .await?;
    let mut audit = plane.audit();
    until(SETTLES_WITHIN, "the operator to be at rest", async || {
        work(&mut audit).map_err(|error| error.to_string())?;
        tokio::time::sleep(SETTLE).await;
        let asked = work(&mut audit).map_err(|error| error.to_string())?;
        if asked.is_empty() {
            Ok(())
        } else {
            Err(format!("{asked:#?}"))
        }
    })
    .await?;
    let (before, begun) = (processor_seconds(&operator).await?, Instant::now());
    tokio::time::sleep(IDLE).await;
    let used = 1000.0 * (processor_seconds(&operator).await? - before) / begun.elapsed().as_secs_f64();
    let asked = work(&mut audit)?;
    println!("{used:.1} millicores over {IDLE:?}");
    assert!(asked.is_empty(), "{asked:#?}");
    assert!(used <= MOST_MILLICORES, "{used:.1} millicores");
    Ok(())
}

/// The operator's writes and lists since the last call, without the renewals of its lease.
fn work(audit: &mut Audit) -> std::io::Result<Vec<Request>> {
    let fresh = audit.fresh()?.into_iter();
    let own = fresh.filter(|request| request.by == OPERATORS[0] && !request.is_heartbeat());
    Ok(own
        .filter(|request| request.is_write() || request.verb == "list")
        .collect())
}

/// From the operator's own metrics.
async fn processor_seconds(operator: &Operator) -> Result<f64> {
    let used = operator.metric("process_cpu_seconds_total").await?;
    Ok(used.ok_or("the operator does not say what it uses")?)
}
