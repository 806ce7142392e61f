//! The client of the trainer: asks for a step until it is done, whichever process restarts in between.
//!
//! Patience measures how long nothing happened: each replayed step, new attempt or change of phase restarts the time,
//! and a running step takes as long as the trainer's own deadlines allow. A trainer that answers and makes no progress
//! ends the run. One that does not answer ends only this attempt: its pods may wait for nodes, which no run is to blame
//! for. Such attempts count as failures in a row, so this has an end too.

use crate::epoch::{self, OrderError};
use crate::fault::{DriverError, TerminalFault};
use crate::progress::{Board, Topic};
use crate::replicas::switch::asleep::Turn;
use crate::retry::{Pauses, Retry};
use grpo_auth::TokenFile;
use grpo_contracts::driver_epoch::{DriverEpoch, Superseded};
use grpo_contracts::reason::Reason;
use grpo_records::trainer::{DeviceGrant, StepPhase, StepRequest, StepState, TrainerPhase, TrainerState};
use reqwest::StatusCode;
use std::time::Duration;
use tokio::sync::watch;

/// Between two requests while the trainer is unavailable or not ready.
const PAUSES: Pauses = Pauses::doubling(Duration::from_millis(500), Duration::from_secs(2));
/// Length of one long poll.
const POLL_SECONDS: u64 = 20;
/// Failures of the same step that end the run.
const FAILED_STEPS: u32 = 3;

/// The client of the trainer's rank 0. Cloning is cheap.
#[derive(Clone)]
pub struct TrainerClient {
    url: String,
    http: reqwest::Client,
    patience: Duration,
    token: Option<TokenFile>,
    epoch: Option<DriverEpoch>,
    /// Of a trainer that shares its devices with engines.
    turn: Option<Turn>,
}

/// The observed progress of a trainer: attempt, phase and step.
type TrainerProgress = (u32, TrainerPhase, u32);

/// The result of a request for a step.
enum Asked {
    Done(Box<StepState>),
    /// The step is running.
    Running,
    /// Nothing final, with the reason.
    NotYet(String),
    /// No answer, with the error.
    Silent(String),
    Failed(String),
    /// A later attempt of the driver gives the orders.
    Superseded(Superseded),
}

/// Why the trainer's state is unknown.
enum Stateless {
    /// Nothing answers.
    Silent(String),
    /// An answer that has no state.
    Refused(String),
}

impl TrainerClient {
    pub fn new(url: impl Into<String>, patience: Duration) -> Result<Self, reqwest::Error> {
        let http = reqwest::Client::builder()
            .connect_timeout(Duration::from_secs(3))
            .pool_idle_timeout(Duration::from_secs(30))
            .no_proxy()
            .build()?;
        Ok(Self {
            url: url.into().trim_end_matches('/').to_owned(),
            http,
            patience,
            token: None,
            epoch: None,
            turn: None,
        })
    }

    /// Of a trainer that shares its devices with engines: while they sleep, the client gives it the devices and orders
    /// steps. An engine that starts again in between delays both.
    pub fn colocated(self, turn: Option<Turn>) -> Self {
        Self { turn, ..self }
    }

    /// With the token that the trainer requires.
    pub fn with_token(mut self, token: TokenFile) -> Self {
        self.token = Some(token);
        self
    }

    /// With the epoch that the trainer checks before it takes an order.
    pub fn of_driver(mut self, epoch: DriverEpoch) -> Self {
        self.epoch = Some(epoch);
        self
    }

    async fn send(&self, request: reqwest::RequestBuilder) -> Result<reqwest::Response, String> {
        let request = TokenFile::authorize(self.token.as_ref(), request);
        let request = epoch::stamped(self.epoch.as_ref(), request);
        request.send().await.map_err(|e| e.to_string())
    }

    /// Sends an order; the answer has any status.
    async fn order(&self, request: reqwest::RequestBuilder) -> Result<reqwest::Response, OrderError> {
        let answer = self.send(request).await.map_err(OrderError::Failed)?;
        Ok(epoch::of_this_driver(self.epoch.as_ref(), answer)?)
    }

    /// The trainer's own state; an error while it does not answer.
    pub async fn state(&self) -> Result<TrainerState, String> {
        let state = self.answered_state().await;
        state.map_err(|(Stateless::Silent(why) | Stateless::Refused(why))| why)
    }

    async fn answered_state(&self) -> Result<TrainerState, Stateless> {
        let request = self.http.get(format!("{}/v1/state", self.url));
        let sent = self.send(request.timeout(Duration::from_secs(5))).await;
        let sent = sent.map_err(|error| Stateless::Silent(format!("the trainer does not answer: {error}")))?;
        let state = successful(sent).await.map_err(Stateless::Refused)?.json().await;
        state.map_err(|error| Stateless::Refused(format!("malformed response: {error}")))
    }

