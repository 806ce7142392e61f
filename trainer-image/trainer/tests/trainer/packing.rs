//! Packs: shared prefixes, layout, cutting and dealing.

use std::collections::{HashMap, HashSet};

use crate::common::{alone, config, ranks};
use grpo_memory::ParallelDims;
use grpo_native::attention;
use grpo_trainer::mesh::Mesh;
use grpo_trainer::mini_batch::MiniBatch;
use grpo_trainer::packing::{Cost, Pack, Packing, pack, unshared};
use grpo_trainer::sharded::Sharded;
use grpo_trainer::train_row::TrainRow;
use proptest::prelude::*;

const COST: Cost = Cost {
    token: 100.0,
    pair: 1.0,
    entry: 50.0,
};

/// Trains on the last `trained` tokens.
fn row(tokens: &[u32], trained: usize) -> TrainRow {
    let n = tokens.len();
    TrainRow {
        tokens: tokens.to_vec(),
        weights: (0..n).map(|i| f32::from(u8::from(i + trained >= n))).collect(),
        advantage: 1.0,
        temperature: 1.0,
        ..Default::default()
    }
}

/// The places that each token of a pack sees, itself included, in the order of positions.
fn sees(pack: &Pack) -> Vec<Vec<usize>> {
    let mut sees: Vec<Vec<usize>> = vec![Vec::new(); pack.tokens.len()];
    for piece in &pack.pieces {
        for query in piece.queries.clone() {
            let keys = piece.keys.clone().filter(|key| !piece.causal || *key <= query);
            sees[query].extend(keys);
        }
    }
    for seen in &mut sees {
        seen.sort_by_key(|at| pack.positions[*at]);
    }
    sees
}

/// Checks that every trained token of every row is predicted once, from a state that has seen exactly the tokens before
/// it.
fn is_faithful(rows: &[TrainRow], packing: &Packing) {
    let mut trained: Vec<(usize, usize)> = Vec::new();
    let mut prefixes: HashMap<Vec<u32>, u64> = HashMap::new();
    for pack in packing.ranks.iter().flatten() {
        attention::check(&pack.pieces, pack.tokens.len()).unwrap();
        let sees = sees(pack);
        let mut next = 0;
        for run in &pack.runs {
            assert_eq!(run.at, next);
            next += run.tokens.len();
            for (at, token) in (run.at..next).zip(run.tokens.clone()) {
                let seen: Vec<u32> = sees[at].iter().map(|at| pack.tokens[*at]).collect();
                assert_eq!(seen, rows[run.row].tokens[..=token], "{run:?} of {pack:?}");
                let known = *prefixes.entry(seen).or_insert(pack.prefixes[at]);
                assert_eq!(known, pack.prefixes[at], "a beginning has one number in all packs");
            }
        }
        assert_eq!((next, pack.prefixes.len()), (pack.tokens.len(), pack.tokens.len()));
        for entry in &pack.entries {
            let seen: Vec<u32> = sees[entry.at].iter().map(|at| pack.tokens[*at]).collect();
            assert_eq!(seen, rows[entry.row].tokens[..entry.token], "{entry:?} of {pack:?}");
            let positions: Vec<usize> = sees[entry.at].iter().map(|at| pack.positions[*at]).collect();
            assert_eq!(positions, (0..entry.token).collect::<Vec<_>>());
            trained.push((entry.row, entry.token));
        }
        assert!(pack.entries.is_sorted_by_key(|entry| (entry.row, entry.token)));
    }
    let different: HashSet<u64> = prefixes.values().copied().collect();
    assert_eq!(different.len(), prefixes.len());
    trained.sort();
    let wanted: Vec<(usize, usize)> = rows
        .iter()
        .enumerate()
        .flat_map(|(at, row)| {
            (1..row.tokens.len())
                .filter(|i| row.weights[*i] != 0.0)
                .map(move |i| (at, i))
        })
        .collect();
    assert_eq!(trained, wanted);
}

proptest! {
    #[test]
    fn whatever_the_rows_each_trained_token_sees_its_own_history_and_nothing_is_computed_twice_in_a_pack(
        // Few different tokens, so that prefixes are shared.
        texts in prop::collection::vec((prop::collection::vec(0u32..3, 1..14), 0usize..5), 1..14),
        budget in 1usize..60, ranks in 1usize..4,
    ) {
        let rows: Vec<TrainRow> = texts.iter().map(|(tokens, trained)| row(tokens, *trained)).collect();
        let packing = pack(&rows, budget, ranks, &COST);
        prop_assert_eq!(packing.ranks.len(), ranks);
        is_faithful(&rows, &packing);
        for pack in packing.ranks.iter().flatten() {
            // Two tokens with the same history would be one.
            let mut seen: Vec<Vec<u32>> = sees(pack).iter().map(|s| s.iter().map(|at| pack.tokens[*at]).collect()).collect();
            let all = seen.len();
            seen.sort();
            seen.dedup();
            prop_assert_eq!(seen.len(), all);
            let longest = pack.positions.iter().max().unwrap() + 1;
            prop_assert!(all <= budget.max(longest), "{} tokens, budget {}", all, budget);
        }
        is_faithful(&rows, &unshared(&rows, ranks, &COST));
        prop_assert_eq!(&packing, &pack(&rows, budget, ranks, &COST));
    }
}

