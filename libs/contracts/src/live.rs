//! The settings that may change under a running driver, and how it applies them from a newer `run.json`.
//!
//! The API server refuses most changes during a run. This module checks every change in the file again: the file may
//! belong to another run of the same name, or the API server may have seen the change before the run's new phase. It
//! does not report fields that other components apply.

use serde_json::Value;

use crate::RunConfig;

/// Other components apply changes of these fields, or the changes take effect at the next start.
const OF_OTHERS: [&str; 4] = ["suspend", "ttlSecondsAfterFinished", "inference.pool", "sandboxes.pool"];

/// The configuration after the live changes of a newer `run.json`.
#[derive(Clone, Debug, PartialEq)]
pub struct LiveUpdate {
    pub config: RunConfig,
    /// Other paths below `spec` that differ; their values are unchanged.
    pub ignored: Vec<String>,
}

/// The `run.json` belongs to another run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it is the configuration of a run with uid {found}, and this run's uid is {own}")]
pub struct OtherRunError {
    pub own: String,
    pub found: String,
}

impl RunConfig {
    /// This configuration with the live settings of `newer`: the number of iterations, sampling, checkpoints, and when
    /// sets are evaluated.
    pub fn with_live_changes_of(&self, newer: &Self) -> Result<LiveUpdate, OtherRunError> {
        if newer.uid != self.uid {
            return Err(OtherRunError {
                own: self.uid.clone(),
                found: newer.uid.clone(),
            });
        }
        let mut config = self.clone();
        config.spec.rollout.iterations = newer.spec.rollout.iterations;
        config.spec.rollout.sampling = newer.spec.rollout.sampling.clone();
        config.spec.checkpoint = newer.spec.checkpoint.clone();
        for set in &mut config.spec.tasks.evaluate {
            let newer = newer.spec.tasks.evaluate.iter().find(|other| other.name == set.name);
            if let Some(newer) = newer {
                (set.every, set.at_start, set.at_end) = (newer.every, newer.at_start, newer.at_end);
            }
        }
        let mut ignored = Vec::new();
        // A spec that was read from JSON can always be written as JSON.
        let (kept, given) = (
            serde_json::to_value(&config.spec).unwrap_or_default(),
            serde_json::to_value(&newer.spec).unwrap_or_default(),
        );
        differences("", &kept, &given, &mut ignored);
        ignored.retain(|path| {
            !OF_OTHERS
                .iter()
                .any(|other| path == other || path.starts_with(&format!("{other}.")))
        });
        Ok(LiveUpdate { config, ignored })
    }
}

/// Paths at which two specs differ: objects field by field, lists as a whole.
fn differences(path: &str, one: &Value, other: &Value, found: &mut Vec<String>) {
    match (one, other) {
        (Value::Object(one), Value::Object(other)) => {
            let names: std::collections::BTreeSet<&String> = one.keys().chain(other.keys()).collect();
            for name in names {
                let path = if path.is_empty() {
                    name.clone()
                } else {
                    format!("{path}.{name}")
                };
                let of = |fields: &serde_json::Map<String, Value>| fields.get(name).cloned().unwrap_or_default();
                differences(&path, &of(one), &of(other), found);
            }
        }
        (one, other) if one != other => found.push(path.to_owned()),
        _ => {}
    }
}

#[cfg(test)]
mod tests;
