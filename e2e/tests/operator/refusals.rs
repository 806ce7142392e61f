//! Fields that the API has and this version does not execute, sent to a real API server with the real operator: each is
//! refused, the delay is printed, and no object is created for the run.
//!
//! Needs etcd and kube-apiserver, which the test starts itself: `make test-operator`.

use std::time::{Duration, Instant};

use super::{Operator, namespace, told};
use crate::{
    manifests::{bases, merged},
    support::Result,
};
use grpo_crds::{InferencePool, SandboxPool};
use grpo_testing::ask::{Verb, ask};
use grpo_testing::chart;
use grpo_testing::control_plane::{ControlPlane, Options};
use k8s_openapi::{
    NamespaceResourceScope,
    api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod},
};
use kube::{Api, Client, Resource, ResourceExt, api::ListParams};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json};

const TEAM: &str = "team";
const SOON: Duration = Duration::from_secs(30);
/// The cases of the contracts.
const CASES: &str = include_str!("../../../libs/contracts/tests/unsupported.yaml");

#[derive(Deserialize)]
struct Case {
    what: String,
    base: String,
    /// The component that refuses it; by default the operator.
    by: Option<String>,
    patch: Value,
    finds: Vec<(String, Option<String>)>,
}

#[tokio::test]
#[ignore = "needs etcd and kube-apiserver: make test-operator"]
async fn fields_that_are_not_executed_are_refused_soon_and_nothing_is_made() -> Result<()> {
    let plane = ControlPlane::start(Options {
        controller_manager: true,
        ..Options::default()
    })
    .await?;
    let client = plane.admin().await?;
    chart::install(&client).await?;
    namespace(&client, TEAM, json!({})).await?;
    let _operator = Operator::start(&plane, "warn").await?;

    let (cases, bases): (Vec<Case>, _) = (serde_yaml_ng::from_str(CASES)?, bases());
    let mut slowest = Duration::ZERO;
    for (number, case) in cases.iter().enumerate() {
        let mut run = merged(&bases[&case.base], &json!({"spec": case.patch}));
        run["metadata"] = json!({"name": format!("refused-{number}"), "namespace": TEAM});
        let paths: Vec<&str> = case.finds.iter().map(|(path, _)| path.as_str()).collect();
        let begun = Instant::now();
        let answer = ask(&client, Verb::Create, &run, false).await;
        let by = match answer {
            Err(refusal) => {
                let field = paths[0].rsplit('.').next().unwrap_or_default();
                assert!(refusal.to_string().contains(field), "{}: {refusal}", case.what);
                "ApiServer"
            }
            Ok(_) => {
                told(&client, &run, "Accepted", "NotSupported", SOON, &paths).await?;
                "Operator"
            }
        };
        let took = begun.elapsed();
        println!("{by:9} {:4} ms  {}", took.as_millis(), case.what);
        assert_eq!(by, case.by.as_deref().unwrap_or("Operator"), "{}", case.what);
        slowest = slowest.max(took);
    }
    println!(
        "{} cases; the slowest refusal took {} ms",
        cases.len(),
        slowest.as_millis()
    );

    assert_eq!(named::<Pod>(&client).await?, Vec::<String>::new());
    assert_eq!(named::<PersistentVolumeClaim>(&client).await?, Vec::<String>::new());
    assert_eq!(named::<ConfigMap>(&client).await?, Vec::<String>::new());
    assert_eq!(named::<InferencePool>(&client).await?, Vec::<String>::new());
    assert_eq!(named::<SandboxPool>(&client).await?, Vec::<String>::new());
    Ok(())
}

/// Names of the objects of a kind that runs have in the namespace.
async fn named<K>(client: &Client) -> Result<Vec<String>>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + DeserializeOwned + std::fmt::Debug,
{
    let all: Api<K> = Api::namespaced(client.clone(), TEAM);
    let of_runs = ListParams::default().labels("grpo.dev/run");
    let found = all.list_metadata(&of_runs).await?;
    Ok(found.iter().map(ResourceExt::name_any).collect())
}
