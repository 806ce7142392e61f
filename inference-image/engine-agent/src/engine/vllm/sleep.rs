//! vLLM asleep: it moves its weights to the memory of the host and drops its cache of keys and values.
//!
//! It wakes up in two steps, so that new weights are loaded while the cache does not need its memory yet. Between them
//! vLLM says that it sleeps, and ignores an order to sleep, so its weights would stay where the trainer needs the
//! memory. It also says that it sleeps while it is only paused. So the label of its weights is marked: `asleep:` from
//! before an order to sleep, `waking:` from before the first step until the second one is done. An agent that restarts
//! reads there what the engine does. Between the two steps it orders both again; vLLM ignores the one that is done
//! already. A vLLM that is paused without a mark was left so by an agent that ended in a load, and is resumed. A vLLM
//! that restarts is awake and has its first label.

use std::time::Duration;

use axum::http::StatusCode;
use serde::Deserialize;
use serde_json::json;

use super::Vllm;
use crate::engine::adapters::UNVERIFIED;
use crate::engine::wire::{STATE_DEADLINE, successful};
use crate::engine::{EngineFault, SleepState};

/// Before the label of weights of an engine that was told to sleep.
const ASLEEP: &str = "asleep:";

/// Before the label of weights while the engine wakes up.
const WAKING: &str = "waking:";

#[derive(Deserialize)]
struct Sleeping {
    is_sleeping: bool,
}

/// The label that the weights have when the engine is awake.
pub(super) fn unmarked(label: &str) -> &str {
    let mark = [ASLEEP, WAKING].into_iter().find_map(|mark| label.strip_prefix(mark));
    mark.unwrap_or(label)
}

impl Vllm {
    pub(super) async fn find_sleep_state(&self) -> Result<SleepState, EngineFault> {
        let url = self.server.at("/is_sleeping");
        let call = self.server.client.get(url.clone()).timeout(STATE_DEADLINE);
        let answer = self.server.fetch(call, &url).await?;
        // A vLLM without this route cannot sleep.
        if answer.status == StatusCode::NOT_FOUND {
            return Ok(SleepState::Awake);
        }
        let answer = successful(answer, &url)?;
        let said: Sleeping = serde_json::from_slice(&answer.body).map_err(|error| EngineFault::Misunderstood {
            url: url.to_string(),
            cause: error.to_string(),
        })?;
        let label = self.label().await?;
        match said.is_sleeping {
            true if label.starts_with(WAKING) => Ok(SleepState::Waking),
            true if label.starts_with(ASLEEP) => Ok(SleepState::Asleep),
            true => {
                // The lock is held during a load of this agent, which ends its pause itself.
                if let Ok(_no_load) = self.replacing.try_lock() {
                    self.resume().await?;
                }
                Ok(SleepState::Awake)
            }
            false => {
                // An order to sleep failed, or an agent ended after the second step. Rows sampled from now on name the
                // label.
                if unmarked(&label) != label {
                    self.name(unmarked(&label)).await?;
                }
                Ok(SleepState::Awake)
            }
        }
    }

    pub(super) async fn fall_asleep(&self, deadline: Duration) -> Result<(), EngineFault> {
        // Not between the steps of a load.
        let _alone = self.replacing.lock().await;
        if self.find_sleep_state().await? == SleepState::Waking {
            self.wake_weights(deadline).await?;
            self.wake_cache(deadline).await?;
        }
        let label = self.label().await?;
        if !label.starts_with(ASLEEP) {
            self.name(&format!("{ASLEEP}{label}")).await?;
        }
        self.server.tell("/sleep?level=1", &json!({}), deadline).await
    }

    /// Takes up the memory of the weights, unless vLLM is awake. Repeating it does no harm.
    pub(super) async fn wake_weights(&self, deadline: Duration) -> Result<(), EngineFault> {
        match self.find_sleep_state().await? {
            SleepState::Awake => return Ok(()),
            SleepState::Asleep => {
                let label = self.label().await?;
                self.name(&format!("{WAKING}{}", unmarked(&label))).await?;
            }
            SleepState::Waking => {}
        }
        self.server.tell("/wake_up?tags=weights", &json!({}), deadline).await
    }

    /// The second step after [`Vllm::wake_weights`].
    pub(super) async fn wake_cache(&self, deadline: Duration) -> Result<(), EngineFault> {
        let label = self.label().await?;
        let Some(label) = label.strip_prefix(WAKING) else {
            return Ok(());
        };
        self.server.tell("/wake_up?tags=kv_cache", &json!({}), deadline).await?;
        self.name(label).await
    }

    /// Takes the label of its version from the weights before they are replaced, perhaps between the two steps.
    pub(super) async fn name_as_unverified(&self) -> Result<(), EngineFault> {
        let mark = match self.label().await?.starts_with(WAKING) {
            true => WAKING,
            false => "",
        };
        self.name(&format!("{mark}{UNVERIFIED}")).await
    }
}
