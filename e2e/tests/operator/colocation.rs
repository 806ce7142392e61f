//! Runs whose trainer and engines share GPUs, on a real API server: the cause of their wait, their ResourceClaims, and
//! the claims of a run that is suspended, changed and resumed.
//!
//! Needs etcd and kube-apiserver, which the test starts itself: `make test-operator`.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Operator, get, namespace, run_called, told, until};
use crate::{manifests::merged, support::Result};
use grpo_testing::ask::{Verb, ask};
use grpo_testing::chart;
use grpo_testing::control_plane::{ControlPlane, Options};
use k8s_openapi::api::{core::v1::Pod, resource::v1::ResourceClaim};
use kube::{Api, Client, ResourceExt, api::ListParams};
use serde_json::{Value, json};

const TEAM: &str = "team";
const SOON: Duration = Duration::from_secs(30);
/// The end of a run's wait is noticed within half a minute.
const NOTICED: Duration = Duration::from_secs(35);
/// The garbage collector discovers our kinds in rounds of half a minute, and deletes the engines of the earlier pool.
const COLLECTED: Duration = Duration::from_secs(150);

type Users = BTreeMap<String, (String, Option<String>)>;

/// Trainer pods of four GPUs, and replicas of two that share them.
fn run(name: &str, nodes: u32, suspend: bool) -> Value {
    let spec = json!({
        "suspend": suspend,
        "trainer": {"nodes": nodes, "gpusPerNode": 4, "colocate": true},
        "inference": {"pool": {"engine": {"embedded": null, "vllm": {"tensorParallel": 2}}, "replicas": 2 * nodes}},
    });
    merged(&run_called(name, TEAM), &json!({"spec": spec}))
}

/// The requests of each claim in the namespace, with their GPUs, and its uid.
async fn claims(client: &Client) -> Result<BTreeMap<String, (Vec<String>, String)>> {
    let api: Api<ResourceClaim> = Api::namespaced(client.clone(), TEAM);
    let requests = |claim: &ResourceClaim| -> Vec<String> {
        let requests = claim.spec.devices.iter().flat_map(|devices| devices.requests.iter());
        requests
            .flatten()
            .map(|request| {
                let exactly = request.exactly.clone().unwrap_or_default();
                let count = exactly.count.unwrap_or_default();
                format!("{}: {count} of {}", request.name, exactly.device_class_name)
            })
            .collect()
    };
    let all = api.list(&ListParams::default()).await?;
    Ok(all
        .iter()
        .map(|claim| (claim.name_any(), (requests(claim), claim.uid().unwrap_or_default())))
        .collect())
}

/// Waits until there are exactly these claims.
async fn claimed(client: &Client, names: &[&str]) -> Result<BTreeMap<String, (Vec<String>, String)>> {
    until(SOON, &format!("the claims {names:?}"), async || {
        let there = claims(client).await.map_err(|error| error.to_string())?;
        if there.keys().eq(names) {
            Ok(there)
        } else {
            Err(format!("{there:?}"))
        }
    })
    .await
}

/// The claim and the request of each trainer and engine pod of a run, once there are so many.
async fn users(client: &Client, run: &str, count: usize, limit: Duration) -> Result<Users> {
    let api: Api<Pod> = Api::namespaced(client.clone(), TEAM);
    let labels = ListParams::default().labels(&format!("grpo.dev/run={run},grpo.dev/role in (trainer,engine)"));
    let used = |pod: &Pod| {
        let spec = pod.spec.as_ref()?;
        let claim = spec.resource_claims.as_ref()?.first()?.resource_claim_name.clone()?;
        let resources = spec.containers.first()?.resources.as_ref()?;
        let request = resources.claims.as_ref()?.first()?.request.clone();
        Some((pod.name_any(), (claim, request)))
    };
    until(
        limit,
        &format!("{count} pods of GrpoRun {run} that share GPUs"),
        async || {
            let pods = api.list(&labels).await.map_err(|error| error.to_string())?;
            let there: BTreeMap<_, _> = pods.iter().filter_map(used).collect();
            if there.len() == count && pods.items.len() == count {
                Ok(there)
            } else {
                Err(format!("{there:?} of {} pods", pods.items.len()))
            }
        },
    )
    .await
}

/// Pods of a run without a scheduling gate.
async fn ungated(client: &Client, run: &str) -> Result<Vec<String>> {
    let api: Api<Pod> = Api::namespaced(client.clone(), TEAM);
    let labels = ListParams::default().labels(&format!("grpo.dev/run={run},grpo.dev/role in (driver,trainer,engine)"));
    let gates = |pod: &Pod| pod.spec.as_ref().and_then(|spec| spec.scheduling_gates.clone());
    let pods = api.list(&labels).await?;
    let free = pods.iter().filter(|pod| gates(pod).unwrap_or_default().is_empty());
    Ok(free.map(ResourceExt::name_any).collect())
}

