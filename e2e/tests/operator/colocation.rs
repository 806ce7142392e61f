//! Runs whose trainer and engines share GPUs, on a real control plane with its scheduler, whose node and running pods
//! are simulated (KWOK): the cause of their wait, their ResourceClaims, and the claims of a run that is suspended,
//! changed and resumed, also while there is no operator.
//!
//! Needs the programs that `make setup` builds and the operator's binary: `make test-operator`.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::{Operator, get, run_called, told, until};
use crate::{manifests::merged, support::Result};
use grpo_bench::operator_bench::fleet::volume;
use grpo_bench::operator_bench::rig::Rig;
use grpo_testing::ask::{Verb, ask};
use k8s_openapi::api::{core::v1::Pod, resource::v1::ResourceClaim};
use kube::{Api, Client, ResourceExt, api::ListParams};
use serde_json::{Value, json};

const TEAM: &str = "team";
const SOON: Duration = Duration::from_secs(30);
/// The end of a run's wait is noticed within half a minute.
const NOTICED: Duration = Duration::from_secs(35);
/// The garbage collector discovers our kinds in rounds of half a minute, and deletes the engines of the earlier pool.
const COLLECTED: Duration = Duration::from_secs(180);
const DRIVER: &str = "gpu.nvidia.com";
const NODE: &str = "gpus";
/// As many as the runs of the test ask for together.
const GPUS: u32 = 16;

/// The claims of the namespace: their requests, and their uid.
type Claims = BTreeMap<String, (Vec<String>, String)>;

type Users = BTreeMap<String, (String, Option<String>)>;

/// Trainer pods of four GPUs, and replicas of two that share them.
fn run(name: &str, nodes: u32, suspend: bool) -> Value {
    let spec = json!({
        "suspend": suspend,
        "trainer": {"nodes": nodes, "gpusPerNode": 4, "colocate": true},
        "inference": {"pool": {"engine": {"embedded": null, "vllm": {"tensorParallel": 2}}, "replicas": 2 * nodes}},
        "store": {"volumeClaimTemplate": null, "persistentVolumeClaim": {"claimName": "stores"}},
    });
    merged(&run_called(name, TEAM), &json!({"spec": spec}))
}

/// The requests of each claim in the namespace, with their GPUs, and its uid.
async fn claims(client: &Client) -> Result<Claims> {
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

/// Waits until there are exactly these claims, and none of the earlier ones whose uids are given.
async fn claimed(client: &Client, names: &[&str], earlier: &[&str], limit: Duration) -> Result<Claims> {
    until(limit, &format!("the claims {names:?}"), async || {
        let there = claims(client).await.map_err(|error| error.to_string())?;
        let is_earlier = |(_, uid): &(Vec<String>, String)| earlier.contains(&uid.as_str());
        if there.keys().eq(names) && !there.values().any(is_earlier) {
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

/// The node, and its GPUs as the driver on it publishes them.
async fn gpu_node(rig: &Rig) -> Result<()> {
    rig.node(NODE, 0, &json!({}), &json!([])).await?;
    let devices: Vec<Value> = (0..GPUS)
        .map(|number| json!({"name": format!("gpu-{number}")}))
        .collect();
    let slice = json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": NODE},
        "spec": {
            "driver": DRIVER, "nodeName": NODE, "devices": devices,
            "pool": {"name": NODE, "generation": 1, "resourceSliceCount": 1},
        },
    });
    ask(&rig.admin, Verb::Create, &slice, false).await?;
    Ok(())
}

/// Waits until every claim has the devices that it asks for, and no device is given twice.
async fn allocated(client: &Client, gpus: usize) -> Result<()> {
    let api: Api<ResourceClaim> = Api::namespaced(client.clone(), TEAM);
    until(SOON, &format!("{gpus} GPUs to be given"), async || {
        let all = api
            .list(&ListParams::default())
            .await
            .map_err(|error| error.to_string())?;
        let results = all.iter().filter_map(|claim| {
            let devices = claim.status.as_ref()?.allocation.as_ref()?.devices.as_ref()?;
            devices.results.clone()
        });
        let given: Vec<String> = results.flatten().map(|result| result.device).collect();
        let different: BTreeSet<&String> = given.iter().collect();
        if given.len() == gpus && different.len() == gpus {
            Ok(())
        } else {
            Err(format!("{given:?}"))
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "starts a control plane: make test-operator"]
async fn runs_that_share_gpus_have_claims_of_their_spec_from_their_admission_until_they_are_suspended() -> Result<()> {
    let rig = Rig::start().await?;
    let client = rig.admin.clone();
    rig.namespace(TEAM).await?;
    volume(&client, TEAM).await?;
    gpu_node(&rig).await?;
    let operator = Operator::start(&rig.plane, "warn").await?;

    let turns = run("turns", 2, false);
    ask(&client, Verb::Apply, &turns, false).await?;
    let words = ["no DeviceClass gpu.nvidia.com", "install NVIDIA's DRA driver"];
    told(&client, &turns, "Admitted", "ReferenceMissing", SOON, &words).await?;
    assert_eq!(ungated(&client, "turns").await?, Vec::<String>::new());
    assert_eq!(claims(&client).await?, Claims::new(), "a run that waits claims nothing");

    let class = json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": DRIVER},
        "spec": {"selectors": [{"cel": {"expression": format!("device.driver == '{DRIVER}'")}}]},
    });
    ask(&client, Verb::Create, &class, false).await?;
    goes_on(&client, &turns, "ReferenceMissing").await?;
    let first = claimed(&client, &["turns-gpus-0", "turns-gpus-1"], &[], SOON).await?;
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
    allocated(&client, 8).await?;

    ask(&client, Verb::Apply, &run("others", 2, false), false).await?;
    let all = ["others-gpus-0", "others-gpus-1", "turns-gpus-0", "turns-gpus-1"];
    let both = claimed(&client, &all, &[], SOON).await?;
    let theirs = users(&client, "others", 6, SOON).await?;
    assert!(
        theirs.values().all(|(claim, _)| claim.starts_with("others-gpus-")),
        "{theirs:?}"
    );
    allocated(&client, 16).await?;

    // One request suspends the run and makes it smaller: the claims of the earlier spec go too.
    ask(&client, Verb::Apply, &run("turns", 1, true), false).await?;
    let left = claimed(&client, &["others-gpus-0", "others-gpus-1"], &[], COLLECTED).await?;
    assert_eq!(
        left["others-gpus-0"], both["others-gpus-0"],
        "another run keeps its claim"
    );

    ask(&client, Verb::Apply, &run("turns", 1, false), false).await?;
    let earlier = [first["turns-gpus-0"].1.as_str()];
    let three = ["others-gpus-0", "others-gpus-1", "turns-gpus-0"];
    let again = claimed(&client, &three, &earlier, COLLECTED).await?;
    users(&client, "turns", 3, COLLECTED).await?;
    allocated(&client, 12).await?;

    // No operator sees that this run is suspended, made smaller and resumed.
    drop(operator);
    ask(&client, Verb::Apply, &run("others", 1, true), false).await?;
    ask(&client, Verb::Apply, &run("others", 1, false), false).await?;
    let _operator = Operator::start(&rig.plane, "warn").await?;
    let earlier = [both["others-gpus-0"].1.as_str()];
    let anew = claimed(&client, &["others-gpus-0", "turns-gpus-0"], &earlier, COLLECTED).await?;
    assert_eq!(
        anew["turns-gpus-0"], again["turns-gpus-0"],
        "another run keeps its claim"
    );
    users(&client, "others", 3, COLLECTED).await?;
    allocated(&client, 8).await?;
    Ok(())
}
