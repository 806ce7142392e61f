//! The chart's policies on a real API server: a user names only those Secrets that this user may read.
//!
//! alice has the role that the page on teams gives to people who make runs (docs/src/operate/tenants.md), and may read
//! three Secrets; admin may do everything.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::manifests::merged;
use crate::support::{Result, repository};
use grpo_testing::ask::{Refusal, Verb, ask};
use grpo_testing::chart;
use grpo_testing::control_plane::{ControlPlane, OPERATORS, Options};
use kube::Client;
use serde_json::{Map, Value, json};

const CASES: &str = include_str!("secrets.yaml");
const TEAM: &str = "team";
/// The API server reads a new policy within seconds.
const SOON: Duration = Duration::from_secs(30);

/// The object that cases of this name change.
fn base(name: &str) -> Result<Value> {
    let example = |file: &str| -> Result<Value> {
        let text = std::fs::read_to_string(repository().join("docs/examples").join(file))?;
        Ok(serde_yaml_ng::from_str(&text)?)
    };
    let pool = |kind: &str, spec: Value| json!({"apiVersion": "grpo.dev/v1alpha1", "kind": kind, "spec": spec});
    let mut base = match name {
        "run" => example("demo.yaml")?,
        "finetune" => example("2-swe-pdb-sft-4b.yaml")?,
        "inferencePool" => pool(
            "InferencePool",
            json!({"model": {"image": {"reference": "a:1"}}, "engine": {"embedded": {}}}),
        ),
        _ => pool("SandboxPool", json!({"max": 4})),
    };
    base["metadata"] = json!({"name": "any", "namespace": TEAM});
    Ok(base)
}

/// The case's object with this Secret in the place of `NAME`.
fn object(base: &Value, patch: &Value, secret: &str) -> Result<Value> {
    let whole = merged(base, &json!({"spec": patch}));
    Ok(serde_json::from_str(
        &whole.to_string().replace("\"NAME\"", &json!(secret).to_string()),
    )?)
}

async fn dry(client: &Client, object: &Value) -> std::result::Result<Value, Refusal> {
    ask(client, Verb::Create, object, true).await
}

/// The role for people who make runs, as the page on teams has it.
fn role_of_page() -> Result<Value> {
    let page = std::fs::read_to_string(repository().join("docs/src/operate/tenants.md"))?;
    let yaml = page.split("```yaml").nth(1).and_then(|rest| rest.split("```").next());
    Ok(serde_yaml_ng::from_str(yaml.ok_or("the page has no role")?)?)
}

/// Installs the chart, gives alice her rights, and waits until the policies are in force.
async fn prepared(plane: &ControlPlane) -> Result<()> {
    let admin = plane.admin().await?;
    chart::install(&admin).await?;
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": TEAM}});
    ask(&admin, Verb::Create, &namespace, false).await?;
    let reads = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
        "metadata": {"name": "reads", "namespace": TEAM},
        "rules": [{"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["mine", "also-mine", "mine-too"], "verbs": ["get"]}],
    });
    for role in [role_of_page()?, reads] {
        ask(&admin, Verb::Create, &role, false).await?;
        let name = &role["metadata"]["name"];
        let binding = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
            "metadata": {"name": name, "namespace": TEAM},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "alice"}],
        });
        ask(&admin, Verb::Create, &binding, false).await?;
    }
    let alice = plane.user("alice")?.client().await?;
    let mut again = tokio::time::interval(Duration::from_millis(200));
    let cases: Map<String, Value> = serde_yaml_ng::from_str(CASES)?;
    let in_force = async {
        for (name, fields) in &cases {
            let (_, patch) = fields.as_object().into_iter().flatten().next().ok_or("no case")?;
            let object = object(&base(name)?, patch, "other")?;
            while dry(&alice, &object)
                .await
                .err()
                .is_none_or(|refusal| refusal.code != 403)
            {
                again.tick().await;
            }
        }
        Ok(())
    };
    tokio::time::timeout(SOON, in_force).await?
}

