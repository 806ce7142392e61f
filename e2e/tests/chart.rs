//! The chart as helm judges and renders it: valid values have their effect, and wrong ones are refused with the path of
//! the field.
//!
//! Needs helm and kube-apiserver, which `make setup` builds: `make test-api`. Without them these tests do not run.

mod names;
mod secrets;

use std::collections::BTreeSet;

use crate::support::Result;
use grpo_testing::ask::{Verb, ask};
use grpo_testing::chart::{self, ChartError};
use grpo_testing::control_plane::{ControlPlane, Options};
use serde_json::{Value, json};

fn of_kind<'a>(rendered: &'a [Value], kind: &str) -> Vec<&'a Value> {
    rendered.iter().filter(|object| object["kind"] == kind).collect()
}

#[test]
#[ignore = "needs helm: make test-api"]
fn wrong_values_are_refused_by_the_path_of_the_field() {
    let resources = |section: Value| json!({"resources": section});
    for (values, path, says) in [
        (json!({"replicas": 0}), "/replicas", "minimum"),
        (json!({"replicas": "two"}), "/replicas", "want integer"),
        (
            json!({"imagePullPolicy": "Sometimes"}),
            "/imagePullPolicy",
            "'IfNotPresent'",
        ),
        (json!({"image": "x"}), "''", "'image' not allowed"),
        (json!({"images": {"drivr": "x"}}), "/images", "'drivr' not allowed"),
        (
            json!({"images": {"operator": "two words"}}),
            "/images/operator",
            "pattern",
        ),
        (
            json!({"images": {"registry": "https://registry.example.com"}}),
            "/images/registry",
            "pattern",
        ),
        (json!({"images": {"tag": ""}}), "/images/tag", "pattern"),
        (
            json!({"images": {"vllmRepository": "vllm@sha256:00"}}),
            "/images/vllmRepository",
            "pattern",
        ),
        (json!({"watchNamespace": "Team_A"}), "/watchNamespace", "pattern"),
        (
            json!({"imagePullSecrets": ["mine"]}),
            "/imagePullSecrets/0",
            "want object",
        ),
        (json!({"nodeSelector": {"gpu": 8}}), "/nodeSelector/gpu", "want string"),
        (
            json!({"tolerations": [{"keys": "a"}]}),
            "/tolerations/0",
            "'keys' not allowed",
        ),
        (
            json!({"affinity": {"nodeAfinity": {}}}),
            "/affinity",
            "'nodeAfinity' not allowed",
        ),
        (json!({"podLabels": {"a": 1}}), "/podLabels/a", "want string"),
        (resources(json!({"request": {}})), "/resources", "'request' not allowed"),
        (
            resources(json!({"limits": {"memory": "1 GB"}})),
            "/resources/limits/memory",
            "pattern",
        ),
        (json!({"log": ""}), "/log", "minLength"),
        (
            json!({"monitoring": {"podMonitors": {"enabled": "yes"}}}),
            "/monitoring/podMonitors/enabled",
            "want boolean",
        ),
        (
            json!({"monitoring": {"rules": {"disable": []}}}),
            "/monitoring/rules",
            "'disable' not allowed",
        ),
        (
            json!({"monitoring": {"podMonitors": {"interval": "often"}}}),
            "/monitoring/podMonitors/interval",
            "pattern",
        ),
        (json!({"nodeScaleUpSeconds": -1}), "/nodeScaleUpSeconds", "minimum"),
        (json!({"admitUnsupported": "yes"}), "/admitUnsupported", "want boolean"),
        (
            json!({"podSecurity": {"assignIds": "no"}}),
            "/podSecurity/assignIds",
            "want boolean",
        ),
        (
            json!({"nodeScaleUpSeconds": 900, "watchNamespace": "team"}),
            "nodeScaleUpSeconds",
            "watchNamespace",
        ),
    ] {
        match chart::render(&values) {
            Err(ChartError::Refused(words)) => {
                assert!(
                    words.contains(path) && words.contains(says),
                    "{values}: wanted {path} {says}, got {words}"
                );
            }
            other => panic!("{values}: {other:?}"),
        }
    }
}

