//! Mini-batches, the rows of one optimizer step: a batch's rows are cut, weighed and packed.
//!
//! A mini-batch holds whole sequences, in the batch's order, so that groups, whose prompts are computed once, stay
//! together as far as the number of mini-batches permits. Denominators are the mini-batch's own, as in verl. All ranks
//! cut and pack alike; each makes tensors from its own packs.

use grpo_crds::algorithm::{Algorithm, Kl, KlPlacement};
use grpo_objective::batch_weights;

use crate::error::TrainError;
use crate::flops::Forward;
use crate::loss_fn::Model;
use crate::micro_batch::MicroBatch;
use crate::packing::{Cost, Packing, pack};
use crate::sharded::Sharded;
use crate::train_row::TrainRow;

/// Rows of one optimizer step.
pub struct MiniBatch {
    pub rows: Vec<TrainRow>,
    /// Packs of all ranks.
    pub packing: Packing,
    /// Micro-batches of this rank.
    pub batches: Vec<MicroBatch>,
    /// Whether a pack's tokens are divided over ranks.
    in_parts: bool,
}

/// This rank's data for a step, if every rank could read its own; otherwise no rank takes the step with the batch at
/// `path`, so that no rank waits for another in the step's first exchange. Every rank must call it.
///
/// If the store does not answer one rank, another rank's refusal may have the same cause, so no rank refuses.
pub fn agreed<T>(model: &Sharded, own: Result<T, TrainError>, path: &str) -> Result<T, TrainError> {
    let is_unread = own.as_ref().is_err_and(TrainError::is_unread);
    let failed = model.sum(&[own.is_err(), is_unread].map(|failed| f64::from(u8::from(failed))))?;
    let (failed, unread) = (failed[0], failed[1]);
    let path = path.to_owned();
    let others = |count: f64| format!("{count} of the ranks cannot read files of the batch; their logs have the cause");
    match own {
        Err(error) if error.is_unread() => Err(error),
        _ if unread > 0.0 => Err(TrainError::Unread {
            path,
            message: others(unread),
        }),
        Ok(_) if failed > 0.0 => Err(TrainError::Batch {
            path,
            message: others(failed),
        }),
        own => own,
    }
}

/// Numbers a part's sequences from 0, by first appearance.
fn renumber(rows: &mut [TrainRow]) -> usize {
    let mut seen: Vec<usize> = Vec::new();
    let mut known = std::collections::HashMap::new();
    for row in rows {
        row.sequence = *known.entry(row.sequence).or_insert_with(|| {
            seen.push(row.sequence);
            seen.len() - 1
        });
    }
    seen.len()
}

/// Cuts rows into at most `parts` lists with nearly the same number of whole sequences.
pub fn cut(mut rows: Vec<TrainRow>, parts: u32) -> Vec<Vec<TrainRow>> {
    let sequences = renumber(&mut rows);
    let parts = (parts as usize).clamp(1, sequences.max(1));
    let mut lists: Vec<Vec<TrainRow>> = (0..parts).map(|_| Vec::new()).collect();
    for row in rows {
        lists[row.sequence * parts / sequences.max(1)].push(row);
    }
    for list in &mut lists {
        renumber(list);
    }
    lists
}

/// Gives every trained token its weight in the loss of these rows.
pub fn weigh(rows: &mut [TrainRow], algorithm: &Algorithm) {
    let mut tokens = vec![0u64; renumber(rows)];
    for row in rows.iter() {
        tokens[row.sequence] += row.trained().count() as u64;
    }
    let weights = batch_weights(&tokens, algorithm.aggregation, algorithm.aggregation_length);
    for row in rows {
        let weight = weights[row.sequence] as f32;
        for token in row.weights.iter_mut().filter(|token| **token != 0.0) {
            *token = weight;
        }
    }
}

/// Leaves out sequences whose loss is always 0: those without an advantage, if neither a divergence nor the entropy is
/// in the loss. The other sequences' weights already count them, so they need not be computed. Returns the number of
/// their trained tokens.
pub fn leave_out_what_adds_nothing(rows: &mut Vec<TrainRow>, algorithm: &Algorithm) -> u64 {
    let in_loss = |kl: &Kl| kl.placement == KlPlacement::Loss;
    if algorithm.kl.as_ref().is_some_and(in_loss) || algorithm.entropy_coefficient != 0.0 {
        return 0;
    }
    let mut moves = vec![false; renumber(rows)];
    for row in rows.iter() {
        moves[row.sequence] |= row.advantage != 0.0;
    }
    let tokens = |rows: &[TrainRow]| rows.iter().map(|row| row.trained().count() as u64).sum::<u64>();
    let all = tokens(rows);
    rows.retain(|row| moves[row.sequence]);
    renumber(rows);
    all - tokens(rows)
}

