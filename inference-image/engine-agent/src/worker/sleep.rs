//! Has the engine sleep and wake up as ordered.
//!
//! The gate is closed from the order to sleep until the engine is awake with the wanted version, so that no request
//! meets an engine that is neither. Only the engine's own answer counts: an engine that restarts is awake, and is told
//! to sleep again. An agent that restarts beside a sleeping engine leaves it asleep until an order comes. One that
//! restarts beside an engine that wakes up continues with that: the order to wake up came after the trainer's turn.

use super::{Attempts, Setback, Worker};
use crate::engine::{Engine, Serving, SleepState};
use grpo_engine_protocol::AgentState;
use tokio::time::timeout;

impl<E: Engine> Worker<E> {
    /// Carries out an order to sleep. Returns whether the engine must wake up now, or nothing if it is to sleep.
    pub(super) async fn settle(&self, attempts: &mut Attempts, serving: &Serving) -> Option<bool> {
        let ordered = attempts.order.asleep;
        if self.engine.cannot_sleep().is_some() || (ordered.is_none() && attempts.found_awake) {
            return Some(false);
        }
        if ordered == Some(true) {
            self.gate.set_sleeping(true);
            self.gate.close_to_clients(self.pace.client_grace);
        }
        let state = match self.engine.sleep_state().await {
            Ok(state) => state,
            Err(fault) => {
                self.say(AgentState::Booting, None, Some(fault.to_string()));
                return None;
            }
        };
        match (ordered, state) {
            (Some(true), SleepState::Asleep) if attempts.told_to_sleep => {
                attempts.succeed();
                self.say(AgentState::Asleep, None, None);
                None
            }
            // An engine that says that it sleeps may still carry out an order of before, such as a load, and be awake
            // after it. The order to sleep comes after that one.
            (Some(true), _) => {
                self.put_to_sleep(attempts, serving).await;
                None
            }
            (None, SleepState::Asleep) => {
                self.gate.set_sleeping(true);
                let message = "the engine was asleep before this agent started; it waits for an order to wake up";
                self.say(AgentState::Asleep, None, Some(message.to_owned()));
                None
            }
            (Some(false) | None, SleepState::Awake) => {
                self.gate.set_sleeping(false);
                attempts.found_awake = true;
                Some(false)
            }
            (Some(false), SleepState::Asleep | SleepState::Waking) | (None, SleepState::Waking) => {
                self.gate.set_sleeping(true);
                Some(true)
            }
        }
    }

    /// One attempt, if the back-off is over.
    async fn put_to_sleep(&self, attempts: &mut Attempts, serving: &Serving) {
        if !attempts.are_due() {
            return self.say(AgentState::Failed, None, attempts.last_setback.clone());
        }
        attempts.made += 1;
        match self.fall_asleep().await {
            Ok(()) => {
                tracing::info!(version = serving.version, "the engine is asleep");
                attempts.told_to_sleep = true;
                attempts.succeed();
                self.say(AgentState::Asleep, None, None);
            }
            Err(setback) => {
                let message = attempts.fail("put the engine to sleep", &setback, &self.pace);
                self.say(AgentState::Failed, None, Some(message));
            }
        }
    }

    async fn fall_asleep(&self) -> Result<(), Setback> {
        let message = format!(
            "the engine falls asleep when the requests at it have ended: {}",
            self.gate.requests()
        );
        self.say(AgentState::Loading, None, Some(message));
        let deadline = self.pace.empty_deadline;
        let emptied = timeout(deadline, self.gate.emptied()).await;
        if emptied.is_err() {
            return Err(Setback::Busy {
                requests: self.gate.requests(),
                seconds: deadline.as_secs(),
            });
        }
        self.engine.sleep(self.pace.load_deadline).await?;
        match self.engine.sleep_state().await? {
            SleepState::Asleep => Ok(()),
            SleepState::Awake | SleepState::Waking => Err(Setback::StillAwake),
        }
    }

    /// Wakes the engine up with the version that it had. Also returns that its tensors are the same.
    pub(super) async fn wake(&self, before: &Serving) -> Result<(Serving, bool), Setback> {
        let message = format!("the engine wakes up with {}", before.version);
        self.say(AgentState::Loading, None, Some(message));
        self.engine.wake(self.pace.load_deadline).await?;
        self.must_be_awake().await?;
        Ok((self.engine.serving().await?, false))
    }

    /// After a load, or an order to wake up: a success is only a promise.
    pub(super) async fn must_be_awake(&self) -> Result<(), Setback> {
        if !self.gate.is_sleeping() {
            return Ok(());
        }
        match self.engine.sleep_state().await? {
            SleepState::Awake => Ok(()),
            SleepState::Asleep | SleepState::Waking => Err(Setback::StillAsleep),
        }
    }
}
