//! Earlier verdicts of this run, keyed by graded task and patch, never by a task's name alone.

use super::Graded;
use grpo_records::store::sha256_hex;
use grpo_records::{GradeRecord, GradedTask, Outcome};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;

pub(super) type Shared<V> = Mutex<HashMap<String, Arc<V>>>;

/// A reusable verdict and the folder of its episode.
#[derive(Clone, Debug)]
pub(super) struct Known {
    pub folder: String,
    pub outcome: Outcome,
    pub record: GradeRecord,
}

impl Known {
    pub fn taken_over(&self, took: Duration, task: GradedTask) -> Graded {
        Graded {
            outcome: self.outcome.clone(),
            record: Some(GradeRecord {
                reused_from: Some(self.folder.clone()),
                tries: 0,
                ..self.record.clone()
            }),
            log: None,
            message: None,
            took,
            task: Some(task),
        }
    }
}

/// The key of a verdict.
pub(super) fn key(task: &GradedTask, patch_sha256: &str) -> String {
    sha256_hex(format!("{} {patch_sha256}", task.sha256()).as_bytes())
}

pub(super) async fn entry<V: Default>(map: &Shared<V>, key: String) -> Arc<V> {
    map.lock().await.entry(key).or_default().clone()
}
