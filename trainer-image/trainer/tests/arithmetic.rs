//! Breadth-first sharded steps against plain autograd and the objective's scalar words.

#![allow(clippy::unwrap_used)]

mod common;

use common::{algorithm, alone, batch, config, flat, model, ranks, steps};
use grpo_objective::advantage::batch_advantages;
use grpo_objective::loss::{token_loss, token_weights};
use grpo_policy::model::{self, Block, Rope};
use grpo_policy::weights::{self, Weights};
use grpo_trainer::data::{MicroBatch, TrainRow, cut, deal};
use grpo_trainer::finetune::{self, Plan};
use grpo_trainer::grpo;
use tch::{Kind, Tensor};

/// |a - b| / |b|.
fn distance(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len());
    let norm = |x: &mut dyn Iterator<Item = f64>| x.map(|v| v * v).sum::<f64>().sqrt();
    norm(&mut a.iter().zip(b).map(|(a, b)| f64::from(a - b))) / norm(&mut b.iter().map(|b| f64::from(*b)))
}

/// The whole model as leaves of one graph, by unit.
fn leaves(weights: &Weights) -> Vec<Vec<Tensor>> {
    let leaf = |name: &String, shape: &Vec<usize>| {
        let shape: Vec<i64> = shape.iter().map(|n| *n as i64).collect();
        Tensor::from_slice(&weights[name].values)
            .view(shape.as_slice())
            .set_requires_grad(true)
    };
    weights::units(&config())
        .iter()
        .map(|u| u.tensors.iter().map(|(name, shape)| leaf(name, shape)).collect())
        .collect()
}

/// Logprobs `[n - 1]` of tokens 1.. of one row, in one graph.
fn logprobs(leaves: &[Vec<Tensor>], tokens: &[u32], temperature: f64) -> Tensor {
    let ids: Vec<i64> = tokens.iter().map(|id| i64::from(*id)).collect();
    let ids = Tensor::from_slice(&ids).unsqueeze(0);
    let rope = Rope::new(&config(), 64, Kind::Float);
    let mut x = model::embed(&leaves[0][0], &ids);
    for block in &leaves[1..] {
        x = model::block(&config(), &rope, &Block(block), &x, &mut None);
    }
    let n = tokens.len() as i64;
    let all = model::head(&config(), &leaves[0], &x.squeeze_dim(0).narrow(0, 0, n - 1)) / temperature;
    all.log_softmax(-1, Kind::Float)
        .gather(-1, &ids.get(0).narrow(0, 1, n - 1).unsqueeze(-1), false)
        .squeeze_dim(-1)
}

#[test]
fn two_ranks_step_as_one_does() {
    let mut single = alone();
    steps(&mut single, 1..=3);
    let expected = flat(&single.weights().unwrap());
    assert!(
        distance(&expected, &flat(&alone().weights().unwrap())) > 1e-3,
        "the steps did nothing"
    );
    for weights in ranks(2, |group| {
        let mut model = model(group);
        steps(&mut model, 1..=3);
        flat(&model.weights().unwrap())
    }) {
        assert!(
            distance(&weights, &expected) < 1e-5,
            "{:e}",
            distance(&weights, &expected)
        );
    }
}

