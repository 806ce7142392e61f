//! The judging of one attempt: begins turn by turn while the agent works, and collects the scores after the verdict.
//!
//! Dropping this value cancels requests under way: turns of a void episode need no votes.

use super::abort::Abort;
use super::plan::EpisodePlan;
use crate::fault::DriverError;
use crate::judge::{Case, Judge};
use grpo_records::{EpisodeScope, JudgedTurn, ProcessScores, RunStore, TurnRecord, TurnScore, VoidReason, Writer};
use std::collections::BTreeSet;
use std::sync::Arc;
use tokio::task::JoinSet;

/// The turns of an attempt that are put to the judge.
pub struct Judging {
    plan: EpisodePlan,
    dir: String,
    store: RunStore,
    writer: Writer,
    /// `None` if the episode is not judged.
    judge: Option<Arc<Judge>>,
    begun: BTreeSet<u32>,
    under_way: JoinSet<Result<JudgedTurn, DriverError>>,
}

impl Judging {
    /// Only episodes that are trained on are judged.
    pub fn new(plan: &EpisodePlan, dir: &str, store: &RunStore, writer: &Writer, judge: Option<&Arc<Judge>>) -> Self {
        let trained_on = matches!(plan.key.scope, EpisodeScope::Iteration { .. });
        Self {
            plan: plan.clone(),
            dir: dir.to_owned(),
            store: store.clone(),
            writer: writer.clone(),
            judge: judge.filter(|_| trained_on).cloned(),
            begun: BTreeSet::new(),
            under_way: JoinSet::new(),
        }
    }

    /// Sends the judge the turns that it does not have yet. They are durable.
    pub fn begin(&mut self, turns: &[TurnRecord]) -> Result<(), DriverError> {
        let Some(judge) = &self.judge else {
            return Ok(());
        };
        for (at, turn) in turns.iter().enumerate() {
            if !judge.wants(turn) || !self.begun.insert(turn.turn) {
                continue;
            }
            let plan = &self.plan;
            let case = Case {
                store: self.store.clone(),
                writer: self.writer.clone(),
                episode: plan.key.name(),
                dir: self.dir.clone(),
                turn: turn.turn,
                asked: judge.asked(&plan.task, turns, at)?,
                seeds: judge.seeds(plan.seed, &plan.key, turn.turn),
            };
            let judge = judge.clone();
            self.under_way.spawn(async move { judge.votes(&case).await });
        }
        Ok(())
    }

    /// The scores, once all votes are in. `outcome`: the reward of the verdict alone. An episode that lost every score
    /// to the infrastructure is void: its reward would not compare with those of its group.
    pub async fn scores(mut self, turns: &[TurnRecord], outcome: f32) -> Result<Option<ProcessScores>, Abort> {
        self.begin(turns)?;
        let Some(judge) = self.judge.clone() else {
            return Ok(None);
        };
        let mut judged = Vec::new();
        while let Some(done) = self.under_way.join_next().await {
            judged.push(done.map_err(|error| DriverError::Other(format!("judging {}: {error}", self.dir)))??);
        }
        judged.sort_by_key(|one| one.turn);
        let lost = judged
            .iter()
            .flat_map(|one| &one.votes)
            .find_map(|vote| vote.lost.as_ref());
        if let (Some(why), true) = (lost, judged.iter().all(|one| one.score.is_none())) {
            return Err(Abort::Void {
                reason: VoidReason::JudgeUnavailable,
                message: format!(
                    "the judge at {} gave no turn a score; a vote was lost: {why}",
                    judge.host()
                ),
            });
        }
        let score = |one: &JudgedTurn| TurnScore {
            turn: one.turn,
            score: one.score,
        };
        Ok(Some(ProcessScores {
            outcome,
            turns: judged.iter().map(score).collect(),
        }))
    }
}
