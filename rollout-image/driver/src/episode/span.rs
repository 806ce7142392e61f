//! The trace span of an attempt: which episode it is, and its result.

use super::plan::EpisodePlan;
use crate::fault::DriverError;
use crate::traces::TARGET;
use grpo_records::{EpisodeMeta, EpisodeScope};
use tracing::Span;

/// The span of an attempt; [`ended`] adds its result.
pub fn attempt(plan: &EpisodePlan, (namespace, run): (&str, &str), attempt: u32) -> Span {
    let (scope, number) = match &plan.key.scope {
        EpisodeScope::Iteration { iteration } => ("iteration", Some(u64::from(*iteration))),
        EpisodeScope::Evaluation { set, .. } => (set.as_str(), None),
    };
    tracing::trace_span!(
        target: TARGET,
        "episode",
        k8s.namespace.name = namespace,
        grpo.run = run,
        grpo.episode = plan.key.dir(attempt),
        grpo.task = plan.key.instance,
        grpo.scope = scope,
        grpo.iteration = number,
        grpo.group = plan.key.group,
        grpo.sample = plan.key.sample,
        grpo.attempt = attempt,
        grpo.outcome = tracing::field::Empty,
        grpo.reward = tracing::field::Empty,
        grpo.turns = tracing::field::Empty,
        grpo.sampled_tokens = tracing::field::Empty,
        otel.status_code = tracing::field::Empty,
        otel.status_description = tracing::field::Empty,
    )
}

/// Adds the result to an attempt's span. A void is an error: the infrastructure lost the attempt.
pub fn ended(span: &Span, result: &Result<Option<EpisodeMeta>, DriverError>) {
    match result {
        Ok(Some(meta)) => {
            span.record("grpo.outcome", meta.outcome.to_string());
            span.record("grpo.turns", meta.turns);
            span.record("grpo.sampled_tokens", meta.sampled_tokens as u64);
            if let Some(reward) = meta.reward {
                span.record("grpo.reward", f64::from(reward));
            }
            if !meta.outcome.is_verdict() {
                span.record("otel.status_code", "ERROR");
                // Not the message: it may quote what a task's image printed, and traces leave the run's namespace.
                span.record("otel.status_description", meta.outcome.to_string());
            }
        }
        Ok(None) => {
            span.record("grpo.outcome", "Abandoned");
        }
        Err(error) => {
            span.record("otel.status_code", "ERROR");
            span.record("otel.status_description", described(error));
        }
    }
}

/// Without what a message may quote.
fn described(error: &DriverError) -> &'static str {
    match error {
        DriverError::Terminal(fault) => fault.reason.text(),
        _ => "an error of the driver; its log has the message",
    }
}
