//! Wrong manifests, sent to a real API server with the real operator: each is refused with a helpful message, or
//! accepted and explained in a condition, and none of them delays a good run.
//!
//! Needs etcd and kube-apiserver, which the test starts itself: `make test-operator`. Without them this test does not
//! run.

mod table;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use super::{Operator, get, namespace, until};
use crate::support::Result;
use grpo_testing::ask::{Refusal, Verb, ask, ask_raw};
use grpo_testing::chart;
use grpo_testing::control_plane::{ControlPlane, OPERATORS, Options};
use k8s_openapi::{
    api::events::v1::Event, apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client,
    api::{ListParams, PostParams},
};
use serde_json::{Value, json};
use table::{Entry, NAMESPACE, RefusedBy, entries};

/// Deadline of an explanation, on two busy cores.
const SOON: Duration = Duration::from_secs(30);
/// The time for which the requests for failing objects are counted. With pauses of 0.5 s, doubled each time, it has
/// room for seven tries; events of the object itself add a few.
const QUIET: Duration = Duration::from_secs(25);
const MOST_TRIES: usize = 12;
/// Tries of a change that meets a newer version of the object.
const TRIES: usize = 5;
/// Namespaces of good runs while the wrong manifests are tried again. The fastest counts.
const BESIDE: [&str; 3] = ["beside", "beside-again", "beside-at-last"];

