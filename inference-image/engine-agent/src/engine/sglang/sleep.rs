//! SGLang asleep: it releases the memory of its weights, with a copy in the memory of the host, and of its cache.
//!
//! It has no route that says whether it sleeps, and it ends if memory is released twice or resumed twice. So the label
//! of its weights says it: an agent that restarts reads it there, and an SGLang that restarts has its first label
//! again. Each change runs to its end in a task of its own, even if a newer order interrupts the current one.
//!
//! An agent that restarts beside an SGLang that wakes up does not know which of the two steps are done. It orders both.
//! If the first one was done, SGLang ends by it, and its container starts again, awake. The other choice would be to
//! take it for asleep, while it holds memory that the trainer needs.
//!
//! SGLang also ends if memory is released while a request runs, and a request whose caller has hung up runs for some
//! seconds more. So its prefix cache is dropped first, which succeeds only when no request runs.

use std::time::Duration;

use serde_json::json;

use super::Sglang;
use crate::engine::{EngineFault, SleepState};

/// Before the label of weights whose memory is released.
const ASLEEP: &str = "asleep:";

/// Succeeds when no request runs; SGLang waits for that for this number of seconds. It looks every four seconds for
/// callers that have hung up.
pub(super) const IDLE: &str = "/flush_cache?timeout=10";

/// Before the label of weights while the engine wakes up.
const WAKING: &str = "waking:";

/// How far this agent has woken up an SGLang whose label is marked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Waking {
    #[default]
    No,
    /// The weights have their memory.
    Weights,
    /// Weights and cache have their memory; the label still says otherwise.
    All,
}

/// The label that the weights have when the engine is awake.
pub(super) fn awake(label: &str) -> &str {
    label.trim_start_matches(ASLEEP).trim_start_matches(WAKING)
}

/// The label `new` in place of `label`, for weights that may be loaded between the two steps: the mark stays.
pub(super) fn relabelled(label: &str, new: &str) -> String {
    let mark = match label.starts_with(WAKING) {
        true => WAKING,
        false => "",
    };
    format!("{mark}{new}")
}

impl Sglang {
    pub(super) async fn find_sleep_state(&self) -> Result<SleepState, EngineFault> {
        let mut waking = self.waking.lock().await;
        self.state_by_label(&mut waking).await
    }

    async fn state_by_label(&self, waking: &mut Waking) -> Result<SleepState, EngineFault> {
        let label = self.label().await?;
        if label.starts_with(WAKING) {
            return Ok(SleepState::Waking);
        }
        *waking = Waking::No;
        Ok(match label.starts_with(ASLEEP) {
            true => SleepState::Asleep,
            false => SleepState::Awake,
        })
    }

    pub(super) async fn fall_asleep(&self, deadline: Duration) -> Result<(), EngineFault> {
        let engine = self.clone();
        self.to_the_end(async move {
            let _no_replacement = engine.replacing.lock().await;
            let mut waking = engine.waking.lock().await;
            match engine.state_by_label(&mut waking).await? {
                SleepState::Asleep => return Ok(()),
                SleepState::Waking => {
                    engine.resume_weights(&mut waking, deadline).await?;
                    engine.resume_cache(&mut waking, deadline).await?;
                }
                SleepState::Awake => {}
            }
            engine.server.tell(IDLE, &json!({}), deadline).await?;
            let label = engine.label().await?;
            let tags = json!({"tags": ["kv_cache", "weights"]});
            let release = "/release_memory_occupation";
            engine.server.tell(release, &tags, deadline).await?;
            engine.name(&format!("{ASLEEP}{}", awake(&label))).await
        })
        .await
    }

    /// Takes up the memory of the weights, unless SGLang is awake.
    pub(super) async fn wake_weights(&self, deadline: Duration) -> Result<(), EngineFault> {
        let engine = self.clone();
        self.to_the_end(async move {
            let mut waking = engine.waking.lock().await;
            match engine.state_by_label(&mut waking).await? {
                SleepState::Awake => return Ok(()),
                SleepState::Asleep => {
                    let label = engine.label().await?;
                    engine.name(&format!("{WAKING}{}", awake(&label))).await?;
                }
                SleepState::Waking => {}
            }
            engine.resume_weights(&mut waking, deadline).await
        })
        .await
    }

    /// The second step after [`Sglang::wake_weights`].
    pub(super) async fn wake_cache(&self, deadline: Duration) -> Result<(), EngineFault> {
        let engine = self.clone();
        self.to_the_end(async move {
            let _no_replacement = engine.replacing.lock().await;
            let mut waking = engine.waking.lock().await;
            engine.resume_cache(&mut waking, deadline).await
        })
        .await
    }

    async fn resume_weights(&self, waking: &mut Waking, deadline: Duration) -> Result<(), EngineFault> {
        if *waking == Waking::No {
            self.resume("weights", deadline).await?;
            *waking = Waking::Weights;
        }
        Ok(())
    }

    pub(super) async fn resume_cache(&self, waking: &mut Waking, deadline: Duration) -> Result<(), EngineFault> {
        if *waking == Waking::Weights {
            self.resume("kv_cache", deadline).await?;
            *waking = Waking::All;
        }
        if *waking == Waking::All {
            let label = self.label().await?;
            if let Some(label) = label.strip_prefix(WAKING) {
                self.name(label).await?;
            }
            *waking = Waking::No;
        }
        Ok(())
    }

    async fn resume(&self, tag: &str, deadline: Duration) -> Result<(), EngineFault> {
        let tags = json!({"tags": [tag]});
        self.server.tell("/resume_memory_occupation", &tags, deadline).await
    }

    pub(super) async fn to_the_end<T: Send + 'static>(
        &self,
        change: impl Future<Output = Result<T, EngineFault>> + Send + 'static,
    ) -> Result<T, EngineFault> {
        tokio::spawn(change).await.unwrap_or_else(|error| {
            Err(EngineFault::Refused {
                url: self.server.url.to_string(),
                message: format!("this agent failed while it changed weights or memory of the engine: {error}"),
            })
        })
    }
}
