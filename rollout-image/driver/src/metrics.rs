//! The driver's metrics as Prometheus text. Those of an iteration are a record, [`grpo_records::IterationRecord`].

use grpo_records::{DropReason, EpisodeMeta, JudgedTurn, Outcome, VoidReason, VoteEnd};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

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
    /// Tasks of mode Validate.
    pub tasks_validated: Counter,
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
            tasks_validated: Counter::default(),
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
            "tasks_validated",
            "Tasks that were validated or found validated (mode Validate)",
            metrics.tasks_validated.clone(),
        );
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
        metrics.begin_at_zero();
        metrics
    }
}

impl Metrics {
    /// Makes every counter with a label from a fixed list. Prometheus sees no increase in a counter whose first value
    /// is 1, so the first void would be in no rate and in no alert.
    fn begin_at_zero(&self) {
        let outcomes = [Outcome::Resolved, Outcome::Unresolved].map(|outcome| outcome.to_string());
        for outcome in outcomes {
            drop(self.episodes.get_or_create(&OutcomeLabel { outcome }));
        }
        for reason in VoidReason::ALL.map(|reason| format!("{reason:?}")) {
            drop(self.voids.get_or_create(&ReasonLabel { reason }));
        }
        for reason in DropReason::ALL.map(|reason| format!("{reason:?}")) {
            drop(self.groups_dropped.get_or_create(&ReasonLabel { reason }));
        }
        for outcome in VoteEnd::ALL.map(|end| format!("{end:?}")) {
            drop(self.judge_votes.get_or_create(&OutcomeLabel { outcome }));
        }
    }

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

#[cfg(test)]
mod tests;
