//! The question to the reward service (`reward.http`) about an attempt with a verdict.

use super::plan::EpisodePlan;
use crate::config::Settings;
use crate::grade::Graded;
use crate::reward::service::Question;
use crate::trajectory::{Trajectory, TrajectoryError};
use bytes::Bytes;
use grpo_records::store::sha256_hex;
use grpo_records::{EpisodeScope, TurnRecord};
use serde_json::{Value, json};

/// The longest patch and the longest message in a question, in characters.
const LONGEST_PATCH: usize = 1 << 20;
const LONGEST_MESSAGE: usize = 64 << 10;
/// The end of a text that was cut.
const CUT: &str = "\n[cut]";

/// An attempt with its verdict.
#[derive(Clone, Copy)]
pub struct GradedAttempt<'a> {
    pub plan: &'a EpisodePlan,
    pub dir: &'a str,
    pub trajectory: &'a Trajectory,
    pub graded: &'a Graded,
    pub patch: Option<&'a Bytes>,
}

impl<'a> GradedAttempt<'a> {
    /// `by_rule`: the reward by the run's own rule.
    pub fn question(self, settings: &'a Settings, by_rule: f32) -> Result<Question<'a>, TrajectoryError> {
        let key = &self.plan.key;
        let (iteration, set) = match &key.scope {
            EpisodeScope::Iteration { iteration } => (Some(*iteration), None),
            EpisodeScope::Evaluation { set, .. } => (None, Some(set.as_str())),
        };
        Ok(Question {
            id: sha256_hex(format!("{} {}", settings.uid, self.dir).as_bytes())[..32].to_owned(),
            namespace: &settings.namespace,
            run: &settings.name,
            uid: &settings.uid,
            episode: self.dir,
            name: key.name(),
            iteration,
            set,
            weights: self.trajectory.versions(),
            instance: &key.instance,
            task: self.plan.task.variables(),
            outcome: self.graded.outcome.clone(),
            reward: by_rule,
            grade: self.graded.record.clone(),
            end: json!(self.trajectory.end),
            turns: self.trajectory.turns.len(),
            tokens: self.trajectory.tokens(),
            patch: cut(
                &String::from_utf8_lossy(self.patch.map_or(&[], |patch| patch)),
                LONGEST_PATCH,
            ),
            messages: messages(&self.trajectory.whole_turns()?),
        })
    }
}

/// Cuts a text and marks the cut: the policy decides how long its texts are.
fn cut(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}{CUT}", &text[..end]),
        None => text.to_owned(),
    }
}

/// The conversation as text: opening messages, then answers and observations.
fn messages(turns: &[TurnRecord]) -> Vec<Value> {
    let says = |role: &str, content: &str| json!({"role": role, "content": cut(content, LONGEST_MESSAGE)});
    let of = |turn: &TurnRecord| {
        let opening = turn.opening.iter();
        let mut said: Vec<Value> = opening.map(|message| says(&message.role, &message.content)).collect();
        said.push(says("assistant", &turn.text));
        if !turn.observation_text.is_empty() {
            said.push(says("user", &turn.observation_text));
        }
        said
    };
    turns.iter().flat_map(of).collect()
}