#[tokio::test]
#[ignore = "needs etcd and kube-apiserver: make test-operator"]
async fn wrong_manifests_are_refused_or_explained_and_hold_nobody_else_up() -> Result<()> {
    let plane = ControlPlane::start(Options {
        controller_manager: true,
        audit: true,
        ..Options::default()
    })
    .await?;
    let client = plane.admin().await?;
    chart::install(&client).await?;
    for name in [NAMESPACE, "usual", "behind"].iter().chain(&BESIDE) {
        namespace(&client, name, json!({})).await?;
    }
    let entries = entries();
    assert!(entries.len() >= 60, "{} entries", entries.len());
    let names: BTreeSet<&str> = entries.iter().map(|entry| entry.what.as_str()).collect();
    assert_eq!(names.len(), entries.len(), "two entries are called the same");

    let stale: Vec<(usize, &Entry)> = entries.iter().enumerate().filter(|(_, entry)| entry.stale).collect();
    let crds = accept_anything(&client).await?;
    for (number, entry) in &stale {
        let made = until(SOON, "a CRD that takes anything", async || {
            ask(&client, Verb::Create, &entry.manifest(*number), false)
                .await
                .map_err(|refusal| refusal.to_string())
        });
        made.await?;
    }
    put_back(&client, crds).await?;
    until(SOON, "the CRDs to be as they were", async || {
        let refused = ask(
            &client,
            Verb::Create,
            &merged_name(&stale[0].1.manifest(stale[0].0)),
            true,
        )
        .await;
        refused
            .err()
            .map(drop)
            .ok_or_else(|| "a wrong one is still accepted".to_owned())
    })
    .await?;

    let mut wrong = Vec::new();
    for (number, entry) in entries.iter().enumerate().filter(|(_, entry)| entry.before) {
        wrong.extend(put(&client, number, entry).await.err());
    }
    let mut operator = Operator::start(&plane, SYSTEM_LOG).await?;
    let usual = good_run(&client, "usual").await?;
    for (number, entry) in entries
        .iter()
        .enumerate()
        .filter(|(_, entry)| !entry.stale && !entry.before)
    {
        wrong.extend(put(&client, number, entry).await.err());
    }
    let made = Instant::now();
    let behind = good_run(&client, "behind").await?;
    for (number, entry) in entries
        .iter()
        .enumerate()
        .filter(|(_, entry)| entry.refused_by == RefusedBy::Operator)
    {
        wrong.extend(explained(&client, number, entry).await.err());
    }
    assert!(
        wrong.is_empty(),
        "{} of {}:\n{}",
        wrong.len(),
        entries.len(),
        wrong.join("\n")
    );

    // Another test of this machine may hold one of them up, and not all; wrong manifests would.
    let (mut beside, bound) = (Duration::MAX, usual * 3 + Duration::from_secs(1));
    for name in BESIDE {
        if beside >= bound {
            beside = beside.min(good_run(&client, name).await?);
        }
    }
    operator.part.runs()?;
    tokio::time::sleep(QUIET.saturating_sub(made.elapsed())).await;
    operator.part.runs()?;
    let refused = refused_requests(&plane)?;
    println!(
        "{} wrong manifests; {} requests of the operator were refused",
        entries.len(),
        refused.values().sum::<usize>()
    );
    for (what, times) in &refused {
        assert!(*times <= MOST_TRIES, "{what} was tried {times} times in {QUIET:?}");
    }
    println!(
        "a good run has its objects after {usual:?}; right behind all wrong ones {behind:?}; while they are tried again {beside:?}"
    );
    // Behind so many at once it waits its turn, as behind good ones. The machine decides how long that takes, and
    // `good_run` has a deadline for it.
    assert!(
        beside < bound,
        "a good run took {beside:?} beside wrong ones, usually {usual:?}"
    );
    let unreadable = operator
        .metric(r#"grpo_operator_objects{kind="GrpoRun",state="Unreadable"}"#)
        .await?;
    let wanted = stale
        .iter()
        .filter(|(number, entry)| entry.manifest(*number)["kind"] == "GrpoRun")
        .count();
    assert_eq!(unreadable, Some(wanted as f64));
    Ok(())
}

const SYSTEM_LOG: &str = "warn";

/// Installs CRDs that accept any fields; returns ours.
async fn accept_anything(client: &Client) -> Result<Vec<CustomResourceDefinition>> {
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    let mut ours = Vec::new();
    for name in ["grporuns.grpo.dev", "inferencepools.grpo.dev", "sandboxpools.grpo.dev"] {
        ours.push(crds.get(name).await?);
        let mut crd = serde_json::to_value(&ours[ours.len() - 1])?;
        crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"] =
            json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
        crds.replace(name, &PostParams::default(), &serde_json::from_value(crd)?)
            .await?;
    }
    Ok(ours)
}

async fn put_back(client: &Client, ours: Vec<CustomResourceDefinition>) -> Result<()> {
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    for crd in ours {
        let name = crd.metadata.name.clone().unwrap_or_default();
        let mut now = crds.get(&name).await?;
        now.spec = crd.spec;
        crds.replace(&name, &PostParams::default(), &now).await?;
    }
    Ok(())
}

fn merged_name(manifest: &Value) -> Value {
    crate::manifests::merged(manifest, &json!({"metadata": {"name": "not-yet-there"}}))
}

/// Sends an entry's manifest; an error if the API server does not answer as expected.
async fn put(client: &Client, number: usize, entry: &Entry) -> std::result::Result<(), String> {
    let done = put_there(client, number, entry).await;
    done.map_err(|what| format!("{}: {what}", entry.what))
}

async fn put_there(client: &Client, number: usize, entry: &Entry) -> std::result::Result<(), String> {
    for object in &entry.beside {
        ask(client, Verb::Create, object, false)
            .await
            .map_err(|refusal| format!("beside: {refusal}"))?;
    }
    let verdict = verdict(client, number, entry).await;
    match (entry.refused_by, verdict) {
        (RefusedBy::Operator, Ok(())) => Ok(()),
        (RefusedBy::Operator, Err(refusal)) => Err(format!("refused by the API server: {refusal}")),
        (_, Ok(())) => Err("accepted".to_owned()),
        (by, Err(refusal)) => {
            let judged = refusal.code == 422;
            if judged != (by != RefusedBy::Server) && by != RefusedBy::Server {
                return Err(format!("not refused by a {by:?}: {refusal}"));
            }
            says(entry, &refusal.to_string())
        }
    }
}

async fn verdict(client: &Client, number: usize, entry: &Entry) -> std::result::Result<(), Refusal> {
    let manifest = entry.manifest(number);
    if let Some((content, body)) = entry.body() {
        return ask_raw(client, &manifest, content, body).await.map(drop);
    }
    let mut there = ask(client, Verb::Create, &manifest, false).await?;
    if entry.twice {
        let mut again = manifest.clone();
        for left in (0..TRIES).rev() {
            again["metadata"]["resourceVersion"] = there["metadata"]["resourceVersion"].clone();
            match ask(client, Verb::Replace, &again, false).await {
                Err(refusal) if refusal.code == 409 && left > 0 => there = get(client, &manifest).await?,
                replaced => {
                    there = replaced?;
                    break;
                }
            }
        }
    }
    if let Some(status) = &entry.status {
        there["status"] = status.clone();
        ask(client, Verb::PatchStatus, &there, false).await?;
    }
    for left in (0..TRIES).rev() {
        let Some(changed) = entry.changed(&there) else { break };
        // The operator writes the status meanwhile, so the changed object may be an older version, which is not the
        // entry's subject.
        match ask(client, Verb::Replace, &changed, false).await {
            Err(refusal) if refusal.code == 409 && left > 0 => there = get(client, &manifest).await?,
            other => return other.map(drop),
        }
    }
    Ok(())
}

fn says(entry: &Entry, message: &str) -> std::result::Result<(), String> {
    let shown: String = message.chars().take(2000).collect();
    match entry.says.iter().find(|wanted| !message.contains(wanted.as_str())) {
        Some(wanted) => Err(format!("wanted {wanted:?}, got {shown}")),
        None => Ok(()),
    }
}

/// Waits until the condition has the expected text.
async fn explained(client: &Client, number: usize, entry: &Entry) -> std::result::Result<(), String> {
    let done = explained_there(client, number, entry).await;
    done.map_err(|what| format!("{}: {what}", entry.what))
}

async fn explained_there(client: &Client, number: usize, entry: &Entry) -> std::result::Result<(), String> {
    let manifest = entry.manifest(number);
    if let Some(reason) = &entry.event {
        return told(client, &manifest, reason, entry).await;
    }
    let wanted = entry.condition.as_deref().unwrap_or_default();
    let explained = until(SOON, wanted, async || {
        let there = get(client, &manifest).await.map_err(|refusal| refusal.to_string())?;
        let conditions = there["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let found = conditions.into_iter().find(|condition| condition["type"] == wanted);
        let found = found.ok_or_else(|| format!("no such condition: {}", there["status"]))?;
        let reason = entry.reason.as_deref().is_none_or(|reason| found["reason"] == reason);
        if found["status"] != "False" || !reason {
            return Err(found.to_string());
        }
        says(entry, found["message"].as_str().unwrap_or_default())
    });
    explained.await.map_err(|error| error.to_string())
}

/// Waits until an event has the expected text.
async fn told(client: &Client, manifest: &Value, reason: &str, entry: &Entry) -> std::result::Result<(), String> {
    let events: Api<Event> = Api::namespaced(client.clone(), NAMESPACE);
    let about = |event: &Event| {
        let object = event.regarding.clone().unwrap_or_default();
        manifest["metadata"]["name"] == object.name.unwrap_or_default()
            && manifest["kind"] == object.kind.unwrap_or_default()
            && event.reason.as_deref() == Some(reason)
    };
    let told = until(SOON, reason, async || {
        let all = events
            .list(&ListParams::default())
            .await
            .map_err(|error| error.to_string())?;
        let found = all
            .items
            .into_iter()
            .find(|event| about(event))
            .ok_or("no such event")?;
        says(entry, found.note.as_deref().unwrap_or_default())
    });
    told.await.map_err(|error| error.to_string())
}

/// The time until a good run has all of its objects.
async fn good_run(client: &Client, namespace: &str) -> Result<Duration> {
    let mut run = crate::manifests::bases()["train"].clone();
    run["metadata"]["namespace"] = json!(namespace);
    let begun = Instant::now();
    ask(client, Verb::Create, &run, false).await?;
    let made = [
        ("v1", "Pod", "run-driver-1-0"),
        ("v1", "Pod", "run-trainer-1-0"),
        ("v1", "Pod", "run-engine-0-1-0"),
        ("v1", "PersistentVolumeClaim", "run-store"),
        ("apps/v1", "Deployment", "run-gateway"),
    ];
    for (version, kind, name) in made {
        let object = json!({"apiVersion": version, "kind": kind, "metadata": {"name": name, "namespace": namespace}});
        until(SOON, name, async || {
            get(client, &object)
                .await
                .map(drop)
                .map_err(|refusal| refusal.to_string())
        })
        .await?;
    }
    Ok(begun.elapsed())
}

/// The operator's refused requests in the namespace of the wrong manifests, by object.
fn refused_requests(plane: &ControlPlane) -> Result<BTreeMap<String, usize>> {
    let mut refused = BTreeMap::new();
    for request in plane.audit().fresh()? {
        if request.by == OPERATORS[0] && request.namespace == NAMESPACE && request.code >= 400 && request.is_write() {
            let what = format!(
                "{} {} {} ({})",
                request.verb, request.resource, request.name, request.code
            );
            *refused.entry(what).or_insert(0) += 1;
        }
    }
    Ok(refused)
}