#[tokio::test]
#[ignore = "needs helm, etcd and kube-apiserver: make test-api"]
async fn a_user_names_only_secrets_that_this_user_may_read() -> Result<()> {
    let plane = ControlPlane::start(Options::default()).await?;
    prepared(&plane).await?;
    let (admin, alice) = (plane.admin().await?, plane.user("alice")?.client().await?);
    let operator = plane.user(OPERATORS[0])?.client().await?;
    let cases: Map<String, Value> = serde_yaml_ng::from_str(CASES)?;
    let mut tried = BTreeSet::new();
    for (name, fields) in &cases {
        let base = base(name)?;
        for (field, patch) in fields.as_object().into_iter().flatten() {
            let (mine, other) = (object(&base, patch, "mine")?, object(&base, patch, "other")?);
            assert_eq!(dry(&admin, &other).await.err(), None, "{field}");
            assert_eq!(dry(&alice, &mine).await.err(), None, "{field}");
            let refusal = dry(&alice, &other)
                .await
                .err()
                .unwrap_or_else(|| panic!("{field} is not asked for"));
            assert_eq!(refusal.code, 403, "{refusal}");
            let says = format!("denied request: {field}: user alice may not read the Secret other of namespace team.");
            assert!(refusal.message.contains(&says), "{refusal}");
            tried.insert((
                base["kind"].as_str().unwrap_or_default().to_lowercase() + "s",
                field.clone(),
            ));
        }
    }
    // The operator makes the pools of runs, with the Secrets that the runs name.
    let pool = object(
        &base("inferencePool")?,
        &cases["inferencePool"]["spec.model.hub.tokenSecretRef"],
        "other",
    )?;
    assert_eq!(dry(&operator, &pool).await.err(), None);

    let file = repository().join("charts/grpo-operator/secrets/names.yaml");
    let fields: Map<String, Value> = serde_yaml_ng::from_str(&std::fs::read_to_string(file)?)?;
    let all: BTreeSet<(String, String)> = fields
        .iter()
        .flat_map(|(kind, fields)| fields.as_array().into_iter().flatten().map(move |one| (kind, one)))
        .map(|(kind, one)| (kind.clone(), one["field"].as_str().unwrap_or_default().to_owned()))
        .collect();
    assert_eq!(tried, all, "every field that names a Secret is tried");
    Ok(())
}

#[tokio::test]
#[ignore = "needs helm, etcd and kube-apiserver: make test-api"]
async fn changes_are_asked_for_too_and_every_name_of_a_list() -> Result<()> {
    let plane = ControlPlane::start(Options::default()).await?;
    prepared(&plane).await?;
    let (admin, alice) = (plane.admin().await?, plane.user("alice")?.client().await?);
    let base = base("inferencePool")?;
    let pull = |names: &[&str]| {
        let names: Vec<Value> = names.iter().map(|name| json!({"name": name})).collect();
        object(
            &base,
            &json!({"podTemplate": {"spec": {"imagePullSecrets": names}}}),
            "",
        )
    };
    for (names, code) in [
        (&["mine", "also-mine", "mine-too", "mine"][..], None),
        (&["mine", "also-mine", "other"], Some(403)),
        (&["mine", "also-mine", "mine-too", "other"], Some(403)),
        (&["", "mine"], None),
    ] {
        let refusal = dry(&alice, &pull(names)?).await.err();
        assert_eq!(
            refusal.as_ref().map(|refusal| refusal.code),
            code,
            "{names:?}: {refusal:?}"
        );
    }

    // The author of an object may use a Secret that another user who changes the object may not use.
    let made = ask(&admin, Verb::Create, &pull(&["other"])?, false).await?;
    let labelled = merged(&made, &json!({"metadata": {"labels": {"a": "b"}}}));
    let labelled = ask(&alice, Verb::Replace, &labelled, false).await?;
    let scaled = merged(&labelled, &json!({"spec": {"replicas": 3}}));
    let refusal = ask(&alice, Verb::Replace, &scaled, false).await.err();
    assert_eq!(
        refusal.map(|refusal| refusal.code),
        Some(403),
        "a changed object may send the Secret elsewhere"
    );
    let without = merged(&scaled, &json!({"spec": {"podTemplate": null}}));
    ask(&alice, Verb::Replace, &without, false).await?;
    Ok(())
}

/// The gateway's account may make pods, and a pod may mount every Secret.
#[tokio::test]
#[ignore = "needs helm, etcd and kube-apiserver: make test-api"]
async fn no_variable_leads_a_process_with_its_token_to_another_server() -> Result<()> {
    let plane = ControlPlane::start(Options::default()).await?;
    prepared(&plane).await?;
    let alice = plane.user("alice")?.client().await?;
    for (name, path) in [
        ("run", "spec.driver.env"),
        ("run", "spec.trainer.env"),
        ("run", "spec.inference.pool.env"),
        ("run", "spec.sandboxes.pool.gateway.env"),
        ("inferencePool", "spec.env"),
        ("sandboxPool", "spec.gateway.env"),
    ] {
        let with = |variable: &str| -> Result<Value> {
            let list =
                json!([{"name": "A", "value": "b"}, {"name": variable, "value": "http://elsewhere.example.com"}]);
            let patch = path.rsplit('.').fold(list, |inner, field| json!({field: inner}));
            Ok(merged(&base(name)?, &patch))
        };
        assert_eq!(dry(&alice, &with("HTTPS_PROXY")?).await.err(), None, "{path}");
        let refusal = dry(&alice, &with("KUBE_RS_DEBUG_OVERRIDE_URL")?).await.err();
        let refusal = refusal.unwrap_or_else(|| panic!("{path} is admitted"));
        assert!(
            refusal
                .message
                .contains(&format!("denied request: {path}: variables that begin with KUBE")),
            "{refusal}"
        );
    }
    Ok(())
}

