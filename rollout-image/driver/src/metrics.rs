//! The driver's metrics, as Prometheus text and as one record per iteration.

use grpo_records::{DropReason, EpisodeMeta, JudgedTurn, Outcome, SCHEMA, VoidReason, VoteEnd, Writer};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OutcomeLabel {
    outcome: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ReasonLabel {
    reason: String,
}

/// Counters of one driver process.
pub struct Metrics {
    registry: Registry,
    episodes: Family<OutcomeLabel, Counter>,
    voids: Family<ReasonLabel, Counter>,
    groups_dropped: Family<ReasonLabel, Counter>,
    judge_votes: Family<OutcomeLabel, Counter>,
    sampled_tokens: Counter,
    turns: Counter,
    /// Abandoned attempts: their sandbox was lost with an earlier driver, or new weights came (Abort).
    pub attempts_left: Counter,
    format_errors: Counter,
    reused_verdicts: Counter,
    pub iteration: Gauge,
    pub replicas: Gauge,
    pub replicas_updated: Gauge,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut metrics = Self {
            registry: Registry::with_prefix("grpo_driver"),
            episodes: Family::default(),
            voids: Family::default(),
            groups_dropped: Family::default(),
            judge_votes: Family::default(),
            sampled_tokens: Counter::default(),
            turns: Counter::default(),
            attempts_left: Counter::default(),
            format_errors: Counter::default(),
            reused_verdicts: Counter::default(),
            iteration: Gauge::default(),
            replicas: Gauge::default(),
            replicas_updated: Gauge::default(),
        };
        let registry = &mut metrics.registry;
        registry.register("episodes", "Episodes with a verdict", metrics.episodes.clone());
        registry.register("voids", "Tries lost to the infrastructure", metrics.voids.clone());
        registry.register(
            "groups_dropped",
            "Groups that no batch has",
            metrics.groups_dropped.clone(),
        );
        registry.register(
            "judge_votes",
            "Votes of the judge of turns, by what became of them",
            metrics.judge_votes.clone(),
        );
        registry.register(
            "sampled_tokens",
            "Tokens sampled in finished episodes",
            metrics.sampled_tokens.clone(),
        );
        registry.register(
            "attempts_left",
            "Attempts that other attempts replaced: new weights came (onSync Abort), or the driver had been replaced",
            metrics.attempts_left.clone(),
        );
        registry.register("turns", "Turns of finished episodes", metrics.turns.clone());
        registry.register(
            "format_errors",
            "Turns without exactly one block",
            metrics.format_errors.clone(),
        );
        registry.register(
            "reused_verdicts",
            "Verdicts taken over from an identical patch",
            metrics.reused_verdicts.clone(),
        );
        registry.register("iteration", "The iteration that runs", metrics.iteration.clone());
        registry.register("replicas", "Engine replicas known", metrics.replicas.clone());
        registry.register(
            "replicas_updated",
            "Engine replicas that serve the promoted weights",
            metrics.replicas_updated.clone(),
        );
        metrics
    }
}

impl Metrics {
    pub fn verdict(&self, meta: &EpisodeMeta) {
        let outcome = OutcomeLabel {
            outcome: meta.outcome.to_string(),
        };
        self.episodes.get_or_create(&outcome).inc();
        self.sampled_tokens.inc_by(meta.sampled_tokens as u64);
        self.turns.inc_by(u64::from(meta.turns));
        self.format_errors.inc_by(u64::from(meta.format_errors));
        let reused = meta.grade.as_ref().is_some_and(|grade| grade.reused_from.is_some());
        self.reused_verdicts.inc_by(u64::from(reused));
    }

    pub fn void(&self, reason: VoidReason) {
        let reason = ReasonLabel {
            reason: format!("{reason:?}"),
        };
        self.voids.get_or_create(&reason).inc();
    }

    pub fn dropped(&self, reason: DropReason) {
        let reason = ReasonLabel {
            reason: format!("{reason:?}"),
        };
        self.groups_dropped.get_or_create(&reason).inc();
    }

    /// Counts the votes on a turn, once they are durable.
    pub fn judged(&self, judged: &JudgedTurn) {
        judged.votes.iter().for_each(|vote| self.vote(vote.end()));
    }

    fn vote(&self, end: VoteEnd) {
        let outcome = OutcomeLabel {
            outcome: format!("{end:?}"),
        };
        self.judge_votes.get_or_create(&outcome).inc();
    }

    /// The Prometheus text.
    pub fn text(&self) -> String {
        let mut text = String::new();
        match encode(&mut text, &self.registry) {
            Ok(()) => text,
            Err(_) => String::new(),
        }
    }
}

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
}

#[cfg(test)]
mod tests;
