//! Sampling seeds: a pure function of the identity of a sample, not of time or place. The same weights and the same
//! seeds give the same answers, also when a restarted driver asks again after a failure.

use grpo_records::{EpisodeKey, EpisodeScope};
use sha2::{Digest, Sha256};

/// The seed of one turn. In an evaluation it does not depend on the weights, so that two versions get the same seeds.
pub fn of_turn(run_seed: u64, scope: &EpisodeScope, instance: &str, group: u32, sample: u32, turn: u32) -> u64 {
    let place = match scope {
        EpisodeScope::Iteration { iteration } => format!("iteration {iteration}"),
        EpisodeScope::Evaluation { set, .. } => format!("evaluation {set}"),
    };
    drawn(&format!("{run_seed}\n{place}\n{instance}\n{group}\n{sample}\n{turn}"))
}

/// The seed of one vote of a judge on a turn: no two votes share a seed.
pub fn of_vote(run_seed: u64, key: &EpisodeKey, turn: u32, vote: u32) -> u64 {
    let EpisodeKey {
        scope,
        instance,
        group,
        sample,
    } = key;
    let turn = of_turn(run_seed, scope, instance, *group, *sample, turn);
    drawn(&format!("{turn}\nvote {vote}"))
}

fn drawn(name: &str) -> u64 {
    let digest = Sha256::digest(name);
    let mut first = [0; 8];
    first.copy_from_slice(&digest[..8]);
    // 53 bits: engines in other languages take seeds as signed numbers, and JSON readers as floats.
    u64::from_be_bytes(first) >> 11
}

#[cfg(test)]
mod tests;