/// Waits until the run no longer waits for this reason.
async fn goes_on(client: &Client, run: &Value, reason: &str) -> Result<()> {
    until(NOTICED, &format!("{reason} to be over"), async || {
        let there = get(client, run).await.map_err(|refusal| refusal.to_string())?;
        let conditions = there["status"]["conditions"].as_array().cloned().unwrap_or_default();
        match conditions.iter().find(|condition| condition["reason"] == reason) {
            Some(condition) => Err(condition.to_string()),
            None => Ok(()),
        }
    })
    .await
}

#[tokio::test]
#[ignore = "needs etcd and kube-apiserver: make test-operator"]
async fn runs_that_share_gpus_wait_for_their_class_and_have_claims_of_their_own_until_they_are_suspended() -> Result<()>
{
    let plane = ControlPlane::start(Options {
        controller_manager: true,
        ..Options::default()
    })
    .await?;
    let client = plane.admin().await?;
    chart::install(&client).await?;
    namespace(&client, TEAM, json!({})).await?;
    let _operator = Operator::start(&plane, "warn").await?;

    let turns = run("turns", 2, false);
    ask(&client, Verb::Apply, &turns, false).await?;
    let words = ["no DeviceClass gpu.nvidia.com", "install NVIDIA's DRA driver"];
    told(&client, &turns, "Admitted", "ReferenceMissing", SOON, &words).await?;
    assert_eq!(ungated(&client, "turns").await?, Vec::<String>::new());

    let class = json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "gpu.nvidia.com"},
        "spec": {"selectors": [{"cel": {"expression": "device.driver == 'gpu.nvidia.com'"}}]},
    });
    ask(&client, Verb::Create, &class, false).await?;
    goes_on(&client, &turns, "ReferenceMissing").await?;
    let first = claimed(&client, &["turns-gpus-0", "turns-gpus-1"]).await?;
    for (requests, _) in first.values() {
        assert_eq!(
            requests,
            &["engine-0: 2 of gpu.nvidia.com", "engine-1: 2 of gpu.nvidia.com"]
        );
    }
    let of = |pod: &str, claim: &str, request: Option<&str>| {
        (pod.to_owned(), (claim.to_owned(), request.map(str::to_owned)))
    };
    let wanted = BTreeMap::from([
        of("turns-trainer-1-0", "turns-gpus-0", None),
        of("turns-trainer-1-1", "turns-gpus-1", None),
        of("turns-engine-0-1-0", "turns-gpus-0", Some("engine-0")),
        of("turns-engine-1-1-0", "turns-gpus-0", Some("engine-1")),
        of("turns-engine-2-1-0", "turns-gpus-1", Some("engine-0")),
        of("turns-engine-3-1-0", "turns-gpus-1", Some("engine-1")),
    ]);
    assert_eq!(users(&client, "turns", 6, SOON).await?, wanted);

    ask(&client, Verb::Apply, &run("others", 1, false), false).await?;
    let both = claimed(&client, &["others-gpus-0", "turns-gpus-0", "turns-gpus-1"]).await?;
    let theirs = users(&client, "others", 3, SOON).await?;
    assert!(theirs.values().all(|(claim, _)| claim == "others-gpus-0"), "{theirs:?}");

    // One request suspends the run and makes it smaller: the claims of the earlier spec go too.
    ask(&client, Verb::Apply, &run("turns", 1, true), false).await?;
    let left = claimed(&client, &["others-gpus-0"]).await?;
    assert_eq!(
        left["others-gpus-0"], both["others-gpus-0"],
        "another run keeps its claim"
    );

    ask(&client, Verb::Apply, &run("turns", 1, false), false).await?;
    let again = claimed(&client, &["others-gpus-0", "turns-gpus-0"]).await?;
    assert_ne!(
        again["turns-gpus-0"].1, first["turns-gpus-0"].1,
        "a claim of the new spec"
    );
    users(&client, "turns", 3, COLLECTED).await?;

    // A claim that a person deletes is made again.
    let claim = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "turns-gpus-0", "namespace": TEAM}});
    ask(&client, Verb::Delete, &claim, false).await?;
    until(SOON, "the deleted claim to be made again", async || {
        let there = claims(&client).await.map_err(|error| error.to_string())?;
        match there.get("turns-gpus-0") {
            Some((_, uid)) if *uid != again["turns-gpus-0"].1 => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await
}