#[test]
#[ignore = "needs helm: make test-api"]
fn good_values_become_what_they_say() -> Result<()> {
    let rendered = chart::render(&json!({
        "global": {"anything": 1},
        "enabled": true,
        "replicas": 2,
        "watchNamespace": "team-a",
        "imagePullSecrets": [{"name": "mine"}],
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "tolerations": [{"operator": "Exists"}],
        "affinity": {"podAntiAffinity": {}},
        "podLabels": {"sidecar.istio.io/inject": "false", "app.kubernetes.io/name": "other"},
        "podAnnotations": {"example.com/owner": "ml"},
        "priorityClassName": "system-cluster-critical",
        "images": {
            "operator": "registry.example.com/operator@sha256:00", "registry": "registry.example.com:5000/team/grpo", "tag": "0.1.0",
        },
        "resources": {"requests": {"cpu": "50m", "memory": "1Gi"}, "limits": {"cpu": 1}},
    }))?;
    let [deployment] = of_kind(&rendered, "Deployment")[..] else {
        panic!("not one Deployment")
    };
    let pod = &deployment["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    assert_eq!(deployment["spec"]["replicas"], 2);
    assert_eq!(pod["imagePullSecrets"], json!([{"name": "mine"}]));
    assert_eq!(pod["nodeSelector"], json!({"kubernetes.io/os": "linux"}));
    assert_eq!(pod["tolerations"], json!([{"operator": "Exists"}]));
    assert_eq!(pod["affinity"], json!({"podAntiAffinity": {}}));
    let metadata = &deployment["spec"]["template"]["metadata"];
    assert_eq!(metadata["annotations"], json!({"example.com/owner": "ml"}));
    assert_eq!(metadata["labels"]["sidecar.istio.io/inject"], "false");
    for (label, value) in deployment["spec"]["selector"]["matchLabels"].as_object().unwrap() {
        assert_eq!(&metadata["labels"][label], value, "the Deployment selects its pods");
    }
    assert_eq!(pod["priorityClassName"], "system-cluster-critical");
    assert_eq!(container["image"], "registry.example.com/operator@sha256:00");
    assert_eq!(
        container["resources"]["requests"],
        json!({"cpu": "50m", "memory": "1Gi"})
    );
    let arguments = container["args"].as_array().unwrap();
    for argument in [
        "--namespace=team-a",
        "--driver-image=registry.example.com:5000/team/grpo/driver:0.1.0",
        "--pull-secret=mine",
        "--trainer-cuda-image=registry.example.com:5000/team/grpo/trainer-cuda:0.1.0",
        "--agent-image=registry.example.com:5000/team/grpo/engine-agent:0.1.0",
    ] {
        assert!(arguments.contains(&json!(argument)), "{arguments:?}");
    }
    assert_eq!(
        of_kind(&rendered, "ClusterRoleBinding").len(),
        0,
        "rights in one namespace only"
    );
    Ok(())
}

#[test]
#[ignore = "needs helm: make test-api"]
fn monitoring_is_off_by_default_and_has_every_job_alert_and_dashboard_when_it_is_on() -> Result<()> {
    let kinds = ["PodMonitor", "PrometheusRule", "ConfigMap"];
    let rendered = chart::render(&json!({}))?;
    assert!(kinds.iter().all(|kind| of_kind(&rendered, kind).is_empty()));

    let labels = json!({"release": "kube-prometheus-stack"});
    let rendered = chart::render(&json!({
        "watchNamespace": "team-a",
        "monitoring": {
            "podMonitors": {"enabled": true, "labels": labels, "interval": "30s"},
            "rules": {"enabled": true, "labels": labels, "disabled": ["GrpoEgressNotProven"], "book": "https://docs.example.com/grpo/"},
            "dashboards": {"enabled": true, "annotations": {"grafana_folder": "GRPO"}},
        },
    }))?;
    let monitors = of_kind(&rendered, "PodMonitor");
    let names: Vec<&Value> = monitors.iter().map(|one| &one["metadata"]["name"]).collect();
    assert_eq!(names, ["grpo-operator", "grpo", "grpo-engines"]);
    for monitor in &monitors {
        assert_eq!(monitor["metadata"]["labels"]["release"], "kube-prometheus-stack");
        assert_eq!(
            monitor["spec"]["namespaceSelector"],
            json!({"matchNames": ["grpo-system", "team-a"]})
        );
        let endpoint = &monitor["spec"]["podMetricsEndpoints"][0];
        assert_eq!(endpoint["interval"], "30s");
        let relabelings = endpoint["relabelings"].as_array().unwrap();
        let run = json!({"sourceLabels": ["__meta_kubernetes_pod_label_grpo_dev_run"], "targetLabel": "run"});
        assert!(relabelings.contains(&run), "{relabelings:?}");
    }
    assert_eq!(monitors[2]["spec"]["podMetricsEndpoints"][0]["path"], "/engine/metrics");

    let [rule] = of_kind(&rendered, "PrometheusRule")[..] else {
        panic!("not one PrometheusRule")
    };
    let groups = rule["spec"]["groups"].as_array().unwrap();
    let rules: Vec<&Value> = groups
        .iter()
        .flat_map(|group| group["rules"].as_array().unwrap())
        .collect();
    let alert = |name: &str| rules.iter().find(|rule| rule["alert"] == name);
    assert!(alert("GrpoEgressNotProven").is_none(), "it was left out");
    let stalls = alert("GrpoRunStalls").unwrap();
    assert_eq!(
        stalls["annotations"]["runbook_url"],
        "https://docs.example.com/grpo/operate/alerts.html#grporunstalls"
    );
    let summary = stalls["annotations"]["summary"].as_str().unwrap();
    assert!(
        summary.contains("{{ $labels.run }}"),
        "helm leaves Prometheus' templates alone: {summary}"
    );
    let file = grpo_monitoring::rules::RuleFile::of_chart()?;
    assert_eq!(rules.len(), file.rules().count() - 1);

    let dashboards = of_kind(&rendered, "ConfigMap");
    assert_eq!(dashboards.len(), grpo_monitoring::dashboards::all().len());
    for dashboard in dashboards {
        assert_eq!(dashboard["metadata"]["labels"]["grafana_dashboard"], "1");
        assert_eq!(dashboard["metadata"]["annotations"]["grafana_folder"], "GRPO");
        let files = dashboard["data"].as_object().unwrap();
        let text = files.values().next().unwrap().as_str().unwrap();
        let read: Value = serde_json::from_str(text)?;
        assert!(read["panels"].as_array().unwrap().len() > 10);
        assert!(text.contains("{{"), "legends keep Grafana's templates");
    }
    Ok(())
}

/// As a selector of labels spells a PodMonitor's.
fn spelled(selector: &Value) -> String {
    let equal = |(key, value): (&String, &Value)| format!("{key}={}", value.as_str().unwrap_or_default());
    let one_of = |part: &Value| {
        let values: Vec<&str> = part["values"]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(Value::as_str)
            .collect();
        assert_eq!(part["operator"], "In");
        format!("{} in ({})", part["key"].as_str().unwrap_or_default(), values.join(","))
    };
    let labels = selector["matchLabels"].as_object().into_iter().flatten().map(equal);
    let expressions = selector["matchExpressions"]
        .as_array()
        .into_iter()
        .flatten()
        .map(one_of);
    labels.chain(expressions).collect::<Vec<_>>().join(",")
}

#[test]
#[ignore = "needs helm: make test-api"]
fn a_pod_monitor_selects_the_pods_of_its_job_in_scrape_yaml() -> Result<()> {
    let rendered = chart::render(&json!({"monitoring": {"podMonitors": {"enabled": true}}}))?;
    let monitors = of_kind(&rendered, "PodMonitor").into_iter().map(|monitor| {
        let name = monitor["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        (name, spelled(&monitor["spec"]["selector"]))
    });
    let file = std::fs::read_to_string(grpo_monitoring::folder().join("scrape.yaml"))?;
    let file: Value = serde_yaml_ng::from_str(&file)?;
    let jobs = file["scrape_configs"].as_array().unwrap().iter().map(|job| {
        let selector = &job["kubernetes_sd_configs"][0]["selectors"][0]["label"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        (text(&job["job_name"]), text(selector))
    });
    assert_eq!(Vec::from_iter(monitors), Vec::from_iter(jobs));
    Ok(())
}

/// What `helm upgrade --reuse-values` gives: the values of a chart that did not have these settings yet.
#[test]
#[ignore = "needs helm: make test-api"]
fn monitoring_works_with_the_values_of_an_older_chart() -> Result<()> {
    let rendered = chart::render(&json!({"monitoring": null, "podSecurity": null}))?;
    assert_eq!(of_kind(&rendered, "PodMonitor").len(), 0);
    let security = &of_kind(&rendered, "Deployment")[0]["spec"]["template"]["spec"]["containers"][0]["securityContext"];
    assert_eq!(security["runAsGroup"], 65532);
    let rendered = chart::render(&json!({
        "monitoring": {
            "podMonitors": {"enabled": true, "interval": null, "labels": null},
            "rules": {"enabled": true, "disabled": null, "labels": null, "book": null},
            "dashboards": {"enabled": true, "labels": null, "annotations": null},
        },
    }))?;
    for monitor in of_kind(&rendered, "PodMonitor") {
        assert_eq!(monitor["spec"]["podMetricsEndpoints"][0]["interval"], "15s");
    }
    assert_eq!(of_kind(&rendered, "PrometheusRule").len(), 1);
    for dashboard in of_kind(&rendered, "ConfigMap") {
        assert_eq!(dashboard["metadata"]["labels"]["grafana_dashboard"], "1");
    }
    // Labels that a user takes away on purpose stay away.
    let rendered = chart::render(
        &json!({"monitoring": {"dashboards": {"enabled": true, "labels": {"grafana_dashboard": null}}}}),
    )?;
    for dashboard in of_kind(&rendered, "ConfigMap") {
        assert_eq!(dashboard["metadata"]["labels"]["grafana_dashboard"], Value::Null);
    }
    Ok(())
}

#[test]
#[ignore = "needs helm: make test-api"]
fn settings_that_are_off_by_default_reach_the_operator_as_flags() -> Result<()> {
    let flag = |values: Value, name: &str| -> Result<Option<String>> {
        let rendered = chart::render(&values)?;
        let deployment = of_kind(&rendered, "Deployment");
        let arguments = deployment[0]["spec"]["template"]["spec"]["containers"][0]["args"]
            .as_array()
            .unwrap();
        let mut texts = arguments.iter().filter_map(Value::as_str);
        Ok(texts.find(|text| text.starts_with(name)).map(str::to_owned))
    };
    for (off, on, wanted) in [
        (
            json!({"nodeScaleUpSeconds": 0}),
            json!({"nodeScaleUpSeconds": 900}),
            "--node-scale-up-seconds=900",
        ),
        (
            json!({"admitUnsupported": false}),
            json!({"admitUnsupported": true}),
            "--admit-unsupported",
        ),
        (
            json!({"podSecurity": {"assignIds": true}}),
            json!({"podSecurity": {"assignIds": false}}),
            "--cluster-assigns-ids",
        ),
    ] {
        let name = wanted.split('=').next().unwrap_or_default();
        for values in [json!({}), off] {
            assert_eq!(flag(values.clone(), name)?, None, "{values}");
        }
        assert_eq!(flag(on, name)?.as_deref(), Some(wanted));
    }
    Ok(())
}

/// Kind, namespace and name of a release's objects, without the CRDs, which all releases share.
fn made(namespace: &str, values: &Value) -> Result<BTreeSet<(String, String, String)>> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let rendered = chart::render_in(namespace, values)?;
    let rest = rendered
        .iter()
        .filter(|object| object["kind"] != "CustomResourceDefinition");
    Ok(rest
        .map(|object| {
            let metadata = &object["metadata"];
            (
                text(&object["kind"]),
                text(&metadata["namespace"]),
                text(&metadata["name"]),
            )
        })
        .collect())
}

#[test]
#[ignore = "needs helm: make test-api"]
fn two_releases_in_two_namespaces_share_no_object_but_the_crds() -> Result<()> {
    for values in [json!({}), json!({"watchNamespace": "team"})] {
        let (first, second) = (made("first", &values)?, made("second", &values)?);
        assert_eq!((first.len(), second.len()), (14, 14), "{first:?}");
        let both: Vec<_> = first.intersection(&second).collect();
        assert!(both.is_empty(), "{both:?}");
    }
    Ok(())
}

/// Every rule of every role of the chart.
fn rules(rendered: &[Value]) -> Vec<&Value> {
    let roles = rendered
        .iter()
        .filter(|object| ["ClusterRole", "Role"].contains(&object["kind"].as_str().unwrap()));
    roles
        .flat_map(|role| role["rules"].as_array().into_iter().flatten())
        .collect()
}

fn has(rule: &Value, field: &str, word: &str) -> bool {
    rule[field]
        .as_array()
        .is_some_and(|words| words.iter().any(|one| one == word))
}

#[test]
#[ignore = "needs helm: make test-api"]
fn the_operator_may_do_nothing_by_wildcard_and_neither_list_nor_watch_secrets() -> Result<()> {
    for values in [json!({}), json!({"watchNamespace": "team-a"})] {
        let rendered = chart::render(&values)?;
        let rules = rules(&rendered);
        assert!(
            rules.iter().any(|rule| has(rule, "resources", "secrets")),
            "this test looks at the wrong rules"
        );
        for rule in rules {
            for field in ["apiGroups", "resources", "verbs"] {
                let words = rule[field].as_array().unwrap();
                assert!(words.iter().all(|word| !word.as_str().unwrap().contains('*')), "{rule}");
            }
            for verb in ["list", "watch", "deletecollection"] {
                assert!(
                    !(has(rule, "resources", "secrets") && has(rule, "verbs", verb)),
                    "{rule}"
                );
            }
            for verb in ["bind", "escalate", "impersonate"] {
                assert!(!has(rule, "verbs", verb), "{rule}");
            }
        }
    }
    Ok(())
}

/// The pod of the chart's Deployment.
fn operator_pod(rendered: &[Value], namespace: &str) -> Value {
    let template = &of_kind(rendered, "Deployment")[0]["spec"]["template"];
    let mut spec = template["spec"].clone();
    // The account belongs to the system namespace; Pod Security does not look at it.
    spec.as_object_mut().unwrap().remove("serviceAccountName");
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "operator", "namespace": namespace, "labels": template["metadata"]["labels"]},
        "spec": spec,
    })
}

