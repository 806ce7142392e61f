//! The records of one agent's run, counted: episodes, causes of rows, tokens, and the gaps between the logprobs of
//! engine and trainer.
//!
//! Small gaps also show that the rows have the context that the engine had: in another context, tokens have other
//! logprobs.

use super::tokens::Tokens;
use crate::support::Result;
use grpo_records::folder::{RunFolder, counting};
use grpo_records::trainer::StepMetrics;
use grpo_records::{Branch, EndedEpisode, EpisodeScope, paths, token_stats};
use std::collections::{BTreeMap, BTreeSet};

const GAP: f32 = 1e-3;

#[derive(Debug, Default)]
pub struct Measured {
    /// Tasks with a trained token.
    pub tasks: BTreeSet<String>,
    pub apis: BTreeSet<String>,
    pub turns: usize,
    /// Rows by the reason why they were opened.
    causes: BTreeMap<Branch, usize>,
    /// Episodes by their ends.
    ends: BTreeMap<String, usize>,
    pub tokens: Tokens,
    pub not_computed: usize,
    pub gaps_over: usize,
    pub gap_max: f32,
}

impl Measured {
    /// Of the only iteration of a run; an error if a row has no cause.
    pub fn of(folder: &RunFolder) -> Result<Self> {
        let mut measured = Self::default();
        let mut episodes = BTreeMap::new();
        for episode in counting(folder.episodes(&EpisodeScope::Iteration { iteration: 1 })?) {
            let meta = &episode.meta;
            if !meta.outcome.is_verdict() {
                // No batch has its tokens.
                let end = format!("{:?}: {}", meta.outcome, meta.message.as_deref().unwrap_or_default());
                *measured.ends.entry(end).or_default() += 1;
                continue;
            }
            *measured.ends.entry(format!("{:?}", meta.end)).or_default() += 1;
            let ended = folder.ended(&episode.path)?.ok_or("an episode has no record")?;
            measured
                .add(&ended)
                .map_err(|what| format!("{}: {what}", episode.path))?;
            episodes.insert(meta.key.name(), ended);
        }
        measured.compare(folder, &episodes)?;
        Ok(measured)
    }

    /// Adds the requests of an episode that has a verdict. `Err`: how its causes do not explain its rows.
    fn add(&mut self, ended: &EndedEpisode) -> std::result::Result<(), String> {
        let mut causes = Vec::new();
        for turn in &ended.record.turns {
            let request = turn.request.as_ref();
            let request = request.ok_or_else(|| format!("turn {} has no request", turn.turn))?;
            self.apis.insert(request.api.clone());
            causes.extend(request.branch);
        }
        let first = ended.rows.first().map(|_| Branch::First);
        if causes.len() != ended.rows.len() || causes.first().copied() != first {
            return Err(format!("its {} rows were opened by {causes:?}", ended.rows.len()));
        }
        for cause in causes {
            *self.causes.entry(cause).or_default() += 1;
        }
        self.turns += ended.record.turns.len();
        Ok(())
    }

    /// Compares the batch with the episodes and with what the trainer computed.
    fn compare(&mut self, folder: &RunFolder, episodes: &BTreeMap<String, EndedEpisode>) -> Result<()> {
        let mut batch = folder.batch(1)?;
        batch.fill(|path| folder.bytes(path))?;
        self.tokens = Tokens::of(episodes, &batch.rows);
        let trained = batch.rows.iter().filter(|row| row.sampled() > 0);
        self.tasks = trained.map(|row| row.instance.clone()).collect();

        let metrics: Option<StepMetrics> = folder.json_if_there(&paths::trainer_metrics(1))?;
        let metrics = metrics.ok_or("the step has no metrics")?;
        let (_, seen) = token_stats::decode(&folder.bytes(&paths::token_stats(1))?)?;
        if (seen.logprobs.len(), metrics.trained_tokens) != (self.tokens.trained, self.tokens.trained as u64) {
            let entries = seen.logprobs.len();
            let trained = self.tokens.trained;
            return Err(format!("{trained} tokens in the batch, {entries} entries for them, {metrics:?}").into());
        }
        let of_rows = batch.rows.iter().flat_map(|row| row.mask.iter().zip(&row.logprobs));
        let engine = of_rows.filter(|(mask, _)| **mask == 1).map(|(_, logprob)| *logprob);
        let gaps = seen.logprobs.iter().zip(engine);
        // A token that was not computed has no number.
        let gaps = gaps.map(|(trainer, engine)| (trainer - engine).abs());
        let gaps: Vec<f32> = gaps.filter(|gap| !gap.is_nan()).collect();
        self.not_computed = self.tokens.trained - gaps.len();
        let over = gaps.iter().filter(|gap| **gap > GAP).count();
        self.gaps_over = over.max(metrics.logprob_gap_over as usize);
        self.gap_max = gaps.iter().copied().fold(0.0, f32::max);
        Ok(())
    }

    pub fn rows_beyond_the_first(&self) -> usize {
        let others = self.causes.iter().filter(|(cause, _)| **cause != Branch::First);
        others.map(|(_, rows)| rows).sum()
    }
}
