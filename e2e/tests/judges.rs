//! Two judges of one law: what kube's CEL evaluation says of every rule and bound in `crds/tests`, the real API server
//! says too.
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

/// Requests that are under way at a time.
const AT_ONCE: usize = 16;

#[tokio::test]
#[ignore = "needs etcd and kube-apiserver: make test-api"]
async fn the_api_server_and_kubes_cel_evaluation_agree_on_every_rule_and_every_bound() -> Result<()> {
    let control_plane = ControlPlane::start(Options::default()).await?;
    let client = &control_plane.admin().await?;
    // That the API server takes the CRDs at all shows that all rules together stay below its cost limits.
    chart::install(client).await?;
    for (name, base) in bases() {
        assert_eq!(ask(client, Verb::Create, &base, true).await.err(), None, "{name}");
    }

    // What is accepted and refused here is what kube's CEL evaluation accepts and refuses: crds/tests/refusals.rs
    // judges the same pairs.
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

/// What the API server says otherwise about a pair, or not in the words that are wanted.
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

/// What the API server says of a manifest, put in the place of the old one where there is one.
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
    // A status is written through a door of its own; a change of the spec finds the status that is there.
    if new.get("status").is_some() {
        there = ask(client, Verb::PatchStatus, &new, false).await?;
    }
    new["metadata"]["resourceVersion"] = there["metadata"]["resourceVersion"].clone();
    let verdict = ask(client, Verb::Replace, &new, true).await;
    ask(client, Verb::Delete, &new, false).await?;
    verdict
}
