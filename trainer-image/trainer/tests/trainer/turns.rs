//! One row per turn: histories that grow, are trimmed and restart, packed as trees, compared in double precision with
//! the same rows computed one by one.

use crate::common::graph::Graph;
use crate::common::{alone, config};
use grpo_trainer::micro_batch::MicroBatch;
use grpo_trainer::packing::{Cost, pack};
use grpo_trainer::train_row::TrainRow;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use tch::{Kind, Tensor};

/// Longest history of a turn: the model has 64 positions.
const LONGEST: usize = 44;

/// One row for each turn of an episode: its history, without turns in the middle if it does not fit, and its answer.
fn turns_of_episode(random: &mut StdRng, prompt: &[u32], episode: usize) -> Vec<TrainRow> {
    let words =
        |random: &mut StdRng, count: usize| -> Vec<u32> { (0..count).map(|_| random.random_range(0..60)).collect() };
    let mut turns: Vec<Vec<u32>> = Vec::new();
    let mut rows = Vec::new();
    for _ in 0..random.random_range(2..6) {
        let mut history = prompt.to_vec();
        let whole: usize = turns.iter().map(Vec::len).sum();
        if prompt.len() + whole > LONGEST {
            // A marker, then the newest turns that fit.
            history.push(63);
            let mut kept: Vec<&Vec<u32>> = Vec::new();
            let mut length = history.len();
            for turn in turns.iter().rev() {
                if length + turn.len() > LONGEST && !kept.is_empty() {
                    break;
                }
                length += turn.len();
                kept.push(turn);
            }
            history.extend(kept.into_iter().rev().flatten());
        } else {
            history.extend(turns.iter().flatten());
        }
        let count = random.random_range(3..8);
        let answer = words(random, count);
        let mut tokens = history.clone();
        tokens.extend(&answer);
        let weights = [
            vec![0.0; history.len()],
            vec![random.random_range(0.1..2.0); answer.len()],
        ]
        .concat();
        rows.push(TrainRow {
            tokens,
            weights,
            temperature: 0.7,
            advantage: random.random_range(-1.0..1.0),
            sequence: episode,
            ..TrainRow::default()
        });
        let count = random.random_range(2..9);
        let observation = words(random, count);
        turns.push([answer, observation].concat());
    }
    rows
}

/// Loss, logprobs by row and token, and gradients by unit.
type Computed = (f64, BTreeMap<(usize, usize), f64>, Vec<Vec<f64>>);

fn computed(batches: &[MicroBatch], rows: &[TrainRow]) -> Computed {
    let graph = Graph::of(&alone().weights().unwrap(), Kind::Double);
    let mut loss = Tensor::from(0.0f64);
    let mut logprobs = BTreeMap::new();
    for batch in batches {
        let found = graph.trained(batch);
        let weight = |(row, token): &(usize, usize)| -rows[*row].advantage * f64::from(rows[*row].weights[*token]);
        let weights: Vec<f64> = batch.trained.iter().map(weight).collect();
        loss += (&found * Tensor::from_slice(&weights)).sum(Kind::Double);
        let values = Vec::<f64>::try_from(found.detach()).unwrap();
        logprobs.extend(batch.trained.iter().copied().zip(values));
    }
    loss.backward();
    (loss.double_value(&[]), logprobs, graph.exact_gradients())
}

/// Figure: equal to 1e-6.
#[test]
fn turns_packed_as_trees_have_the_loss_and_the_gradients_of_rows_computed_one_by_one() {
    let mut random = StdRng::seed_from_u64(3);
    let (mut unique, mut all, mut farthest) = (0, 0, 0.0f64);
    for _ in 0..20 {
        let mut rows = Vec::new();
        for group in 0..2 {
            let prompt: Vec<u32> = (0..10).map(|_| random.random_range(0..60)).collect();
            for sample in 0..2 {
                rows.extend(turns_of_episode(&mut random, &prompt, 2 * group + sample));
            }
        }
        let packing = pack(&rows, 200, 1, &Cost::of(&config()));
        let packed: Vec<MicroBatch> = packing.ranks[0]
            .iter()
            .map(|pack| MicroBatch::packed(pack, &rows).unwrap())
            .collect();
        let alone: Vec<MicroBatch> = (0..rows.len())
            .map(|at| MicroBatch::padded(&rows[at..=at], at))
            .collect();
        let (loss, logprobs, gradients) = computed(&packed, &rows);
        let (wanted_loss, wanted_logprobs, wanted) = computed(&alone, &rows);
        assert!((loss - wanted_loss).abs() < 1e-6, "{loss} {wanted_loss}");
        assert_eq!(
            logprobs.keys().collect::<Vec<_>>(),
            wanted_logprobs.keys().collect::<Vec<_>>()
        );
        let apart = |a: &f64, b: &f64| (a - b).abs();
        let of_logprobs = logprobs
            .values()
            .zip(wanted_logprobs.values())
            .map(|(a, b)| apart(a, b));
        let of_gradients = gradients
            .iter()
            .flatten()
            .zip(wanted.iter().flatten())
            .map(|(a, b)| apart(a, b));
        let most = of_logprobs.chain(of_gradients).fold(0.0, f64::max);
        assert!(most < 1e-6, "{most:e}");
        farthest = farthest.max(most);
        unique += packing.unique_tokens;
        all += rows.iter().map(|row| row.tokens.len()).sum::<usize>();
    }
    assert!(
        unique < all * 3 / 4,
        "{unique} of {all} tokens: too little is shared to show anything"
    );
    eprintln!("{unique} tokens computed for {all}; farthest logprob or gradient {farthest:.1e}");
}
