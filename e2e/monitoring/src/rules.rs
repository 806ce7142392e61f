//! `rules.yaml` of the chart: recording and alerting rules, as Prometheus reads them.

use crate::promql::with_window;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct RuleFile {
    pub groups: Vec<Group>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Group {
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval: Option<String>,
    pub rules: Vec<Rule>,
}

/// An alert or a recorded series.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alert: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub record: Option<String>,
    pub expr: String,
    #[serde(default, rename = "for", skip_serializing_if = "Option::is_none")]
    pub hold: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

impl RuleFile {
    /// The chart's file.
    pub fn of_chart() -> Result<Self, Box<dyn std::error::Error + Send + Sync>> {
        let text = std::fs::read_to_string(crate::folder().join("rules.yaml"))?;
        Ok(serde_yaml_ng::from_str(&text)?)
    }

    pub fn rules(&self) -> impl Iterator<Item = &Rule> {
        self.groups.iter().flat_map(|group| &group.rules)
    }

    /// Alerts by name.
    pub fn alerts(&self) -> BTreeMap<&str, &Rule> {
        let named = |rule: &'_ Rule| rule.alert.is_some();
        let alerts = self.rules().filter(|rule| named(rule));
        alerts.filter_map(|rule| Some((rule.alert.as_deref()?, rule))).collect()
    }

    /// The same rules with short windows and no time to hold, so that a test sees alerts within seconds.
    pub fn hurried(mut self, window: &str, interval: &str) -> Self {
        for group in &mut self.groups {
            group.interval = Some(interval.to_owned());
            for rule in &mut group.rules {
                rule.expr = with_window(&rule.expr, window);
                rule.hold = rule.hold.as_ref().map(|_| interval.to_owned());
            }
        }
        self
    }
}
