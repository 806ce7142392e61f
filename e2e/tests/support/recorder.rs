//! Records every version of a run's status that a watch shows, with its time, like `kubectl get grporuns -w`.

use super::{Result, Scene};
use futures::TryStreamExt;
use grpo_crds::{GrpoRun, Stage};
use grpo_records::{Event, JournalEntry};
use grpo_testing::cluster::wait;
use k8s_openapi::jiff::Timestamp;
use kube::runtime::watcher;
use serde_json::{Value, json};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::task::JoinHandle;

/// Every version of the run that the watch showed and the time of each, oldest first.
type RecordedStatuses = Arc<Mutex<Vec<(f64, GrpoRun)>>>;

pub struct Recorder {
    seen: RecordedStatuses,
    task: JoinHandle<()>,
}

impl Scene {
    /// Starts to record a run's status.
    pub fn record(&self, name: &str) -> Recorder {
        let seen = RecordedStatuses::default();
        let (runs, into, config) = (self.runs(), seen.clone(), wait::named(name));
        let task = tokio::spawn(async move {
            let events = watcher(runs, config);
            futures::pin_mut!(events);
            while let Ok(Some(event)) = events.try_next().await {
                if let watcher::Event::Apply(run) | watcher::Event::InitApply(run) = event {
                    let mut seen = into.lock().unwrap_or_else(PoisonError::into_inner);
                    seen.push((seconds(), run));
                }
            }
        });
        Recorder { seen, task }
    }
}

fn seconds() -> f64 {
    Timestamp::now().as_millisecond() as f64 / 1000.0
}

impl Recorder {
    /// Ends the recording.
    pub fn stop(self) -> Vec<(f64, GrpoRun)> {
        self.task.abort();
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.clone()
    }
}

/// Everything but counts: its changes are written at once.
fn milestone(run: &GrpoRun) -> Value {
    let status = serde_json::to_value(&run.status).unwrap_or_default();
    let progress = &status["progress"];
    json!([
        status["phase"],
        status["message"],
        status["conditions"],
        status["attempts"],
        status["plan"],
        progress["stage"],
        progress["iteration"],
        progress["evaluations"],
        progress["fault"],
    ])
}

/// The shortest time between two writes of the driver of which the second changed only counts; `None` without such a
/// pair. The operator may write in between, and the last write may come twice.
pub fn shortest_pause(seen: &[(f64, GrpoRun)]) -> Option<f64> {
    let progress = |run: &GrpoRun| run.status.as_ref().and_then(|status| status.progress.clone());
    let mut drivers = seen.to_vec();
    drivers.dedup_by(|next, last| progress(&next.1) == progress(&last.1));
    let has_ended = |run: &GrpoRun| progress(run).and_then(|progress| progress.stage) == Some(Stage::Finished);
    let counted_on =
        |pair: &&[(f64, GrpoRun)]| milestone(&pair[0].1) == milestone(&pair[1].1) && !has_ended(&pair[1].1);
    drivers
        .windows(2)
        .filter(counted_on)
        .map(|pair| pair[1].0 - pair[0].0)
        .reduce(f64::min)
}

/// The longest time from an iteration's decision (the journal has whole seconds) until the watch showed it.
pub fn slowest_showing(seen: &[(f64, GrpoRun)], journal: &[JournalEntry]) -> Result<f64> {
    let mut slowest: f64 = 0.0;
    for entry in journal {
        let Event::IterationStarted { iteration, .. } = &entry.event else {
            continue;
        };
        let shows = |run: &GrpoRun| run.status.as_ref()?.progress.as_ref()?.iteration;
        let shown = seen.iter().find(|(_, run)| shows(run) == Some(*iteration));
        let (at, _) = shown.ok_or(format!("iteration {iteration} was never shown"))?;
        slowest = slowest.max(at - entry.at as f64);
    }
    Ok(slowest)
}
