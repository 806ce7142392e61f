//! The judge of single turns: `reward.process`.
//!
//! While an episode continues, the judge votes several times on each turn that ran something (`episode::judging` starts
//! the requests and gathers the votes). The votes on a turn are one record, durable before anything follows from them,
//! so a restarted driver asks about no turn twice. A lost vote is requested again with the same seed; it is missing
//! only if the judge's servers fail for as long as a grading may wait, counted from the first failure in a row. An
//! answer that is no chat completion, such as the page of a proxy, is a failure too. An answer that was cut off has no
//! verdict: its reasoning may quote a box that the policy wrote.
//!
//! A judge that refuses every question ends the run: its model has no chat template, or its server refuses a setting.
//! Until its first answer, each refusal is checked with a question that no policy wrote.

pub mod prompt;

use self::prompt::{Asked, JudgePrompt, ran};
use crate::fault::{DriverError, TerminalFault};
use crate::metrics::Metrics;
use crate::replicas::{Endpoints, Replicas};
use crate::retry::{Budget, Outage, Pauses, Retry, asked_pause};
use crate::sampling::{field_of, penalties};
use crate::tasks::Task;
use grpo_auth::TokenFile;
use grpo_contracts::reason::Reason;
use grpo_crds::grpo_run::ProcessReward;
use grpo_engine_protocol::{ChatChoice, ChatRequest, ChatResponse, ChatRole, ChatText, ErrorBody, ErrorCode};
use grpo_records::judged::{score_of, vote_of};
use grpo_records::{
    Created, EpisodeEnd, EpisodeKey, JudgedTurn, ProcessRule, RunStore, SCHEMA, TurnRecord, Vote, Writer, paths,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;

const PAUSES: Pauses = Pauses::doubling(Duration::from_millis(250), Duration::from_secs(10));

/// A question that no policy wrote.
const NEUTRAL: &str = "Say yes.";

/// The settings of the judge.
#[derive(Clone, Debug)]
pub struct JudgeSettings {
    pub spec: ProcessReward,
    pub endpoints: Endpoints,
    pub rule: ProcessRule,
    /// `request`: for one request. `total`: for one vote while the judge fails.
    pub budget: Budget,
}

/// The client of the judge.
pub struct Judge {
    settings: JudgeSettings,
    prompt: JudgePrompt,
    replicas: Replicas,
    http: reqwest::Client,
    token: Option<TokenFile>,
    /// Limits the requests at one time.
    places: Semaphore,
    metrics: Arc<Metrics>,
    /// All votes share one wait for an outage.
    outage: Outage,
    /// It takes the run's settings: it has answered a question.
    has_answered: AtomicBool,
}

/// A turn and the requests about it.
#[derive(Clone, Debug)]
pub struct Case {
    pub store: RunStore,
    pub writer: Writer,
    pub episode: String,
    /// The folder of the attempt.
    pub dir: String,
    pub turn: u32,
    pub asked: Asked,
    /// One for each vote.
    pub seeds: Vec<u64>,
}

/// An answer of the judge.
struct Answer {
    text: String,
    /// It ended at the limit of tokens, or a filter ended it.
    is_cut: bool,
}

/// Why there is no answer.
enum Unanswered {
    /// With the pause that the server asks for.
    Again(String, Duration),
    /// A retry would be refused again. Not a lost vote: the policy decides how long a question is.
    Refused(String),
    /// Every question would be refused. With the next step.
    RefusesAll(String),
}

impl Judge {
    /// Compiles the templates; sends no request.
    pub fn new(settings: &JudgeSettings, token: TokenFile, metrics: Arc<Metrics>) -> Result<Self, DriverError> {
        let unusable = |error: minijinja::Error| {
            TerminalFault::new(
                Reason::PromptUnusable,
                format!("a template of spec.reward.process: {error:#}"),
            )
        };
        let http = reqwest::Client::builder()
            .connect_timeout(Duration::from_secs(2))
            .pool_idle_timeout(Duration::from_secs(30))
            .no_proxy()
            .build()
            .map_err(|error| DriverError::Other(format!("setting up HTTP: {error}")))?;
        Ok(Self {
            prompt: JudgePrompt::new(&settings.spec).map_err(unusable)?,
            replicas: Replicas::new(settings.endpoints.clone()),
            http,
            token: Some(token),
            places: Semaphore::new(settings.spec.concurrency as usize),
            metrics,
            outage: Outage::new(PAUSES, settings.budget.request),
            has_answered: AtomicBool::new(false),
            settings: settings.clone(),
        })
    }

    pub fn rule(&self) -> &ProcessRule {
        &self.settings.rule
    }

    /// Whether the judge scores a turn.
    pub fn wants(&self, turn: &TurnRecord) -> bool {
        ran(turn) && !(self.settings.spec.skip_submit && turn.end == Some(EpisodeEnd::Submitted))
    }

    /// The prompt about turn `at` of `turns`.
    pub fn asked(&self, task: &Task, turns: &[TurnRecord], at: usize) -> Result<Asked, TerminalFault> {
        self.prompt.of_turn(&task.variables(), turns, at).map_err(|error| {
            let message = format!("a template of spec.reward.process, for {}: {error:#}", task.instance);
            TerminalFault::new(Reason::PromptUnusable, message)
        })
    }

    /// One seed for each vote on a turn.
    pub fn seeds(&self, run_seed: u64, key: &EpisodeKey, turn: u32) -> Vec<u64> {
        let votes = 0..self.settings.spec.votes;
        votes
            .map(|vote| crate::seeds::of_vote(run_seed, key, turn, vote))
            .collect()
    }

    /// The votes on a turn, from the store if they exist.
    pub async fn votes(&self, case: &Case) -> Result<JudgedTurn, DriverError> {
        let file = paths::judged(&case.dir, case.turn);
        if let Some(known) = case.store.read_if_there::<JudgedTurn>(&file).await? {
            return Ok(known);
        }
        let votes = case.seeds.iter().map(|seed| self.vote(&case.asked, *seed));
        let votes = futures::future::try_join_all(votes).await?;
        let judged = JudgedTurn {
            schema: SCHEMA,
            writer: case.writer.clone(),
            episode: case.episode.clone(),
            turn: case.turn,
            prompt_sha256: case.asked.sha256(),
            score: score_of(&votes, self.settings.rule.min_votes),
            votes,
            at: jiff::Timestamp::now().as_second(),
        };
        match case.store.create(&file, &judged).await? {
            Created::Written { .. } => {
                self.metrics.judged(&judged);
                Ok(judged)
            }
            // Another driver was faster; each turn has one score, so that driver's counts.
            Created::Existed => Ok(case.store.read(&file).await?),
        }
    }

    async fn vote(&self, asked: &Asked, seed: u64) -> Result<Vote, TerminalFault> {
        // The semaphore is never closed.
        let mut place = self.places.acquire().await;
        let began = Instant::now();
        let done = |vote: Vote| {
            Ok(Vote {
                seed,
                millis: u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX),
                ..vote
            })
        };
        let mut retry = Retry::new(self.settings.budget.total, PAUSES).with_jitter(&seed.to_string());
        for tries in 0.. {
            let answered = self.ask_and_check(asked, seed, tries).await;
            // A pause holds no place: a question that fails again and again must not delay others.
            drop(place);
            match answered {
                Ok(Answer { text, is_cut }) => {
                    return done(Vote {
                        vote: vote_of(&text).filter(|_| !is_cut),
                        text,
                        cut: is_cut,
                        ..Vote::default()
                    });
                }
                Err(Unanswered::Refused(why)) => {
                    tracing::warn!(seed, why, "the judge refuses a question");
                    return done(Vote {
                        refused: Some(why),
                        ..Vote::default()
                    });
                }
                Err(Unanswered::RefusesAll(why)) => {
                    let host = self.host();
                    let message = format!("the judge at {host} refuses every question of spec.reward.process: {why}");
                    return Err(TerminalFault::new(Reason::EngineRefuses, message));
                }
                Err(Unanswered::Again(why, pause)) => {
                    tracing::debug!(seed, why, "the judge did not answer");
                    if self.outage.failed() > self.settings.budget.total || retry.pause_after(pause).await.is_err() {
                        tracing::warn!(seed, why, "a vote of the judge is lost");
                        return done(Vote {
                            lost: Some(why),
                            ..Vote::default()
                        });
                    }
                }
            }
            place = self.places.acquire().await;
        }
        done(Vote::default())
    }

    /// Asks. A refusal before the first answer may be of every question, which one that no policy wrote shows.
    async fn ask_and_check(&self, asked: &Asked, seed: u64, tries: usize) -> Result<Answer, Unanswered> {
        let why = match self.ask(asked, seed, tries).await {
            Err(Unanswered::Refused(why)) if !self.has_answered.load(Ordering::Relaxed) => why,
            answer => return answer,
        };
        let neutral = Asked {
            system: asked.system.clone(),
            prompt: NEUTRAL.to_owned(),
        };
        Err(match self.ask(&neutral, seed, tries).await {
            Ok(_) => Unanswered::Refused(why),
            Err(Unanswered::Refused(why)) => Unanswered::RefusesAll(format!(
                "{why}; the question was only {NEUTRAL:?}: give the judge's model a chat template, and compare \
                 sampling and system of spec.reward.process with what its server takes"
            )),
            Err(other) => other,
        })
    }

    async fn ask(&self, asked: &Asked, seed: u64, tries: usize) -> Result<Answer, Unanswered> {
        let all = self.replicas.all().await;
        let first = seed as usize % all.len().max(1);
        let Some(replica) = all.get((first + tries) % all.len().max(1)) else {
            let why = format!("{} has no address", self.replicas.host());
            return Err(Unanswered::Again(why, Duration::ZERO));
        };
        let request = self.http.post(format!("http://{replica}/v1/chat/completions"));
        let request = TokenFile::authorize(self.token.as_ref(), request);
        let request = request
            .timeout(self.settings.budget.request)
            .json(&self.request(asked, seed));
        let again = |error: reqwest::Error| Unanswered::Again(format!("{replica}: {error:#}"), Duration::ZERO);
        let answer = request.send().await.map_err(again)?;
        let status = answer.status();
        let body = answer.bytes().await.map_err(again)?;
        if !status.is_success() {
            let error = serde_json::from_slice::<ErrorBody>(&body).ok();
            let asked = error.as_ref().and_then(|error| error.retry_after_seconds);
            let refuses_question = refuses_question(status.as_u16(), error.as_ref().map(|error| error.code));
            let advice = error.as_ref().and_then(advice);
            let said = error.map(|error| error.to_string());
            let said = said.unwrap_or_else(|| String::from_utf8_lossy(&body).chars().take(300).collect());
            let why = format!("{replica}: {status}: {said}");
            return Err(match advice {
                Some(advice) => Unanswered::RefusesAll(format!("{why}; {advice}")),
                None if refuses_question => Unanswered::Refused(why),
                None => Unanswered::Again(why, asked.map(asked_pause).unwrap_or_default()),
            });
        }
        let answer: ChatResponse = serde_json::from_slice(&body).map_err(|error| {
            let said: String = String::from_utf8_lossy(&body).chars().take(300).collect();
            let why = format!("{replica}: {status}, but the answer is no chat completion ({error}): {said}");
            match is_refusal(&body) {
                true => Unanswered::Refused(why),
                false => Unanswered::Again(why, Duration::ZERO),
            }
        })?;
        let choice = answer.choices.into_iter().next();
        let Some(choice) = choice.filter(|choice| !is_given_up(choice)) else {
            let why = format!("{replica}: {status}, but the server gave the answer up");
            return Err(Unanswered::Again(why, Duration::ZERO));
        };
        self.outage.over();
        self.has_answered.store(true, Ordering::Relaxed);
        Ok(Answer {
            is_cut: matches!(choice.finish_reason.as_deref(), Some("length" | "content_filter")),
            text: choice.message.content.unwrap_or_default(),
        })
    }

    fn request(&self, asked: &Asked, seed: u64) -> ChatRequest {
        let sampling = &self.settings.spec.sampling;
        let says = |role, content: &str| ChatText {
            role,
            content: content.to_owned(),
        };
        let system = (!asked.system.is_empty()).then(|| says(ChatRole::System, &asked.system));
        ChatRequest {
            model: String::new(),
            messages: system
                .into_iter()
                .chain([says(ChatRole::User, &asked.prompt)])
                .collect(),
            max_tokens: Some(sampling.max_tokens_per_call),
            temperature: sampling.temperature,
            top_p: sampling.top_p,
            top_k: (sampling.top_k > 0).then_some(sampling.top_k.into()),
            min_p: None,
            presence_penalty: None,
            frequency_penalty: None,
            repetition_penalty: None,
            seed: Some(seed),
        }
        .with_penalties(penalties(sampling))
    }

    /// The address of the judge's servers, for messages.
    pub fn host(&self) -> String {
        self.replicas.host()
    }
}

