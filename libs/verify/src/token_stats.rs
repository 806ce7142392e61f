//! Checks that the trainer's numbers of single tokens belong to the batch's tokens and agree with the step's metrics.

use super::{Check, VerifyError};
use grpo_records::folder::RunFolder;
use grpo_records::token_stats::{self, RowSpan};
use grpo_records::{Batch, Row, StepMetrics, paths};

/// The file has logprobs in fp32, the metrics have the gap in double precision.
const ROUNDING: f64 = 1e-5;

/// `batch`: of a step of mode Train, with its ids.
pub fn check(folder: &RunFolder, batch: &Batch, tokens: &mut Check) -> Result<(), VerifyError> {
    let path = paths::token_stats(batch.step);
    // Earlier versions of the trainer, and other trainers, write no such file.
    if !folder.exists(&path)? {
        tokens.passed_over += 1;
        return Ok(());
    }
    let (rows, columns) = match token_stats::decode(&folder.bytes(&path)?) {
        Ok(decoded) => decoded,
        Err(error) => {
            tokens.expect(false, || format!("{path}: {error}"));
            return Ok(());
        }
    };
    tokens.expect(rows.len() == batch.rows.len(), || {
        format!("{path} has {} rows, the batch has {}", rows.len(), batch.rows.len())
    });
    let (mut from, mut farthest) = (0, 0.0_f64);
    for (row, stats) in batch.rows.iter().zip(&rows) {
        let marked = row.mask.iter().zip(&row.logprobs).filter(|(mask, _)| **mask == 1);
        let engine: Vec<f32> = marked.map(|(_, logprob)| *logprob).collect();
        let own = from..from + engine.len();
        tokens.expect(is_of(stats, row) && (stats.from..stats.to) == own, || {
            format!("{path}: the part of {} is not that of its tokens", row.episode)
        });
        let trainer = columns.logprobs.get(own.clone()).unwrap_or_default();
        let gaps = trainer
            .iter()
            .zip(&engine)
            .map(|(trainer, engine)| (f64::from(*trainer) - f64::from(*engine)).abs());
        // Tokens that were not computed have NaN, which is no maximum.
        farthest = gaps.fold(farthest, f64::max);
        from = own.end;
    }
    let claim: Option<StepMetrics> = folder.json_if_there(&paths::trainer_metrics(batch.step))?;
    // With several optimizer steps, the metrics have the gap under the weights before the first of them.
    if let Some(claim) = claim.filter(|claim| claim.updates == 1) {
        let agrees = (farthest - claim.logprob_gap_max).abs() <= ROUNDING * (1.0 + farthest);
        tokens.expect(agrees, || {
            format!(
                "{path}: the farthest logprobs of engine and trainer are {farthest} apart, the metrics say {}",
                claim.logprob_gap_max
            )
        });
    }
    Ok(())
}

fn is_of(stats: &RowSpan, row: &Row) -> bool {
    Some(stats.episode.as_str()) == row.stored.rows.episode() && (stats.row, stats.turn) == (row.stored.row, row.turn)
}
