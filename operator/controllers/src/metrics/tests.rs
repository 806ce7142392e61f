//! The book's page lists exactly the served metrics, and none has the name of an object in it.

use std::collections::BTreeSet;

use super::*;
use crate::parent::Controlled;

/// Metrics with at least one value each.
fn filled() -> Metrics {
    let metrics = Metrics::new();
    let parent = Parent {
        kind: Controlled::Run,
        namespace: "a-namespace".into(),
        name: "a-name".into(),
    };
    metrics.leading();
    metrics.reconciled("GrpoRun", Duration::from_millis(3), Some("ApplyFailed"));
    metrics.unreadable("GrpoRun");
    metrics.triggered(&parent);
    metrics.begun("GrpoRun", "a-namespace", "a-name");
    metrics.triggered(&parent);
    metrics.requested("get", Some(200), Duration::from_millis(3));
    metrics.interrupted("Pod");
    metrics.attempt("driver");
    metrics.pod_failed("driver", "OOMKilled");
    metrics.at_each_look(|census| {
        census.listed("GrpoRun", true);
        census.objects("GrpoRun", "Running");
        census.waiting_run("NeverFits");
        census.pods("driver", "Ready");
    });
    metrics
}

/// Name as in a Prometheus query, kind and labels of each served metric.
fn served(text: &str) -> BTreeSet<(String, String, String)> {
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    types
        .filter_map(|line| {
            let (name, kind) = line.split_once(' ')?;
            let values = |line: &&str| {
                line.strip_prefix(name)
                    .is_some_and(|rest| rest.starts_with(['{', '_', ' ']))
            };
            let line = text.lines().find(values)?;
            let labels = line
                .split_once('{')
                .and_then(|(_, rest)| rest.split_once('}'))
                .map_or("", |(inside, _)| inside);
            let labels: Vec<&str> = labels
                .split(',')
                .filter_map(|label| Some(label.split_once('=')?.0))
                .filter(|label| *label != "le")
                .collect();
            let name = if kind == "counter" {
                format!("{name}_total")
            } else {
                name.to_owned()
            };
            Some((name, kind.to_owned(), labels.join(", ")))
        })
        .collect()
}

/// The rows of the page's table.
fn documented(page: &str) -> BTreeSet<(String, String, String)> {
    let cells = |line: &str| -> Option<(String, String, String)> {
        let mut cells = line.strip_prefix("| `")?.split(" | ");
        let name = cells.next()?.trim_end_matches('`').to_owned();
        let (kind, labels) = (cells.next()?.to_owned(), cells.next()?.replace('`', ""));
        Some((name, kind, labels.trim().to_owned()))
    };
    page.lines().filter_map(cells).collect()
}

#[test]
fn the_book_lists_exactly_what_is_served() {
    let page = include_str!("../../../../docs/src/metrics.md");
    let (own, _) = page.split_once("\n## A sandbox gateway's").unwrap();
    assert_eq!(documented(own), served(&filled().text()));
}

#[test]
fn counters_of_alerts_begin_at_zero() {
    let text = Metrics::new().text();
    for line in [
        r#"grpo_operator_reconcile_errors_total{kind="SandboxPool",reason="OperatorFault"} 0"#,
        r#"grpo_operator_api_requests_total{verb="patch",code="403"} 0"#,
        r#"grpo_operator_pod_failures_total{role="engine",cause="OOMKilled"} 0"#,
    ] {
        assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
    }
}

#[test]
fn no_label_is_the_name_of_an_object() {
    let text = filled().text();
    assert!(!text.contains("a-name"), "{text}");
    let allowed = ["kind", "reason", "state", "role", "cause", "verb", "code"];
    for (name, _, labels) in served(&text) {
        for label in labels.split(", ").filter(|label| !label.is_empty()) {
            assert!(allowed.contains(&label), "{name} has the label {label}");
        }
    }
}

#[test]
fn how_things_are_is_looked_up_anew_each_time() {
    let metrics = Metrics::new();
    let state = Arc::new(Mutex::new("Provisioning"));
    let seen = state.clone();
    metrics.at_each_look(move |census| census.objects("GrpoRun", *seen.lock().unwrap()));
    assert!(
        metrics
            .text()
            .contains(r#"grpo_operator_objects{kind="GrpoRun",state="Provisioning"} 1"#)
    );
    *state.lock().unwrap() = "Running";
    let text = metrics.text();
    assert!(
        text.contains(r#"grpo_operator_objects{kind="GrpoRun",state="Running"} 1"#),
        "{text}"
    );
    assert!(!text.contains("Provisioning"), "{text}");
}

#[test]
fn scrapes_at_the_same_time_each_have_all_counts_once() {
    let metrics = Metrics::new();
    metrics.at_each_look(|census| {
        for _ in 0..50 {
            census.objects("GrpoRun", "Failed");
        }
        census.listed("GrpoRun", true);
    });
    std::thread::scope(|threads| {
        for _ in 0..4 {
            threads.spawn(|| {
                for _ in 0..200 {
                    let text = metrics.text();
                    let failed = r#"grpo_operator_objects{kind="GrpoRun",state="Failed"} 50"#;
                    assert!(text.lines().any(|line| line == failed), "{text}");
                }
            });
        }
    });
}
