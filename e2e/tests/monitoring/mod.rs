//! The chart's monitoring on a real cluster, with Prometheus and Prometheus' operator: every panel of every dashboard
//! has data during a run, no alert fires within its few minutes, and alerts fire when their cause is there. Alerts that
//! hold or look back for longer cannot fire falsely here: promtool plays their series (e2e/monitoring/rules.test.yaml).
//!
//! `make check-monitoring` installs both and runs this. The cluster's node pulls no images, so Prometheus runs as a
//! process in the cluster's network, with the configuration that its operator made of the chart's objects.

mod causes;
mod other_model;
mod outside_schema;
mod prometheus;

use crate::support::{Result, Scene, small_run};
use grpo_crds::grpo_run::Phase;
use grpo_monitoring::dashboards::{self, Dashboard};
use grpo_monitoring::rules::RuleFile;
use prometheus::Prometheus;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// No NetworkPolicy is enforced on the local cluster, so this alert has its cause there.
const ALWAYS: &str = "GrpoEgressNotProven";
const LOOK_AGAIN: Duration = Duration::from_secs(2);

/// All panels by dashboard and title, with their queries.
fn panels() -> BTreeMap<(&'static str, &'static str), Vec<String>> {
    let mut panels: BTreeMap<_, Vec<String>> = BTreeMap::new();
    for dashboard in dashboards::all() {
        for (title, query) in Dashboard::queries(&dashboard) {
            panels.entry((dashboard.name, title)).or_default().push(query);
        }
    }
    panels
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a cluster with images, Prometheus and its operator: make check-monitoring"]
async fn every_panel_has_data_and_alerts_fire_when_their_cause_is_there() -> Result<()> {
    let scene = Scene::new("monitoring").await?;
    let mut prometheus = Prometheus::start(&scene).await?;

    let mut empty = panels();
    let all = empty.len();
    let mut fired = BTreeSet::new();
    scene
        .apply(&small_run("monitored")?.with("/rollout/iterations", json!(4)))
        .await?;
    let mut again = tokio::time::interval(LOOK_AGAIN);
    loop {
        again.tick().await;
        for (panel, queries) in empty.clone() {
            for query in queries {
                if prometheus.has_data(&query).await? {
                    empty.remove(&panel);
                }
            }
        }
        fired.extend(prometheus.firing().await?);
        let run = scene.runs().get("monitored").await?;
        let phase = run.status.and_then(|status| status.phase);
        match phase {
            Some(Phase::Succeeded) => break,
            Some(Phase::Failed) => return Err("the run failed".into()),
            _ => {}
        }
    }
    let targets = prometheus.targets().await?;
    scene.say(&format!(
        "{} of {all} panels had data during the run; targets: {targets:?}",
        all - empty.len()
    ));
    assert!(empty.is_empty(), "panels without data: {empty:#?}");
    fired.remove(ALWAYS);
    assert!(fired.is_empty(), "alerts without a cause: {fired:?}");

    prometheus.hurry().await?;
    let seen = causes::all(&scene, &prometheus).await?;
    scene.say(&format!("{} alerts fired for their cause: {seen:?}", seen.len()));
    let rules = RuleFile::of_chart()?;
    assert_eq!(
        BTreeSet::from_iter(seen),
        BTreeSet::from_iter(rules.alerts().into_keys()),
        "an alert of the chart without a cause here"
    );
    scene.clear().await
}
