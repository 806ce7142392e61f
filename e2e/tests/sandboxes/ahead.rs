//! Images of sandboxes that the pool has no room for: a node pulls them in advance, at most as many as the pool allows,
//! and releases them.

use std::time::{Duration, Instant};

use grpo_sandbox_protocol::{ImageDemand, ImageTrouble, Priority};
use k8s_openapi::api::core::v1::Pod;
use serde_json::json;

use super::pool::{Pool, task};
use crate::support::{Result, SOON};

const PREFETCH_PODS: &str = "grpo.dev/role=image";
const NOWHERE: &str = "localhost:1/nowhere:1";
/// The pool keeps an image without demand for one minute; the test waits longer.
const LET_GO: Duration = Duration::from_secs(120);

fn one(image: &str) -> ImageDemand {
    ImageDemand {
        image: image.to_owned(),
        count: 1,
    }
}

fn is_held(pod: &Pod, image: &str) -> bool {
    let annotations = pod.metadata.annotations.as_ref();
    let is_running = pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Running");
    is_running
        && annotations
            .and_then(|all| all.get("grpo.dev/image"))
            .is_some_and(|held| held == image)
}

#[tokio::test]
#[ignore = "needs a cluster: make test-sandboxes"]
async fn a_node_has_the_image_of_what_comes_next_before_the_pool_has_room_for_it() -> Result<()> {
    let spec =
        json!({"max": 1, "allowUnenforced": true, "warm": {"images": 1}, "resources": {"limits": {"memory": "256Mi"}}});
    let pool = Pool::new("ahead", spec).await?;
    let task = task()?["image"].as_str().unwrap_or_default().to_owned();
    let gateway = pool.gateway()?;
    let first = gateway.lease("first", &task, Priority::Agent, SOON).await?;
    let gateways = kube::api::ListParams::default().labels("grpo.dev/role=gateway");
    let listed = pool.scene.pods().list(&gateways).await?.items;
    let next = listed
        .first()
        .and_then(|pod| pod.spec.as_ref()?.containers.first()?.image.clone());
    let next = next.ok_or("the gateway's pod has no image")?;

    // An image that cannot be pulled is known before a lease needs it, and makes room for one that can.
    gateway.demand(vec![one(NOWHERE), one(&next)]).await?;
    let what = "the image of what comes next to be held";
    let began = Instant::now();
    let mut most = 0;
    pool.scene
        .until_pods(PREFETCH_PODS, SOON, what, |pods| {
            most = most.max(pods.len());
            pods.values().any(|pod| is_held(pod, &next)).then_some(())
        })
        .await?;
    pool.scene.say(&format!("held after {:?}", began.elapsed()));
    assert_eq!(most, 1, "no more than the pool says");
    let troubles = pool.http.get(format!("{}/v1/pool/troubles", pool.url)).send().await?;
    let troubles: Vec<ImageTrouble> = troubles.json().await?;
    assert!(troubles.iter().any(|trouble| trouble.image == NOWHERE), "{troubles:?}");

    first.release().await;
    let second = gateway.lease("second", &next, Priority::Agent, SOON).await?;
    let made = pool.pod(&second.lease.sandbox).await?;
    let affinity = made.spec.and_then(|spec| spec.affinity?.node_affinity);
    let preferred = affinity.and_then(|affinity| affinity.preferred_during_scheduling_ignored_during_execution);
    assert!(preferred.is_some(), "it is made near its image");

    gateway.demand(Vec::new()).await?;
    pool.scene
        .until_pods(PREFETCH_PODS, LET_GO, "the image to be let go", |pods| {
            pods.is_empty().then_some(())
        })
        .await?;
    second.release().await;
    Ok(())
}
