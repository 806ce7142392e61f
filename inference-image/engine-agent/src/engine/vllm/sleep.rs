//! vLLM asleep: it moves its weights to the memory of the host and drops its cache of keys and values.
//!
//! It wakes up in two steps, so that new weights are loaded while the cache does not need its memory yet. Between them
//! vLLM says that it sleeps, and ignores an order to sleep: the agent remembers that it has begun to wake it up.

use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::http::StatusCode;
use serde::Deserialize;
use serde_json::json;

use super::Vllm;
use crate::engine::wire::{STATE_DEADLINE, successful};
use crate::engine::{EngineFault, SleepState};

#[derive(Deserialize)]
struct Sleeping {
    is_sleeping: bool,
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
        if !said.is_sleeping {
            self.waking.store(false, Ordering::SeqCst);
            return Ok(SleepState::Awake);
        }
        Ok(match self.waking.load(Ordering::SeqCst) {
            true => SleepState::Waking,
            false => SleepState::Asleep,
        })
    }

    pub(super) async fn fall_asleep(&self, deadline: Duration) -> Result<(), EngineFault> {
        // Not between the steps of a load.
        let _alone = self.replacing.lock().await;
        if self.find_sleep_state().await? == SleepState::Waking {
            self.wake_weights(deadline).await?;
            self.wake_cache(deadline).await?;
        }
        self.server.tell("/sleep?level=1", &json!({}), deadline).await
    }

    /// Takes up the memory of the weights, unless vLLM is awake. Repeating it does no harm.
    pub(super) async fn wake_weights(&self, deadline: Duration) -> Result<(), EngineFault> {
        if self.find_sleep_state().await? == SleepState::Awake {
            return Ok(());
        }
        self.waking.store(true, Ordering::SeqCst);
        self.server.tell("/wake_up?tags=weights", &json!({}), deadline).await
    }

    /// The second step after [`Vllm::wake_weights`].
    pub(super) async fn wake_cache(&self, deadline: Duration) -> Result<(), EngineFault> {
        if !self.waking.load(Ordering::SeqCst) {
            return Ok(());
        }
        self.server.tell("/wake_up?tags=kv_cache", &json!({}), deadline).await?;
        self.waking.store(false, Ordering::SeqCst);
        Ok(())
    }
}