#[test]
fn breadth_first_gradients_are_those_of_one_graph() {
    let (rows, _) = grpo::prepare(&batch(1), "batch", &algorithm(), 0, 64, 64).unwrap();
    let leaves = leaves(&alone().weights().unwrap());
    let mut loss = Tensor::from(0.0f32);
    for row in &rows {
        let weights = Tensor::from_slice(&row.weights[1..]) * f64::from(row.advantage);
        loss += (logprobs(&leaves, &row.tokens, f64::from(row.temperature)) * weights).sum(Kind::Float);
    }
    loss.backward();
    let expected: Vec<Vec<f32>> = leaves
        .iter()
        .map(|unit| {
            unit.iter()
                .flat_map(|t| Vec::<f32>::try_from(t.grad().reshape([-1])).unwrap())
                .collect()
        })
        .collect();

    let lengths: Vec<usize> = rows.iter().map(|row| row.tokens.len()).collect();
    // Five ranks: most units do not divide evenly.
    for world in [1u32, 2, 5] {
        let parts = ranks(world, |group| {
            let mine = &deal(&lengths, world as usize)[group.rank() as usize];
            let groups = cut(mine, &lengths, 100);
            let batches: Vec<MicroBatch> = groups
                .iter()
                .map(|group| MicroBatch::new(&group.iter().map(|&at| &rows[at]).collect::<Vec<_>>()))
                .collect();
            let mut model = model(group);
            // Pieces of seven tokens, where one graph has them all.
            model.head_logits = 7 * 64;
            let loss = &mut |batch: &MicroBatch, logprobs: &Tensor, _: &Tensor| {
                (logprobs * &batch.weights * &batch.advantages).sum(Kind::Float)
            };
            let (gradients, _) = model.gradients(&batches, loss).unwrap();
            gradients
                .iter()
                .map(|g| Vec::<f32>::try_from(g).unwrap())
                .collect::<Vec<_>>()
        });
        for (unit, expected) in expected.iter().enumerate() {
            let mut whole: Vec<f32> = parts.iter().flat_map(|part| part[unit].clone()).collect();
            whole.truncate(expected.len());
            let apart = distance(&whole, expected);
            assert!(apart < 1e-5, "unit {unit} at world {world}: {apart:e}");
        }
    }
}

#[test]
fn a_step_reports_the_weighted_sum_of_the_objectives_losses() {
    let (batch, algorithm) = (batch(1), algorithm());
    let mut model = alone();
    let leaves = leaves(&model.weights().unwrap());
    let advantages = batch_advantages(&batch, &algorithm, 0).unwrap();
    let tokens: Vec<u64> = batch
        .rows
        .iter()
        .map(|row| row.mask.iter().map(|m| u64::from(*m)).sum())
        .collect();
    let weights = token_weights(&tokens, algorithm.aggregation);
    let (mut loss, mut clipped, mut entries) = (0.0, 0.0, 0.0);
    for (at, row) in batch.rows.iter().enumerate() {
        let new = Vec::<f32>::try_from(logprobs(&leaves, &row.tokens, f64::from(row.temperature)).detach()).unwrap();
        for i in (1..row.tokens.len()).filter(|i| row.mask[*i] == 1) {
            let advantage = advantages.rows[at].unwrap();
            let token = token_loss(
                f64::from(new[i - 1]),
                f64::from(row.logprobs[i]),
                advantage,
                &algorithm.clip,
            );
            loss += weights[at] * token.loss;
            clipped += f64::from(u8::from(token.clipped));
            entries += 1.0;
        }
    }
    let metrics = grpo::step(&mut model, &batch, "batch", &algorithm, 0).unwrap();
    assert!(
        (metrics.loss - loss).abs() < 1e-5 * (1.0 + loss.abs()),
        "{} {loss}",
        metrics.loss
    );
    assert!(
        (metrics.clip_fraction - clipped / entries).abs() < 1e-9 && clipped > 10.0,
        "{}",
        metrics.clip_fraction
    );
    assert_eq!((metrics.groups, metrics.groups_zero_variance), (3, 1));
}

#[test]
fn a_warm_start_learns_what_repeats() {
    let row = |begin: u32| {
        let tokens: Vec<u32> = (0..40).map(|i| (begin + 3 * i) % 64).collect();
        let weights = vec![1.0; tokens.len()];
        TrainRow {
            tokens,
            weights,
            temperature: 1.0,
            ..Default::default()
        }
    };
    let rows: Vec<TrainRow> = (0..32).map(row).collect();
    let plan = Plan {
        tokens: 60_000,
        step_tokens: 500,
        warmup_steps: 10,
        ..Plan::default()
    };
    let report = finetune::train(&mut alone(), &rows, &plan, |_, _, _, _| ()).unwrap();
    assert!(report.first_loss > 3.5 && report.last_loss < 0.2, "{report:?}");
}
