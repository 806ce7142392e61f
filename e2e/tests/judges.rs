//! Two judges of the same rules: the real API server agrees with kube's CEL evaluation on every rule and bound in
//! `crds/tests`.
//!
//! Needs etcd and kube-apiserver, which the test starts itself: `make test-api`. Without them these tests do not run.

use crate::manifests::{Case, bases, bounds, judge::Judge, rules};
use crate::support::Result;
use futures::{StreamExt, stream};
use grpo_testing::ask::{Refusal, Verb, ask};
use grpo_testing::chart;
use grpo_testing::control_plane::{ControlPlane, Options};
use kube::Client;
use serde_json::{Value, json};

/// Concurrent requests.
const AT_ONCE: usize = 16;

#[tokio::test]
#[ignore = "needs etcd and kube-apiserver: make test-api"]
async fn the_api_server_and_kubes_cel_evaluation_agree_on_every_rule_and_every_bound() -> Result<()> {
    let control_plane = ControlPlane::start(Options::default()).await?;
    let client = &control_plane.admin().await?;
    // The API server accepts the CRDs only if all rules together stay below its cost limits.
    chart::install_with(client, &json!({"secretsPolicy": {"hostPath": true}})).await?;
    for (name, base) in bases() {
        assert_eq!(ask(client, Verb::Create, &base, true).await.err(), None, "{name}");
    }

    // kube's CEL evaluation accepts and refuses the same pairs: see crds/tests/refusals.rs.
    let mut cases = rules::cases();
    cases.extend(bounds::cases(&Judge::new()));
    let judged = cases
        .iter()
        .enumerate()
        .map(|(number, case)| disagreement(client, number, case));
    let wrong: Vec<String> = stream::iter(judged)
        .buffer_unordered(AT_ONCE)
        .filter_map(async |wrong| wrong)
        .collect()
        .await;
    assert!(
        wrong.is_empty(),
        "{} of {} pairs:\n{}",
        wrong.len(),
        cases.len(),
        wrong.join("\n")
    );
    println!("{} pairs judged alike", cases.len());
    Ok(())
}

/// The API server's different verdict on a pair, or a message without the expected words.
async fn disagreement(client: &Client, number: usize, case: &Case) -> Option<String> {
    let name = &case.name;
    if let Err(refusal) = verdict(client, number, "accepted", case.old.as_ref(), &case.accepted).await {
        return Some(format!("{name}: the neighbour is refused: {refusal}"));
    }
    let Err(refusal) = verdict(client, number, "refused", case.old.as_ref(), &case.refused).await else {
        return Some(format!("{name}: accepted"));
    };
    if refusal.code != 422 {
        return Some(format!("{name}: not judged: {refusal}"));
    }
    let missing = case
        .says
        .iter()
        .find(|wanted| !refusal.message.contains(wanted.as_str()));
    missing.map(|wanted| format!("{name}: wanted {wanted:?}, got {refusal}"))
}

/// The API server's verdict on a manifest, which replaces the old one if there is one.
async fn verdict(
    client: &Client,
    number: usize,
    what: &str,
    old: Option<&Value>,
    manifest: &Value,
) -> std::result::Result<Value, Refusal> {
    let Some(old) = old else {
        return ask(client, Verb::Create, manifest, true).await;
    };
    let named = |manifest: &Value| {
        let mut manifest = manifest.clone();
        manifest["metadata"]["name"] = json!(format!("{what}-{number}"));
        manifest
    };
    let (old, mut new) = (named(old), named(manifest));
    let mut there = ask(client, Verb::Create, &old, false).await?;
    // A status has a subresource of its own; a change of the spec leaves the existing status.
    if new.get("status").is_some() {
        there = ask(client, Verb::PatchStatus, &new, false).await?;
    }
    new["metadata"]["resourceVersion"] = there["metadata"]["resourceVersion"].clone();
    let verdict = ask(client, Verb::Replace, &new, true).await;
    ask(client, Verb::Delete, &new, false).await?;
    verdict
}