#[tokio::test]
#[ignore = "needs helm, etcd and kube-apiserver: make test-api"]
async fn the_api_server_admits_the_operators_pod_where_it_enforces_the_restricted_level() -> Result<()> {
    let plane = ControlPlane::start(Options::default()).await?;
    let client = plane.admin().await?;
    let labels = json!({"pod-security.kubernetes.io/enforce": "restricted", "pod-security.kubernetes.io/enforce-version": "latest"});
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "strict", "labels": labels}});
    ask(&client, Verb::Create, &namespace, false).await?;
    let account =
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": "strict"}});
    ask(&client, Verb::Create, &account, false).await?;

    let pod = operator_pod(&chart::render(&json!({}))?, "strict");
    let whole = &pod["spec"]["securityContext"];
    assert!(whole["runAsUser"].is_null(), "OpenShift names the user itself");
    assert!(whole["runAsGroup"].is_null(), "a group needs a user beside it");
    assert_eq!(ask(&client, Verb::Create, &pod, true).await.err(), None);
    let without_ids = operator_pod(&chart::render(&json!({"podSecurity": {"assignIds": false}}))?, "strict");
    assert!(without_ids["spec"]["containers"][0]["securityContext"]["runAsGroup"].is_null());
    assert_eq!(ask(&client, Verb::Create, &without_ids, true).await.err(), None);
    // The level requires each of these: without it the same pod is refused.
    for (field, lax) in [
        ("/spec/securityContext/runAsNonRoot", json!(false)),
        ("/spec/securityContext/seccompProfile/type", json!("Unconfined")),
        (
            "/spec/containers/0/securityContext/allowPrivilegeEscalation",
            json!(true),
        ),
        ("/spec/containers/0/securityContext/capabilities/drop", json!([])),
    ] {
        let mut pod = pod.clone();
        *pod.pointer_mut(field).unwrap() = lax;
        if field.ends_with("runAsNonRoot") {
            *pod.pointer_mut("/spec/containers/0/securityContext/runAsNonRoot")
                .unwrap() = json!(false);
        }
        let refusal = ask(&client, Verb::Create, &pod, true).await.err();
        let refusal = refusal.unwrap_or_else(|| panic!("admitted without {field}"));
        assert!(
            refusal.message.contains("violates PodSecurity \"restricted:latest\""),
            "{refusal}"
        );
    }
    assert_eq!(
        pod["spec"]["containers"][0]["securityContext"]["readOnlyRootFilesystem"],
        true
    );
    Ok(())
}
