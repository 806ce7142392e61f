//! Foreign objects with the names of a run's objects: the operator never touches them, reports the conflict, and
//! continues when they are gone.
//!
//! Needs etcd and kube-apiserver, which the test starts itself: `make test-operator`.

use std::time::Duration;

use super::{Operator, get, namespace, run_called, told, until};
use crate::{manifests::merged, support::Result};
use grpo_testing::ask::{Verb, ask};
use grpo_testing::chart;
use grpo_testing::control_plane::{ControlPlane, Options};
use kube::Client;
use serde_json::{Value, json};

const TEAM: &str = "team";
const SOON: Duration = Duration::from_secs(30);
/// The garbage collector discovers our kinds in rounds of half a minute, and starts again after each.
const COLLECTED: Duration = Duration::from_secs(150);
/// The end of a run's wait is noticed within half a minute.
const NOTICED: Duration = Duration::from_secs(35);

async fn start() -> Result<(ControlPlane, Client, Operator)> {
    let plane = ControlPlane::start(Options {
        controller_manager: true,
        ..Options::default()
    })
    .await?;
    let client = plane.admin().await?;
    chart::install(&client).await?;
    namespace(&client, TEAM, json!({})).await?;
    let operator = Operator::start(&plane, "warn").await?;
    Ok((plane, client, operator))
}

fn object(version: &str, kind: &str, name: &str) -> Value {
    json!({"apiVersion": version, "kind": kind, "metadata": {"name": name, "namespace": TEAM}})
}

fn volume(name: &str) -> Value {
    let spec = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
    merged(&object("v1", "PersistentVolumeClaim", name), &json!({"spec": spec}))
}

