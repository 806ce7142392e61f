//! The client of `reward.http`: a service of the user's that says what an episode is worth.
//!
//! Every episode with a verdict is posted to it. The answer is a record of its own, durable before the episode's, so a
//! driver that comes back does not ask again; a question that was answered and not recorded is asked again under the
//! same id. A service that does not answer, or answers something else than a number, is waited for as long as a grader
//! is; then the episode is void. A fault of the service is never a reward. A question that it refuses (413, 422) is no
//! fault: the policy decides what is in it, and must not gain a new attempt by it. 400 is one: servers and proxies say
//! it of their own faults.

use crate::episode::abort::Abort;
use crate::fault::DriverError;
use crate::retry::{Budget, Pauses, Retry};
use crate::reward::RewardServiceSettings;
use bytes::Bytes;
use grpo_records::{Created, GradeRecord, Outcome, RewardAnswer, RunStore, SCHEMA, VoidReason, Writer, paths};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;

const PAUSES: Pauses = Pauses::doubling(Duration::from_millis(500), Duration::from_secs(30));
/// The largest reward that counts, as for those of the manifest.
const LARGEST: f64 = 1000.0;
/// The longest answer that is read, in bytes.
const LONGEST_ANSWER: usize = 64 << 10;
/// How much of a note is kept, in characters.
const LONGEST_NOTE: usize = 1000;

/// The client.
pub struct RewardService {
    settings: RewardServiceSettings,
    http: reqwest::Client,
    places: Semaphore,
    /// Since when it has answered nothing that counts: an outage is waited for once, not by each episode.
    failing: Mutex<Option<Failing>>,
}

/// Failures without an answer between them.
struct Failing {
    since: Instant,
    last: Instant,
}

/// What is asked of one attempt.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Question<'a> {
    /// The same whenever this is asked.
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
    /// Of an evaluation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub set: Option<&'a str>,
    pub weights: Vec<String>,
    pub instance: &'a str,
    /// The task's row without what gives the answer away.
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

/// What came of a question.
enum Told {
    Answer(Answer),
    /// Asked again, it would be refused again. That is no loss: what is in a question, the policy decides.
    Refused(String),
}

impl RewardService {
    pub fn new(settings: &RewardServiceSettings) -> Result<Self, DriverError> {
        let http = reqwest::Client::builder()
            .connect_timeout(Duration::from_secs(5))
            .pool_idle_timeout(Duration::from_secs(30))
            // Followed, a POST would come as a GET without what is asked.
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .map_err(|error| DriverError::Other(format!("setting up HTTP: {error}")))?;
        Ok(Self {
            http,
            places: Semaphore::new(settings.concurrency as usize),
            failing: Mutex::default(),
            settings: settings.clone(),
        })
    }

    /// What the service says that an attempt is worth, from the store where it has said so before. `unresolved`: what
    /// an attempt is worth that it refuses to look at.
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
            // Another driver was faster: there is one reward per episode, and that is its.
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
            // It is never closed; and not held in a pause: what makes one question fail must not keep others waiting.
            let place = self.places.acquire().await;
            let asked = self.ask(body.clone()).await;
            drop(place);
            let why = match asked {
                Ok(told) => {
                    *self.failing.lock().unwrap_or_else(PoisonError::into_inner) = None;
                    return Ok(told);
                }
                Err(why) => why,
            };
            tracing::warn!(episode = question.episode, why, "no reward");
            if self.failing_for() > total || retry.pause().await.is_err() {
                return Err(Abort::Void {
                    reason: VoidReason::RewardUnavailable,
                    message: format!("reward.http {} gave no reward: {why}", self.settings.url),
                });
            }
        }
    }

    fn failing_for(&self) -> Duration {
        let mut failing = self.failing.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        // Where nothing was asked for so long, an outage of then says nothing of now.
        let quiet = 2 * (PAUSES.longest + self.settings.budget.request);
        let since = failing
            .as_ref()
            .filter(|failing| now - failing.last < quiet)
            .map_or(now, |failing| failing.since);
        *failing = Some(Failing { since, last: now });
        now - since
    }

    async fn ask(&self, body: Bytes) -> Result<Told, String> {
        let RewardServiceSettings { url, token, budget, .. } = &self.settings;
        let mut request = self.http.post(url).timeout(budget.request);
        if let Some(file) = token {
            // Each time: a Secret may be changed.
            let read = std::fs::read_to_string(file);
            let token = read.map_err(|error| format!("reading the token {}: {error}", file.display()))?;
            request = request.bearer_auth(token.trim());
        }
        let request = request.header("content-type", "application/json").body(body);
        let mut answer = request.send().await.map_err(|error| error.without_url().to_string())?;
        let status = answer.status();
        let mut read = Vec::new();
        while let Some(piece) = answer.chunk().await.map_err(|error| error.without_url().to_string())? {
            read.extend_from_slice(&piece);
            if read.len() > LONGEST_ANSWER {
                return Err(format!("{status}, an answer of more than {LONGEST_ANSWER} bytes"));
            }
        }
        let said = || String::from_utf8_lossy(&read).chars().take(300).collect::<String>();
        match status.as_u16() {
            413 | 422 => return Ok(Told::Refused(format!("{status}: {}", said()))),
            _ if !status.is_success() => return Err(format!("{status}: {}", said())),
            _ => {}
        }
        let answer: Answer = serde_json::from_slice(&read)
            .map_err(|error| format!("the answer is not {{\"reward\": number}} ({error}): {}", said()))?;
        // An answer beyond the bounds is one: as a fault it would give the policy a new attempt.
        match answer.reward.is_finite() {
            true => Ok(Told::Answer(Answer {
                reward: answer.reward.clamp(-LARGEST, LARGEST),
                ..answer
            })),
            false => Err(format!("the reward {} is not a number", answer.reward)),
        }
    }
}