/// Whether the server ended an answer for a reason of its own, as when it stops.
fn is_given_up(choice: &ChatChoice) -> bool {
    matches!(choice.finish_reason.as_deref(), Some("abort" | "error"))
}

/// Whether a refusal is of the question. The run's settings and a model without a chat template are no fault of it.
fn refuses_question(status: u16, code: Option<ErrorCode>) -> bool {
    let of_others = [ErrorCode::SettingRefused, ErrorCode::TextPromptUnsupported];
    matches!(status, 400 | 413 | 422) && code.is_none_or(|code| !of_others.contains(&code))
}

/// The next step after a refusal that is of every question.
fn advice(error: &ErrorBody) -> Option<String> {
    match error.code {
        ErrorCode::SettingRefused => {
            let field = field_of(error.setting.as_deref().unwrap_or_default());
            Some(format!(
                "leave out spec.reward.process.sampling.{field}, or set a value that the server takes"
            ))
        }
        ErrorCode::TextPromptUnsupported => Some("take a pool whose model has a chat template".to_owned()),
        _ => None,
    }
}

/// Whether a body without a completion refuses the question: some servers say so with status 200. The policy may have
/// written the refused text, and must not gain a new attempt by it. A router's body may also have the status of a
/// server that is busy or away.
fn is_refusal(body: &[u8]) -> bool {
    let body: Option<serde_json::Value> = serde_json::from_slice(body).ok();
    let error = body.as_ref().and_then(|body| body.get("error"));
    error.is_some_and(|error| !matches!(error["code"].as_u64(), Some(408 | 429 | 500..=599)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_of_the_question_unless_the_runs_settings_or_the_judges_model_cause_it() {
        for (status, code, of_question) in [
            (400, None, true),
            (400, Some(ErrorCode::ContextTooLong), true),
            (413, Some(ErrorCode::BodyTooLarge), true),
            (400, Some(ErrorCode::SettingRefused), false),
            (400, Some(ErrorCode::TextPromptUnsupported), false),
            (503, Some(ErrorCode::EngineUnavailable), false),
            (404, None, false),
        ] {
            assert_eq!(refuses_question(status, code), of_question, "{status} {code:?}");
        }
    }

    #[test]
    fn a_refusal_of_every_question_names_the_next_step() {
        let refused = ErrorBody {
            setting: Some("top_p".to_owned()),
            ..ErrorBody::new(ErrorCode::SettingRefused, "no")
        };
        assert!(advice(&refused).unwrap().contains("spec.reward.process.sampling.topP"));
        let without = ErrorBody::new(ErrorCode::TextPromptUnsupported, "no");
        assert!(advice(&without).unwrap().contains("chat template"));
        assert_eq!(advice(&ErrorBody::new(ErrorCode::InvalidRequest, "no")), None);
    }

    #[test]
    fn an_error_in_place_of_a_completion_is_a_refusal_and_a_page_is_none() {
        for error in [
            r#"{"message": "the prompt was filtered"}"#,
            r#"{"code": 400}"#,
            r#""filtered""#,
        ] {
            assert!(is_refusal(format!("{{\"error\": {error}}}").as_bytes()), "{error}");
        }
        for page in ["", "<html>log in</html>", "{}", "[\"error\"]", "\"error\""] {
            assert!(!is_refusal(page.as_bytes()), "{page}");
        }
        for code in [408, 429, 502] {
            let busy = format!("{{\"error\": {{\"code\": {code}}}}}");
            assert!(!is_refusal(busy.as_bytes()), "{code}");
        }
    }
}
