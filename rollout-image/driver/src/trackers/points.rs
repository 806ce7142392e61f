//! Points of curves: what an entry of the journal adds to them.
//!
//! `rollout/...` are the numbers of an iteration, at its number; `trainer/...` those of a step, at the step;
//! `evaluation/<set>/...` those of an evaluation, at the step whose weights were evaluated.

use grpo_records::store::StoreError;
use grpo_records::{Event, IterationRecord, JournalEntry, RunStore, StepMetrics, paths};

/// A value of a curve.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    /// The number of the journal's entry.
    pub entry: u64,
    pub curve: String,
    pub step: u32,
    /// When the journal's entry was written, in seconds since 1970.
    pub at: i64,
    /// Finite.
    pub value: f64,
}

/// The points of an entry. Most entries have none.
pub async fn of(store: &RunStore, entry: &JournalEntry) -> Result<Vec<Point>, StoreError> {
    let (prefix, step, numbers) = match &entry.event {
        Event::BatchWritten { iteration, .. } => {
            let read = store
                .read_json::<IterationRecord>(&paths::driver_metrics(*iteration))
                .await;
            (
                "rollout".to_owned(),
                *iteration,
                present(read)?.map(|record| record.numbers()),
            )
        }
        Event::StepDone { step, .. } => {
            let read = store.read_json::<StepMetrics>(&paths::trainer_metrics(*step)).await;
            (
                "trainer".to_owned(),
                *step,
                present(read)?.map(|metrics| metrics.numbers()),
            )
        }
        Event::EvaluationDone {
            set,
            weights,
            resolved,
            episodes,
            voids,
        } => {
            let rate = (*episodes > 0).then(|| f64::from(*resolved) / f64::from(*episodes));
            let mut numbers = vec![
                ("episodes".to_owned(), f64::from(*episodes)),
                ("voids".to_owned(), f64::from(*voids)),
            ];
            numbers.extend(rate.map(|rate| ("resolved_rate".to_owned(), rate)));
            (
                format!("evaluation/{set}"),
                paths::step_of_weights(weights).unwrap_or(0),
                Some(numbers),
            )
        }
        _ => return Ok(Vec::new()),
    };
    let finite = numbers.into_iter().flatten().filter(|(_, value)| value.is_finite());
    Ok(finite
        .map(|(name, value)| Point {
            entry: entry.sequence,
            curve: format!("{prefix}/{name}"),
            step,
            at: entry.at,
            value,
        })
        .collect())
}

/// `None` for a file that does not exist (mode Finetune writes no metrics of iterations), and for one that cannot be
/// read: it must not keep all later points away.
fn present<T>(read: Result<T, StoreError>) -> Result<Option<T>, StoreError> {
    match read {
        Ok(value) => Ok(Some(value)),
        Err(StoreError::Missing { .. }) => Ok(None),
        Err(error @ StoreError::Unreadable { .. }) => {
            tracing::warn!(%error, "trackers lack the points of this file");
            Ok(None)
        }
        Err(error) => Err(error),
    }
}