/// Objects of a user, each with a name that a run needs for its own.
fn foreign() -> Vec<(&'static str, Value)> {
    let of = |version: &str, kind: &str, name: &str, body: Value| merged(&object(version, kind, name), &body);
    let engines =
        json!({"spec": {"model": {"image": {"reference": "example.com/theirs:1"}}, "engine": {"embedded": {}}}});
    let rights = json!({"rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]});
    let service = json!({"spec": {"selector": {"app": "theirs"}, "ports": [{"port": 80}]}});
    vec![
        ("volume", volume("volume-store")),
        (
            "config",
            of("v1", "ConfigMap", "config-config", json!({"data": {"theirs": "1"}})),
        ),
        (
            "role",
            of("rbac.authorization.k8s.io/v1", "Role", "role-driver", rights),
        ),
        ("service", of("v1", "Service", "service-driver", service)),
        ("engines", of("grpo.dev/v1alpha1", "InferencePool", "engines", engines)),
        (
            "sandboxes",
            of(
                "grpo.dev/v1alpha1",
                "SandboxPool",
                "sandboxes",
                json!({"spec": {"max": 7}}),
            ),
        ),
    ]
}

/// The content that only its user may change.
fn content(object: &Value) -> Value {
    let metadata = &object["metadata"];
    json!({
        "uid": metadata["uid"], "owners": metadata["ownerReferences"], "labels": metadata["labels"],
        "spec": object["spec"], "data": object["data"], "rules": object["rules"],
    })
}

#[tokio::test]
#[ignore = "needs etcd and kube-apiserver: make test-operator"]
async fn objects_of_other_people_under_a_runs_names_are_never_touched() -> Result<()> {
    let (_plane, client, _operator) = start().await?;
    let mut before = Vec::new();
    for (_, manifest) in foreign() {
        before.push(content(&ask(&client, Verb::Create, &manifest, false).await?));
    }
    for (run, manifest) in foreign() {
        ask(&client, Verb::Create, &run_called(run, TEAM), false).await?;
        let what = format!(
            "{} {TEAM}/{}",
            manifest["kind"].as_str().unwrap(),
            manifest["metadata"]["name"].as_str().unwrap()
        );
        told(
            &client,
            &run_called(run, TEAM),
            "Provisioned",
            "NameTaken",
            SOON,
            &[what.as_str(), "does not belong to this GrpoRun"],
        )
        .await?;
    }
    for (run, manifest) in foreign() {
        ask(&client, Verb::Delete, &run_called(run, TEAM), false).await?;
        let config = object("v1", "ConfigMap", &format!("{run}-config"));
        if manifest["kind"] != "ConfigMap" {
            until(COLLECTED, "the run's own objects to be collected", async || {
                get(&client, &config)
                    .await
                    .map_or(Ok(()), |there| Err(there.to_string()))
            })
            .await?;
        }
    }
    for ((_, manifest), before) in foreign().into_iter().zip(before) {
        assert_eq!(content(&get(&client, &manifest).await?), before);
    }
    Ok(())
}

#[tokio::test]
#[ignore = "needs etcd and kube-apiserver: make test-operator"]
async fn a_run_goes_on_when_what_has_its_name_is_deleted() -> Result<()> {
    let (_plane, client, _operator) = start().await?;
    let (theirs, run) = (volume("llm-store"), run_called("llm", TEAM));
    ask(&client, Verb::Create, &theirs, false).await?;
    ask(&client, Verb::Create, &run, false).await?;
    told(
        &client,
        &run,
        "Provisioned",
        "NameTaken",
        SOON,
        &["PersistentVolumeClaim team/llm-store"],
    )
    .await?;
    ask(&client, Verb::Delete, &theirs, false).await?;
    until(NOTICED, "the run's own volume", async || {
        let there = get(&client, &theirs).await.map_err(|refusal| refusal.to_string())?;
        let owner = &there["metadata"]["ownerReferences"][0]["name"];
        if owner == "llm" {
            Ok(())
        } else {
            Err(there["metadata"].to_string())
        }
    })
    .await
}

/// A user creates a volume while the operator creates the run's: one of the two gets the name, and the other gets an
/// error.
#[tokio::test]
#[ignore = "needs etcd and kube-apiserver: make test-operator"]
async fn an_object_that_comes_while_the_runs_is_made_is_not_touched_either() -> Result<()> {
    let (_plane, client, _operator) = start().await?;
    let mut won = 0;
    for n in 0..20u64 {
        let name = format!("race-{n}");
        let theirs = volume(&format!("{name}-store"));
        ask(&client, Verb::Create, &run_called(&name, TEAM), false).await?;
        // At another moment of the reconcile each time.
        tokio::time::sleep(Duration::from_millis(2 * n)).await;
        let Ok(made) = ask(&client, Verb::Create, &theirs, false).await else {
            continue;
        };
        won += 1;
        let words = format!("PersistentVolumeClaim {TEAM}/{name}-store");
        told(
            &client,
            &run_called(&name, TEAM),
            "Provisioned",
            "NameTaken",
            SOON,
            &[words.as_str()],
        )
        .await?;
        assert_eq!(content(&get(&client, &theirs).await?), content(&made), "{name}");
    }
    println!("the user was faster {won} times of 20");
    Ok(())
}

/// Created objects are applied again later: fields removed from the spec then disappear.
#[tokio::test]
#[ignore = "needs etcd and kube-apiserver: make test-operator"]
async fn what_is_taken_out_of_a_pools_spec_is_taken_out_of_what_was_made_of_it() -> Result<()> {
    let (_plane, client, _operator) = start().await?;
    let pool = object("grpo.dev/v1alpha1", "SandboxPool", "pool");
    let with = |variables: Value| merged(&pool, &json!({"spec": {"max": 4, "gateway": {"env": variables}}}));
    let both = with(json!([{"name": "FIRST", "value": "1"}, {"name": "SECOND", "value": "2"}]));
    ask(&client, Verb::Create, &both, false).await?;
    let deployment = object("apps/v1", "Deployment", "pool-gateway");
    let variables = async || -> std::result::Result<Vec<String>, String> {
        let there = get(&client, &deployment).await.map_err(|refusal| refusal.to_string())?;
        let all = there["spec"]["template"]["spec"]["containers"][0]["env"]
            .as_array()
            .cloned();
        let names = all
            .unwrap_or_default()
            .into_iter()
            .map(|one| one["name"].as_str().unwrap_or_default().to_owned());
        Ok(names
            .filter(|name| ["FIRST", "SECOND"].contains(&name.as_str()))
            .collect())
    };
    let wanted = |wanted: &'static [&'static str]| {
        let variables = &variables;
        async move {
            until(SOON, "the gateway's variables", async || {
                let there = variables().await?;
                if there == wanted {
                    Ok(())
                } else {
                    Err(format!("{there:?}"))
                }
            })
            .await
        }
    };
    wanted(&["FIRST", "SECOND"]).await?;
    for (manifest, left) in [
        (with(json!([{"name": "SECOND", "value": "2"}])), &["SECOND"][..]),
        (with(json!([])), &[][..]),
    ] {
        // The operator writes the status meanwhile, so the version that was read may be outdated at the write.
        until(SOON, "the pool to be changed", async || {
            let mut changed = get(&client, &pool).await.map_err(|refusal| refusal.to_string())?;
            changed["spec"] = manifest["spec"].clone();
            let written = ask(&client, Verb::Replace, &changed, false).await;
            written.map(drop).map_err(|refusal| refusal.to_string())
        })
        .await?;
        wanted(left).await?;
    }
    Ok(())
}

/// The pools of a run are its own: a change by another client is undone as soon as it is seen, and a pool that is
/// deleted is made again.
#[tokio::test]
#[ignore = "needs etcd and kube-apiserver: make test-operator"]
async fn a_change_to_a_runs_own_pools_is_undone_at_once() -> Result<()> {
    let (_plane, client, _operator) = start().await?;
    ask(&client, Verb::Create, &run_called("own", TEAM), false).await?;
    let pools = [
        ("SandboxPool", "max", json!(63)),
        ("InferencePool", "replicas", json!(7)),
    ];
    for (kind, field, other) in pools {
        let pool = object("grpo.dev/v1alpha1", kind, "own");
        let shown = async || get(&client, &pool).await.map_err(|refusal| refusal.to_string());
        let before = until(SOON, kind, async || shown().await).await?;
        assert_ne!(before["spec"][field], other);
        // The operator writes the status meanwhile, so the version that was read may be outdated at the write.
        until(SOON, "the pool to be changed", async || {
            let changed = merged(&shown().await?, &json!({"spec": {field: other}}));
            let written = ask(&client, Verb::Replace, &changed, false).await;
            written.map(drop).map_err(|refusal| refusal.to_string())
        })
        .await?;
        until(SOON, "the run's own value", async || {
            let there = shown().await?;
            if there["spec"][field] == before["spec"][field] {
                Ok(())
            } else {
                Err(there["spec"].to_string())
            }
        })
        .await?;
        ask(&client, Verb::Delete, &pool, false).await?;
        until(SOON, "the pool anew", async || {
            let there = shown().await?;
            if there["metadata"]["uid"] == before["metadata"]["uid"] {
                Err(there["metadata"].to_string())
            } else {
                Ok(())
            }
        })
        .await?;
    }
    Ok(())
}
