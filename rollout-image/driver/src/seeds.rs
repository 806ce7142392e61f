//! Sampling seeds. A pure function of what is sampled, not of when or where: the same weights and the same seeds give
//! the same answers, whoever asks again after whatever went wrong.

use grpo_records::EpisodeScope;
use sha2::{Digest, Sha256};

/// The seed of one turn. An evaluation's does not depend on the weights, so that two versions face the same dice.
pub fn of_turn(run_seed: u64, scope: &EpisodeScope, instance: &str, group: u32, sample: u32, turn: u32) -> u64 {
    let place = match scope {
        EpisodeScope::Iteration { iteration } => format!("iteration {iteration}"),
        EpisodeScope::Evaluation { set, .. } => format!("evaluation {set}"),
    };
    let digest = Sha256::digest(format!("{run_seed}\n{place}\n{instance}\n{group}\n{sample}\n{turn}"));
    let mut first = [0; 8];
    first.copy_from_slice(&digest[..8]);
    // Engines written in other languages take seeds as signed numbers, and JSON readers as floats.
    u64::from_be_bytes(first) >> 11
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_repeat_and_differ_in_every_part() {
        let scope = EpisodeScope::Iteration { iteration: 1 };
        let one = of_turn(0, &scope, "a", 0, 0, 0);
        assert_eq!(one, of_turn(0, &scope, "a", 0, 0, 0));
        let others = [
            of_turn(1, &scope, "a", 0, 0, 0),
            of_turn(0, &EpisodeScope::Iteration { iteration: 2 }, "a", 0, 0, 0),
            of_turn(0, &scope, "b", 0, 0, 0),
            of_turn(0, &scope, "a", 1, 0, 0),
            of_turn(0, &scope, "a", 0, 1, 0),
            of_turn(0, &scope, "a", 0, 0, 1),
        ];
        assert!(others.iter().all(|other| *other != one));
    }

    #[test]
    fn two_weights_are_evaluated_with_the_same_dice() {
        let at = |weights: &str| EpisodeScope::Evaluation {
            set: "heldout".into(),
            weights: weights.into(),
        };
        assert_eq!(
            of_turn(0, &at("a-v0"), "a", 0, 0, 0),
            of_turn(0, &at("a-v9"), "a", 0, 0, 0)
        );
    }
}