impl MiniBatch {
    /// Packs rows for the model's ranks.
    pub fn new(rows: Vec<TrainRow>, model: &Sharded) -> Result<Self, TrainError> {
        let (groups, own) = model.data_parallel();
        let packing = pack(&rows, model.pack_tokens(), groups, &Cost::of(&model.config));
        let made = || -> Result<Vec<MicroBatch>, TrainError> {
            let mine = packing.ranks[own].iter();
            mine.map(|pack| model.micro_batch(pack, &rows)).collect()
        };
        let batches = match model.replays {
            // Each rank reads its own files, and no slow store must look like a hang.
            Some(_) => {
                let batches = model.group.busy("reading recorded experts", made);
                if let Err(error) = &batches {
                    tracing::error!(%error, "this rank cannot read the experts of its rows");
                }
                agreed(model, batches, "of this step")?
            }
            None => made()?,
        };
        let in_parts = model.shares_sequences();
        Ok(Self {
            rows,
            packing,
            batches,
            in_parts,
        })
    }

    /// Whether the old logprobs of every row are known.
    pub fn knows_old_logprobs(&self) -> bool {
        self.rows.iter().all(|row| !row.old_logprobs.is_empty())
    }

    pub fn forget_old_logprobs(&mut self) {
        self.rows.iter_mut().for_each(|row| row.old_logprobs.clear());
    }

    /// Whether every sequence's rows are in one pack, and on one rank.
    pub fn holds_sequences_whole(&self) -> bool {
        if self.in_parts {
            return false;
        }
        let mut at: Vec<Option<usize>> = vec![None; self.rows.len()];
        let packs = self.packing.ranks.iter().flatten().enumerate();
        let mut of_entry = packs.flat_map(|(number, pack)| pack.entries.iter().map(move |entry| (number, entry)));
        of_entry.all(|(number, entry)| *at[self.rows[entry.row].sequence].get_or_insert(number) == number)
    }
}

/// Computes logprobs of the trained tokens of all mini-batches: calls `put` for every row with one number per token, 0
/// for tokens that are not trained on. Returns the operations of all ranks together. Every rank must call it, and every
/// rank gets all rows.
pub fn fill(
    model: &Sharded,
    which: Model,
    mini_batches: &mut [MiniBatch],
    mut put: impl FnMut(&mut TrainRow, Vec<f64>),
) -> Result<f64, TrainError> {
    let forward = match which {
        Model::Policy => Forward::of(&model.config),
        Model::Base => Forward::of(&model.config.without_lora()),
    };
    let flops = mini_batches
        .iter()
        .map(|mini_batch| forward.looking(&mini_batch.packing.work()));
    let flops = flops.sum();
    // Offset of each row's tokens among all.
    let mut begins: Vec<Vec<usize>> = Vec::with_capacity(mini_batches.len());
    let mut total = 0;
    for mini_batch in mini_batches.iter() {
        let begin = |row: &TrainRow| {
            total += row.tokens.len();
            total - row.tokens.len()
        };
        begins.push(mini_batch.rows.iter().map(begin).collect());
    }
    let mut found = vec![0.0; total];
    let owners: Vec<usize> = mini_batches
        .iter()
        .enumerate()
        .flat_map(|(at, mini_batch)| mini_batch.batches.iter().map(move |_| at))
        .collect();
    let batches: Vec<&MicroBatch> = mini_batches.iter().flat_map(|mini_batch| &mini_batch.batches).collect();
    model.observe(which, &batches, &mut |at, piece, logprobs, _| {
        for ((row, token), logprob) in piece.trained.iter().zip(logprobs) {
            found[begins[owners[at]][*row] + token] = *logprob;
        }
    })?;
    // Each token was computed by one rank.
    let found = model.sum(&found)?;
    for (mini_batch, begins) in mini_batches.iter_mut().zip(&begins) {
        for (row, begin) in mini_batch.rows.iter_mut().zip(begins) {
            let values = found[*begin..begin + row.tokens.len()].to_vec();
            put(row, values);
        }
    }
    Ok(flops)
}

#[cfg(test)]
mod tests;