/// A folder of a node can hold what the kubelet mounted into pods of other namespaces.
#[tokio::test]
#[ignore = "needs helm, etcd and kube-apiserver: make test-api"]
async fn folders_of_nodes_are_refused_to_everyone_but_not_in_objects_that_have_them() -> Result<()> {
    let plane = ControlPlane::start(Options::default()).await?;
    let admin = plane.admin().await?;
    chart::install_with(&admin, &json!({"secretsPolicy": {"enabled": false}})).await?;
    let folder = |path: &str| json!({"spec": {"modelCache": {"hostPath": path}}});
    let in_a_run = json!({"spec": {"inference": {"pool": folder("/models")["spec"]}}});
    let places = [
        ("inferencePool", folder("/models"), "spec.modelCache.hostPath"),
        ("run", in_a_run, "spec.inference.pool.modelCache.hostPath"),
    ];
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": TEAM}});
    ask(&admin, Verb::Create, &namespace, false).await?;
    let older = merged(&base("inferencePool")?, &folder("/models"));
    let older = merged(&older, &json!({"metadata": {"name": "older"}}));
    let older = ask(&admin, Verb::Create, &older, false).await?;

    chart::install(&admin).await?;
    let mut again = tokio::time::interval(Duration::from_millis(200));
    let in_force = async {
        for (name, patch, _) in &places {
            while dry(&admin, &merged(&base(name)?, patch)).await.is_ok() {
                again.tick().await;
            }
        }
        Result::Ok(())
    };
    tokio::time::timeout(SOON, in_force).await??;
    for (name, patch, path) in &places {
        let refusal = dry(&admin, &merged(&base(name)?, patch)).await.err();
        let refusal = refusal.unwrap_or_else(|| panic!("{path} is admitted"));
        assert_eq!(refusal.code, 403, "{refusal}");
        assert!(
            refusal.message.contains(&format!("denied request: {path}: a folder")),
            "{refusal}"
        );
    }
    let scaled = merged(&older, &json!({"spec": {"replicas": 3}}));
    ask(&admin, Verb::Replace, &scaled, true).await?;
    let moved = merged(&older, &folder("/elsewhere"));
    let refusal = ask(&admin, Verb::Replace, &moved, true).await.err();
    assert_eq!(
        refusal.map(|refusal| refusal.code),
        Some(403),
        "another folder is a new one"
    );
    Ok(())
}

#[test]
#[ignore = "needs helm: make test-api"]
fn the_policies_are_made_unless_a_value_says_otherwise() -> Result<()> {
    let policies = |values: Value| -> Result<usize> {
        let rendered = chart::render(&values)?;
        let is_policy = |object: &&Value| object["kind"] == "ValidatingAdmissionPolicy";
        Ok(rendered.iter().filter(is_policy).count())
    };
    assert_eq!(policies(json!({}))?, 3);
    assert_eq!(
        policies(json!({"secretsPolicy": null}))?,
        3,
        "with the values of an older chart"
    );
    assert_eq!(policies(json!({"secretsPolicy": {"enabled": false}}))?, 0);
    let refuses_folders = |values: Value| -> Result<bool> {
        Ok(json!(chart::render(&values)?)
            .to_string()
            .contains("a folder of the node"))
    };
    assert!(refuses_folders(json!({}))?);
    assert!(!refuses_folders(json!({"secretsPolicy": {"hostPath": true}}))?);
    let rendered = chart::render(&json!({"watchNamespace": "team-a"}))?;
    let bindings = rendered
        .iter()
        .filter(|object| object["kind"] == "ValidatingAdmissionPolicyBinding");
    for binding in bindings {
        let selector = &binding["spec"]["matchResources"]["namespaceSelector"]["matchLabels"];
        assert_eq!(selector, &json!({"kubernetes.io/metadata.name": "team-a"}));
    }
    Ok(())
}
