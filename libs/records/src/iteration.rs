//! The metrics of an iteration, written when its batch is complete.

use crate::episode::EpisodeMeta;
use crate::outcome::Outcome;
use crate::record::{Record, SCHEMA, Writer};
use crate::trainer::shown;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// `metrics/driver/<k>.json`: the metrics of an iteration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IterationRecord {
    pub schema: u32,
    pub writer: Writer,
    pub iteration: u32,
    pub weights: String,
    pub episodes: u32,
    pub resolved: u32,
    pub voids: u32,
    pub resolved_rate: f64,
    pub reward_mean: f64,
    /// Groups that the batch dropped, without surplus ones.
    pub groups_dropped: u32,
    /// Those of them that dynamic sampling dropped.
    pub groups_without_signal: u32,
    /// Groups of the batch in which all episodes have the same reward.
    pub groups_constant: u32,
    pub ends: BTreeMap<String, u32>,
    pub turns_mean: f64,
    pub tokens_mean: f64,
    pub sampled_tokens: u64,
    pub format_errors: u32,
    pub truncated: u32,
    pub reused_verdicts: u32,
    pub staleness_max: u32,
    pub agent_millis: u64,
    pub grade_millis: u64,
    pub waited_millis: u64,
}

impl Record for IterationRecord {}

impl IterationRecord {
    /// Sums up the final attempts of an iteration's episodes.
    pub fn of(writer: Writer, iteration: u32, weights: String, metas: &[EpisodeMeta]) -> Self {
        let valid: Vec<&EpisodeMeta> = metas.iter().filter(|meta| meta.outcome.is_verdict()).collect();
        let mean = |sum: f64| {
            if valid.is_empty() {
                0.0
            } else {
                sum / valid.len() as f64
            }
        };
        let resolved = valid.iter().filter(|meta| meta.outcome == Outcome::Resolved).count() as u32;
        let mut ends = BTreeMap::new();
        for meta in &valid {
            *ends.entry(format!("{:?}", meta.end)).or_default() += 1;
        }
        let sum = |of: fn(&EpisodeMeta) -> u64| valid.iter().map(|meta| of(meta)).sum::<u64>();
        Self {
            schema: SCHEMA,
            writer,
            iteration,
            weights,
            episodes: valid.len() as u32,
            resolved,
            voids: (metas.len() - valid.len()) as u32,
            resolved_rate: mean(f64::from(resolved)),
            reward_mean: mean(valid.iter().map(|m| f64::from(m.reward.unwrap_or_default())).sum()),
            groups_dropped: 0,
            groups_without_signal: 0,
            groups_constant: 0,
            ends,
            turns_mean: mean(sum(|m| u64::from(m.turns)) as f64),
            tokens_mean: mean(sum(|m| m.tokens as u64) as f64),
            sampled_tokens: sum(|m| m.sampled_tokens as u64),
            format_errors: sum(|m| u64::from(m.format_errors)) as u32,
            truncated: sum(|m| u64::from(m.truncated)) as u32,
            reused_verdicts: valid
                .iter()
                .filter(|m| m.grade.as_ref().is_some_and(|g| g.reused_from.is_some()))
                .count() as u32,
            staleness_max: 0,
            agent_millis: sum(|m| m.agent_millis),
            grade_millis: sum(|m| m.grade_millis),
            waited_millis: sum(|m| m.waited_millis),
        }
    }

    /// Its numbers by name: the field names in snake case.
    pub fn numbers(&self) -> Vec<(String, f64)> {
        let fields = match serde_json::to_value(self) {
            Ok(serde_json::Value::Object(fields)) => fields,
            _ => serde_json::Map::new(),
        };
        let named = fields
            .iter()
            .filter(|(name, _)| !["schema", "iteration"].contains(&name.as_str()));
        named
            .filter_map(|(name, value)| Some((shown(name), value.as_f64()?)))
            .collect()
    }
}