    /// Waits until the trainer has published weights and is ready for a step. One that shares its devices has given
    /// them back then: while it steps it still has them, and is not ready.
    pub async fn ready(&self, note: &watch::Sender<Option<String>>) -> Result<TrainerState, DriverError> {
        let mut retry = Retry::new(self.patience, PAUSES);
        let mut last_seen = None;
        loop {
            let state = self.answered_state().await;
            if let Ok(state) = &state {
                see(state, &mut last_seen, &mut retry);
            }
            let answers = !matches!(state, Err(Stateless::Silent(_)));
            if state.as_ref().is_ok_and(|state| state.phase == TrainerPhase::Stepping) {
                retry.progress();
            }
            let why = match state {
                Ok(state) if self.is_ready(state.phase) => {
                    note.send_replace(None);
                    return Ok(state);
                }
                Ok(state) if state.phase == TrainerPhase::Waiting => self.give_devices(&state).await?,
                Ok(state) => format!(
                    "the trainer is {:?} at step {}{}",
                    state.phase,
                    state.step,
                    said(&state.error)
                ),
                Err(Stateless::Silent(why) | Stateless::Refused(why)) => why,
            };
            self.wait(&mut retry, &why, answers, note).await?;
        }
    }

    /// Has the trainer do step `k` on this batch and returns the result. Survives any number of restarts of the
    /// trainer, also of one that comes back from before step `k - 1` and replays.
    pub async fn step(
        &self,
        k: u32,
        request: &StepRequest,
        note: &watch::Sender<Option<String>>,
    ) -> Result<StepState, DriverError> {
        let mut retry = Retry::new(self.patience, PAUSES);
        let mut failures = 0;
        let mut last_seen = None;
        loop {
            let asked = self.ask(k, request, &mut last_seen, &mut retry).await;
            let answers = !matches!(asked, Asked::Silent(_));
            let why = match asked {
                Asked::Done(state) => {
                    note.send_replace(None);
                    return Ok(*state);
                }
                Asked::Running => {
                    retry.progress();
                    format!("step {k} is under way")
                }
                Asked::NotYet(why) | Asked::Silent(why) => why,
                Asked::Superseded(superseded) => return Err(superseded.into()),
                Asked::Failed(error) => {
                    failures += 1;
                    if failures >= FAILED_STEPS {
                        let message = format!("step {k} on {} failed {failures} times; last: {error}", request.batch);
                        return Err(TerminalFault::new(Reason::TrainingFailed, message).into());
                    }
                    // The next try is progress.
                    retry.progress();
                    format!("step {k} failed: {error}")
                }
            };
            self.wait(&mut retry, &why, answers, note).await?;
        }
    }

    async fn ask(
        &self,
        k: u32,
        request: &StepRequest,
        last_seen: &mut Option<TrainerProgress>,
        retry: &mut Retry,
    ) -> Asked {
        let state = match self.answered_state().await {
            Ok(state) => state,
            Err(Stateless::Silent(why)) => return Asked::Silent(why),
            Err(Stateless::Refused(why)) => return Asked::NotYet(why),
        };
        see(&state, last_seen, retry);
        if state.phase == TrainerPhase::Waiting {
            return match self.give_devices(&state).await {
                Ok(why) => Asked::NotYet(why),
                Err(superseded) => Asked::Superseded(superseded),
            };
        }
        if matches!(state.phase, TrainerPhase::Starting | TrainerPhase::Failed) || state.step + 1 < k {
            return Asked::NotYet(format!(
                "the trainer is {:?} at step {}{}",
                state.phase,
                state.step,
                said(&state.error)
            ));
        }
        if state.phase == TrainerPhase::Idle && state.step < k && !self.has_devices() {
            return Asked::NotYet(format!("step {k} waits until all engines sleep again"));
        }
        if state.step < k
            && let Err(error) = self.put(k, request).await
        {
            return match error {
                OrderError::Superseded(superseded) => Asked::Superseded(superseded),
                OrderError::Failed(why) => Asked::NotYet(why),
            };
        }
        match self.poll(k).await {
            Ok(step) if step.state == StepPhase::Done => Asked::Done(Box::new(step)),
            Ok(step) if step.state == StepPhase::Failed => Asked::Failed(step.error.unwrap_or_default()),
            Ok(_) => Asked::Running,
            Err(error) => Asked::NotYet(error),
        }
    }

    fn is_ready(&self, phase: TrainerPhase) -> bool {
        match phase {
            TrainerPhase::Idle => true,
            TrainerPhase::Stepping => self.turn.is_none(),
            TrainerPhase::Waiting | TrainerPhase::Starting | TrainerPhase::Failed => false,
        }
    }

    /// Whether the trainer may use its devices now.
    fn has_devices(&self) -> bool {
        self.turn.as_ref().is_none_or(Turn::is_the_trainers)
    }

