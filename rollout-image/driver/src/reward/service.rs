//! The client of `reward.http`: a user's service that decides the reward of an episode.
//!
//! The client posts every episode with a verdict. The answer is a separate record, durable before the episode's, so a
//! restarted driver does not ask again; a request that was answered but not recorded is repeated with the same id. If
//! the service does not answer, or answers something other than a number, the driver waits as long as for a grader;
//! then the episode is void. A fault of the service is never a reward. A refusal (413, 422) is no fault: the policy
//! decides the content of a request, and must not gain a new attempt by it. 400 is a fault: servers and proxies send it
//! for their own errors.

use crate::episode::abort::Abort;
use crate::fault::DriverError;
use crate::outside;
use crate::retry::{Budget, Outage, Pauses, Retry};
use crate::reward::RewardServiceSettings;
use bytes::Bytes;
use grpo_records::{Created, GradeRecord, Outcome, RewardAnswer, RunStore, SCHEMA, VoidReason, Writer, paths};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::time::Duration;
use tokio::sync::Semaphore;

const PAUSES: Pauses = Pauses::doubling(Duration::from_millis(500), Duration::from_secs(30));
/// Largest reward that counts, as for those of the manifest.
const LARGEST: f64 = 1000.0;
/// Longest answer that is read, in bytes.
const LONGEST_ANSWER: usize = 64 << 10;
/// Longest note that is kept, in characters.
const LONGEST_NOTE: usize = 1000;

/// The client.
pub struct RewardService {
    settings: RewardServiceSettings,
    http: reqwest::Client,
    places: Semaphore,
    /// All episodes share one wait for an outage.
    outage: Outage,
}

/// The request about one attempt.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Question<'a> {
    /// The same in every repetition.
    pub id: String,
    pub namespace: &'a str,
    pub run: &'a str,
    pub uid: &'a str,
    /// The episode's folder in the store.
    pub episode: &'a str,
    #[serde(skip)]
    pub name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub iteration: Option<u32>,
    /// The set of an evaluation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub set: Option<&'a str>,
    pub weights: Vec<String>,
    pub instance: &'a str,
    /// The task's row without the fields that give the answer away.
    pub task: Map<String, Value>,
    /// As `Resolved` or `Unresolved`.
    pub outcome: Outcome,
    /// By the run's own rule.
    pub reward: f32,
    pub grade: Option<GradeRecord>,
    pub end: Value,
    pub turns: usize,
    pub tokens: usize,
    pub patch: String,
    pub messages: Vec<Value>,
}

#[derive(Deserialize)]
struct Answer {
    reward: f64,
    #[serde(default)]
    note: Option<String>,
}

/// The result of a request.
enum Told {
    Answer(Answer),
    /// A retry would be refused again. Not a loss: the policy decides the content of a request.
    Refused(String),
}

impl RewardService {
    pub fn new(settings: &RewardServiceSettings) -> Self {
        Self {
            http: outside::client(),
            places: Semaphore::new(settings.concurrency as usize),
            outage: Outage::new(PAUSES, settings.budget.request),
            settings: settings.clone(),
        }
    }

    /// The service's reward for an attempt, from the store if it is recorded. `unresolved`: the reward if the service
    /// refuses the request.
    pub async fn worth(
        &self,
        store: &RunStore,
        writer: &Writer,
        question: &Question<'_>,
        unresolved: f64,
    ) -> Result<f32, Abort> {
        let file = paths::reward(question.episode);
        if let Some(known) = store.read_if_there::<RewardAnswer>(&file).await? {
            return Ok(known.reward);
        }
        let told = self.answer(question).await?;
        let (reward, note, refused) = match told {
            Told::Answer(Answer { reward, note }) => (reward, note, None),
            Told::Refused(why) => {
                tracing::warn!(
                    episode = question.episode,
                    why,
                    "the service of reward.http refuses an episode"
                );
                (unresolved, None, Some(why))
            }
        };
        let record = RewardAnswer {
            schema: SCHEMA,
            writer: writer.clone(),
            episode: question.name.clone(),
            outcome: question.outcome.clone(),
            grade: question.grade.clone(),
            by_rule: question.reward,
            reward: reward as f32,
            note: note.map(|note| note.chars().take(LONGEST_NOTE).collect()),
            refused,
            at: jiff::Timestamp::now().as_second(),
        };
        match store.create(&file, &record).await? {
            Created::Written { .. } => Ok(record.reward),
            // Another driver was faster; each episode has one reward, so that driver's counts.
            Created::Existed => Ok(store.read::<RewardAnswer>(&file).await?.reward),
        }
    }

    async fn answer(&self, question: &Question<'_>) -> Result<Told, Abort> {
        let body: Bytes = serde_json::to_vec(question)
            .map_err(|error| DriverError::Other(format!("asking for the reward of {}: {error}", question.episode)))?
            .into();
        let Budget { total, .. } = self.settings.budget;
        let mut retry = Retry::new(total, PAUSES).with_jitter(&question.id);
        loop {
            // The semaphore is never closed. A pause holds no place: one failing request must not delay others.
            let place = self.places.acquire().await;
            let asked = self.ask(body.clone()).await;
            drop(place);
            let why = match asked {
                Ok(told) => {
                    self.outage.over();
                    return Ok(told);
                }
                Err(why) => why,
            };
            tracing::warn!(episode = question.episode, why, "no reward");
            if self.outage.failed() > total || retry.pause().await.is_err() {
                return Err(Abort::Void {
                    reason: VoidReason::RewardUnavailable,
                    message: format!(
                        "reward.http {} gave no reward: {why}",
                        outside::shown(&self.settings.url)
                    ),
                });
            }
        }
    }

    async fn ask(&self, body: Bytes) -> Result<Told, String> {
        let RewardServiceSettings { url, token, budget, .. } = &self.settings;
        let mut request = self.http.post(url).timeout(budget.request);
        if let Some(file) = token {
            // Read each time: a Secret may change.
            let read = std::fs::read_to_string(file);
            let token = read.map_err(|error| format!("reading the token {}: {error}", file.display()))?;
            request = request.bearer_auth(token.trim());
        }
        let request = request.header("content-type", "application/json").body(body);
        let failed = |error: reqwest::Error| error.without_url().to_string();
        let answer = request.send().await.map_err(failed)?;
        let status = answer.status();
        let read = outside::body(answer, LONGEST_ANSWER).await.map_err(failed)?;
        let read = read.ok_or_else(|| format!("{status}, an answer of more than {LONGEST_ANSWER} bytes"))?;
        let said = || String::from_utf8_lossy(&read).chars().take(300).collect::<String>();
        match status.as_u16() {
            413 | 422 => return Ok(Told::Refused(format!("{status}: {}", said()))),
            _ if !status.is_success() => return Err(format!("{status}: {}", said())),
            _ => {}
        }
        let answer: Answer = serde_json::from_slice(&read)
            .map_err(|error| format!("the answer is not {{\"reward\": number}} ({error}): {}", said()))?;
        // A reward beyond the bounds is clamped: as a fault it would give the policy a new attempt.
        match answer.reward.is_finite() {
            true => Ok(Told::Answer(Answer {
                reward: answer.reward.clamp(-LARGEST, LARGEST),
                ..answer
            })),
            false => Err(format!("the reward {} is not a number", answer.reward)),
        }
    }
}
