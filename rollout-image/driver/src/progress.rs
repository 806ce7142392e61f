//! `status.progress` of the run, for people. The data path only changes a value in memory; one task writes it.
//!
//! A fault or a change of stage, iteration or evaluations is written at once, other changes at most every five seconds.
//! An unavailable API server only delays the display.

use grpo_contracts::names::PROGRESS_FIELD_MANAGER;
use grpo_crds::GrpoRun;
use grpo_crds::progress::{Evaluation, Progress, Stage};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::watch;

const WRITE_EVERY: Duration = Duration::from_secs(5);
/// Most finished evaluations that are shown, of all sets.
const EVALUATIONS_SHOWN: usize = 64;
/// Longest message that the API accepts, in characters.
const LONGEST_MESSAGE: usize = 1024;

/// The subject of a message. Several messages are shown in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Topic {
    /// Settings that cannot be applied.
    Settings,
    /// Progress of a download.
    Download,
    /// Why the driver waits for the trainer.
    Trainer,
    /// Problems of engines.
    Engines,
    /// Images that cannot be pulled.
    Images,
    /// Why the pool leases no sandbox.
    Sandboxes,
    /// Kinds of rows in the datasets, and skipped rows. This message stays, so it comes last.
    Tasks,
}

/// The value in memory. Cloning is cheap and shares it.
#[derive(Clone)]
pub struct Board {
    sender: watch::Sender<Progress>,
    said: Arc<Mutex<BTreeMap<Topic, String>>>,
}

impl Board {
    pub fn new(run_uid: &str, iterations: u32) -> Self {
        let (sender, _) = watch::channel(Progress {
            run_uid: Some(run_uid.to_owned()),
            iteration: Some(0),
            iterations: Some(iterations),
            stage: Some(Stage::Starting),
            stages: vec![Stage::Starting],
            ..Progress::default()
        });
        Self {
            sender,
            said: Arc::default(),
        }
    }

    pub fn now(&self) -> Progress {
        self.sender.borrow().clone().displayed()
    }

    pub fn watch(&self) -> watch::Receiver<Progress> {
        self.sender.subscribe()
    }

    pub fn change(&self, change: impl FnOnce(&mut Progress)) {
        self.sender.send_modify(change);
    }

    /// Replaces the message on a topic.
    pub fn say(&self, topic: Topic, text: Option<String>) {
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        match text {
            Some(text) => said.insert(topic, text),
            None => said.remove(&topic),
        };
        let all = said.values().map(String::as_str).collect::<Vec<_>>().join("; ");
        let message = (!all.is_empty()).then(|| all.chars().take(LONGEST_MESSAGE).collect());
        self.sender.send_if_modified(|progress| {
            let is_new = progress.message != message;
            progress.message = message;
            is_new
        });
    }

    /// Adds a stage; other stages stay, except `Starting`.
    pub fn begin(&self, stage: Stage) {
        self.change(|progress| {
            progress
                .stages
                .retain(|other| *other != Stage::Starting && *other != stage);
            progress.stages.push(stage);
            progress.stage = foremost(&progress.stages);
        });
    }

    pub fn end(&self, stage: Stage) {
        self.change(|progress| {
            progress.stages.retain(|other| *other != stage);
            // Between two stages people still want to see the last one.
            progress.stage = foremost(&progress.stages).or(progress.stage);
        });
    }

    pub fn evaluated(&self, evaluation: Evaluation) {
        self.change(|progress| {
            progress.evaluations.push(evaluation);
            shorten(&mut progress.evaluations);
        });
    }
}

/// Removes the oldest evaluations that are too many. The first and the last one of each set stay if they fit:
/// `kubectl grpo compare` shows these two.
fn shorten(evaluations: &mut Vec<Evaluation>) {
    while evaluations.len() > EVALUATIONS_SHOWN {
        let has_set_of = |at: usize, others: &[Evaluation]| others.iter().any(|other| other.set == evaluations[at].set);
        let has_earlier = |at: &usize| has_set_of(*at, &evaluations[..*at]);
        let has_later = |at: &usize| has_set_of(*at, &evaluations[*at + 1..]);
        let mut all = 0..evaluations.len();
        let between = all.clone().find(|at| has_earlier(at) && has_later(at));
        let oldest = between.or_else(|| all.find(has_earlier)).unwrap_or(0);
        evaluations.remove(oldest);
    }
}

/// The stage that people wait for, of several that overlap.
fn foremost(stages: &[Stage]) -> Option<Stage> {
    let order = [
        Stage::Finished,
        Stage::Rollout,
        Stage::Evaluating,
        Stage::Training,
        Stage::Syncing,
        Stage::Grading,
        Stage::Starting,
    ];
    order.into_iter().find(|stage| stages.contains(stage))
}

/// Writes the board to the API server until the board is dropped.
pub async fn publish(client: kube::Client, namespace: String, name: String, mut board: watch::Receiver<Progress>) {
    let runs: Api<GrpoRun> = Api::namespaced(client, &namespace);
    let mut written: Option<(Progress, Instant)> = None;
    loop {
        let now = board.borrow_and_update().clone();
        if due(&now, written.as_ref()) {
            match tokio::time::timeout(Duration::from_secs(10), write(&runs, &name, &now)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::warn!(%error, "writing status.progress"),
                Err(_) => tracing::warn!("writing status.progress: the API server does not answer"),
            }
            written = Some((now, Instant::now()));
        }
        tokio::select! {
            changed = board.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(WRITE_EVERY) => {}
        }
    }
}

/// Writes the final progress; returns whether the API server accepted it.
pub async fn write_last(client: kube::Client, namespace: &str, name: &str, progress: &Progress) -> bool {
    let runs: Api<GrpoRun> = Api::namespaced(client, namespace);
    for _ in 0..5 {
        match tokio::time::timeout(Duration::from_secs(5), write(&runs, name, progress)).await {
            Ok(Ok(())) => return true,
            Ok(Err(error)) => tracing::warn!(%error, "writing the last status.progress"),
            Err(_) => tracing::warn!("writing the last status.progress: the API server does not answer"),
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    false
}

fn due(now: &Progress, written: Option<&(Progress, Instant)>) -> bool {
    let Some((last, at)) = written else {
        return true;
    };
    let urgent = now.stage != last.stage
        || now.fault != last.fault
        || now.iteration != last.iteration
        || now.evaluations != last.evaluations;
    urgent || (now != last && at.elapsed() >= WRITE_EVERY)
}

/// Applies only `status.progress` (server-side apply). The run's uid is in `metadata`, so a later run of the same name
/// refuses it.
async fn write(runs: &Api<GrpoRun>, name: &str, progress: &Progress) -> Result<(), kube::Error> {
    let mut shown = progress.clone().displayed();
    shown.updated_at = Some(Time(k8s_openapi::jiff::Timestamp::now()));
    let body = json!({
        "apiVersion": "grpo.dev/v1alpha1",
        "kind": "GrpoRun",
        "metadata": {"name": name, "uid": progress.run_uid},
        "status": {"progress": shown},
    });
    let parameters = PatchParams::apply(PROGRESS_FIELD_MANAGER).force();
    runs.patch_status(name, &parameters, &Patch::Apply(&body))
        .await
        .map(|_| ())
}

#[cfg(test)]
mod tests;