    /// Gives a trainer that waits for its devices those that the engines have left. Returns why the driver still waits.
    async fn give_devices(&self, state: &TrainerState) -> Result<String, Superseded> {
        let attempt = state.attempt;
        if self.turn.is_none() {
            return Ok(format!(
                "attempt {attempt} of the trainer waits for devices that it shares with engines; this run's have their own: set trainer.colocate, or use another trainer.image"
            ));
        }
        if !self.has_devices() {
            return Ok(format!(
                "attempt {attempt} of the trainer waits until all engines sleep again"
            ));
        }
        let grant = self.http.put(format!("{}/v1/devices", self.url));
        let grant = grant.json(&DeviceGrant { attempt }).timeout(Duration::from_secs(10));
        let answer = match self.order(grant).await {
            Ok(answer) => successful(answer).await,
            Err(OrderError::Superseded(superseded)) => return Err(superseded),
            Err(OrderError::Failed(why)) => Err(why),
        };
        Ok(match answer {
            Ok(_) => format!("attempt {attempt} of the trainer has got the devices"),
            Err(why) => format!("attempt {attempt} of the trainer does not take the devices: {why}"),
        })
    }

    async fn put_once(&self, k: u32, request: &StepRequest) -> Result<reqwest::Response, OrderError> {
        let put = self.http.put(format!("{}/v1/steps/{k}", self.url)).json(request);
        self.order(put.timeout(Duration::from_secs(10))).await
    }

    async fn put(&self, k: u32, request: &StepRequest) -> Result<(), OrderError> {
        let mut answer = self.put_once(k, request).await?;
        // A trainer of an earlier version knows no such field. It works with the number that it read at its start.
        if answer.status() == StatusCode::UNPROCESSABLE_ENTITY && request.iterations.is_some() {
            let without = StepRequest {
                iterations: None,
                ..request.clone()
            };
            answer = self.put_once(k, &without).await?;
        }
        let why = match answer.status() {
            status if status.is_success() => return Ok(()),
            // The state has changed since the last request; the next request shows it.
            StatusCode::CONFLICT => format!("the trainer is not ready for step {k}"),
            status => format!(
                "the trainer refuses step {k} with {status}: {}",
                answer.text().await.unwrap_or_default()
            ),
        };
        Err(OrderError::Failed(why))
    }

    async fn poll(&self, k: u32) -> Result<StepState, String> {
        let request = self
            .http
            .get(format!("{}/v1/steps/{k}?waitSeconds={POLL_SECONDS}", self.url));
        let answer = self
            .send(request.timeout(Duration::from_secs(POLL_SECONDS + 10)))
            .await?;
        let answer = successful(answer).await?;
        answer.json().await.map_err(|e| format!("malformed response: {e}"))
    }

    async fn wait(
        &self,
        retry: &mut Retry,
        why: &str,
        answers: bool,
        note: &watch::Sender<Option<String>>,
    ) -> Result<(), DriverError> {
        note.send_if_modified(|note| {
            let changed = note.as_deref() != Some(why);
            *note = Some(why.to_owned());
            changed
        });
        retry.pause().await.map_err(|ended| {
            let message = format!(
                "nothing happened at the trainer at {} for {:?}; {why}",
                self.url, ended.within
            );
            match answers {
                true => TerminalFault::new(Reason::TrainerUnavailable, message).into(),
                false => DriverError::Other(message),
            }
        })
    }
}

/// Shows on the board why `call` waits for the trainer.
pub async fn shown_waiting<'a, T, F>(
    board: &Board,
    note: &'a watch::Sender<Option<String>>,
    call: impl FnOnce(&'a watch::Sender<Option<String>>) -> F,
) -> Result<T, DriverError>
where
    F: Future<Output = Result<T, DriverError>> + 'a,
{
    let mut seen = note.subscribe();
    let result = tokio::select! {
        result = call(note) => result,
        () = async {
            while seen.changed().await.is_ok() {
                let message = seen.borrow_and_update().clone();
                board.say(Topic::Trainer, message);
            }
            std::future::pending::<()>().await;
        } => Err(DriverError::Other("the trainer's client is gone".into())),
    };
    board.say(Topic::Trainer, None);
    result
}

/// Counts a new attempt, phase or step as progress.
fn see(state: &TrainerState, last_seen: &mut Option<TrainerProgress>, retry: &mut Retry) {
    let now = (state.attempt, state.phase, state.step);
    if *last_seen != Some(now) {
        tracing::info!(attempt = state.attempt, step = state.step, phase = ?state.phase, "trainer");
        *last_seen = Some(now);
        retry.progress();
    }
}

/// Returns a successful answer, or an error with the trainer's own words.
async fn successful(answer: reqwest::Response) -> Result<reqwest::Response, String> {
    match answer.status() {
        status if status.is_success() => Ok(answer),
        status => {
            let words = answer.text().await.unwrap_or_default();
            let words: String = words.chars().take(1000).collect();
            Err(format!("the trainer answers {status}: {words}"))
        }
    }
}

fn said(error: &Option<String>) -> String {
    error.as_ref().map(|error| format!(": {error}")).unwrap_or_default()
}