/// `turns` rows of an episode, each with its whole history.
fn turns(prompt: &[u32], seed: u32, turns: u32, length: u32) -> Vec<TrainRow> {
    let mut tokens = prompt.to_vec();
    (0..turns)
        .map(|turn| {
            tokens.extend((0..length).map(|i| 1000 + seed * 10_000 + turn * length + i));
            row(&tokens, length as usize / 2)
        })
        .collect()
}

#[test]
fn rows_of_a_group_share_their_prompt_in_one_call_and_turns_their_history_in_none() {
    let prompt: Vec<u32> = (0..100).collect();
    // Answers to one prompt; a row's last token is cut off, because nothing is predicted from it.
    let group: Vec<TrainRow> = (0..8)
        .map(|g| row(&[prompt.clone(), vec![500 + g; 11]].concat(), 11))
        .collect();
    let packing = pack(&group, 4096, 1, &COST);
    let [only] = packing.ranks[0].as_slice() else {
        panic!("{packing:?}")
    };
    assert_eq!((only.tokens.len(), packing.row_tokens), (100 + 8 * 10, 8 * 111));
    // The heavy path, seven others, and one shared piece.
    assert_eq!(only.pieces.len(), 9);
    let shared: Vec<_> = only.pieces.iter().filter(|piece| !piece.causal).collect();
    assert_eq!((shared[0].queries.clone(), shared[0].keys.clone()), (110..180, 0..100));

    // 30 turns of one episode are one row to the model.
    let packing = pack(&turns(&prompt, 1, 30, 16), 4096, 1, &COST);
    let [only] = packing.ranks[0].as_slice() else {
        panic!("{packing:?}")
    };
    assert_eq!(
        (only.tokens.len(), only.pieces.len(), only.entries.len()),
        (100 + 480 - 1, 1, 240)
    );
}

#[test]
fn a_group_is_cut_between_its_episodes_and_groups_share_a_pack_where_they_fit() {
    let group = |g: u32| -> Vec<TrainRow> {
        let prompt: Vec<u32> = (0..100).map(|i| g * 1000 + i).collect();
        (0..4)
            .flat_map(|episode| turns(&prompt, g * 10 + episode, 5, 20))
            .collect()
    };
    let rows: Vec<TrainRow> = (1..4).flat_map(group).collect();
    // 100 + 4 * 99 tokens a group. In 300, a pack holds two episodes; in 500, one group; in 1000, two.
    for (budget, packs, unique) in [
        (300, 6, 6 * 298),
        (500, 3, 3 * 496),
        (1000, 2, 3 * 496),
        (2000, 1, 3 * 496),
    ] {
        let packing = pack(&rows, budget, 1, &COST);
        assert_eq!(
            (packing.ranks[0].len(), packing.unique_tokens),
            (packs, unique),
            "budget {budget}"
        );
        is_faithful(&rows, &packing);
    }
    // A row above the budget is still one pack, together with its prefixes.
    let packing = pack(&turns(&[7; 50], 1, 10, 20), 100, 1, &COST);
    assert_eq!((packing.ranks[0].len(), packing.unique_tokens), (1, 249));
}

#[test]
fn one_group_is_split_over_ranks_where_that_is_faster_and_costs_are_even() {
    let prompt: Vec<u32> = (0..200).collect();
    let rows: Vec<TrainRow> = (0..8).flat_map(|episode| turns(&prompt, episode, 10, 20)).collect();
    let costs = |packing: &Packing| -> Vec<f64> {
        packing
            .ranks
            .iter()
            .map(|packs| packs.iter().map(|pack| pack.cost(&COST)).sum())
            .collect()
    };
    let (one, two) = (costs(&pack(&rows, 4096, 1, &COST)), costs(&pack(&rows, 4096, 2, &COST)));
    assert!(two.iter().all(|cost| *cost < 0.65 * one[0]), "{one:?} {two:?}");
    assert!((two[0] / two[1] - 1.0).abs() < 0.05, "{two:?}");
}

#[test]
fn rows_that_train_on_nothing_are_not_computed() {
    let nothing = [row(&[1, 2, 3], 0), row(&[], 0), row(&[1], 1)];
    let packing = pack(&nothing, 100, 2, &COST);
    assert_eq!(
        (packing.unique_tokens, packing.row_tokens, packing.ranks.concat().len()),
        (0, 0, 0)
    );
}

#[test]
fn a_pack_has_the_tokens_of_all_ranks_that_share_its_sequences() {
    let prompt: Vec<u32> = (1..8).collect();
    let rows = || -> Vec<TrainRow> { (0..4).flat_map(|episode| turns(&prompt, 10 + episode, 1, 4)).collect() };
    let packed = |model: &Sharded| MiniBatch::new(rows(), model).unwrap().packing;
    let mut model = alone();
    let mut with = |tokens: usize| {
        model.micro_batch_tokens = tokens;
        packed(&model)
    };
    let (half, whole) = (with(10), with(20));
    assert!(half.unique_tokens > whole.unique_tokens, "{half:?} {whole:?}");
    let dims = ParallelDims {
        sequence: 2,
        shard: None,
    };
    let shared = ranks(2, |group| {
        let weights = alone().weights().unwrap();
        let mut model = Sharded::new(config(), Mesh::new(group, dims).unwrap(), &weights).unwrap();
        model.micro_batch_tokens = 10;
        packed(&model)
    });
    assert_eq!(shared, [whole.clone(), whole]);
}
