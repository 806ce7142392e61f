//! Compares supervised steps with plain autograd, and over ranks.

use crate::common::graph::Graph;
use crate::common::{algorithm, alone, batch, flat, model, ranks, worlds};
use grpo_crds::algorithm::{Aggregation, Algorithm};
use grpo_records::Supervised;
use grpo_records::batch::Batch;
use grpo_trainer::supervised;
use tch::{Kind, Tensor};

/// The rows of `batch(step)` as conversations, the last two held out.
fn conversations(step: u32) -> Batch {
    let mut batch = batch(step);
    for row in &mut batch.rows {
        row.logprobs.fill(0.0);
        row.temperature = 1.0;
    }
    let held_out = batch.rows.split_off(7);
    batch.supervised = Some(Supervised { steps: 9, held_out });
    batch
}

/// The mean negative logprob of the trained tokens, over tokens or over rows.
fn expected(graph: &Graph, batch: &Batch, by: Aggregation) -> Tensor {
    let learnt: usize = batch.rows.iter().map(|row| row.sampled()).sum();
    let mut loss = Tensor::from(0.0f32);
    for row in &batch.rows {
        let mask: Vec<f32> = row.mask[1..].iter().map(|one| f32::from(*one)).collect();
        let of_row = -(graph.scores(&row.tokens, 1.0).0 * Tensor::from_slice(&mask)).sum(Kind::Float);
        loss += match by {
            Aggregation::TokenMean => of_row / learnt as f64,
            _ => of_row / (row.sampled() * batch.rows.len()) as f64,
        };
    }
    loss
}

#[test]
fn loss_and_gradient_are_those_of_plain_autograd() {
    for aggregation in [Aggregation::TokenMean, Aggregation::SequenceMean] {
        let batch = conversations(1);
        let graph = Graph::new(&alone().weights().unwrap());
        let loss = expected(&graph, &batch, aggregation);
        loss.backward();
        let norm = graph
            .gradients()
            .iter()
            .flatten()
            .map(|value| f64::from(*value).powi(2))
            .sum::<f64>()
            .sqrt();
        let algorithm = Algorithm {
            aggregation,
            ..algorithm()
        };
        let metrics = supervised::step(&mut alone(), &batch, "batch", &algorithm, 0).unwrap();
        let close = |a: f64, b: f64| (a - b).abs() < 1e-5 * b.abs();
        assert!(close(metrics.loss, loss.double_value(&[])), "{} {loss:?}", metrics.loss);
        assert!(close(metrics.gradient_norm, norm), "{} {norm}", metrics.gradient_norm);
        assert_eq!(metrics.updates, 1);
        let learnt: usize = batch.rows.iter().map(|row| row.sampled()).sum();
        assert_eq!(metrics.trained_tokens, learnt as u64);
    }
}

#[test]
fn the_loss_on_held_out_rows_is_that_of_the_weights_after_the_step() {
    let (mut trained, batch) = (alone(), conversations(1));
    // Makes it measure held-out rows in parts.
    trained.micro_batch_tokens = 8;
    let metrics = supervised::step(&mut trained, &batch, "batch", &algorithm(), 0).unwrap();
    let held_out = Batch {
        rows: batch.supervised.clone().unwrap().held_out,
        supervised: None,
        ..batch.clone()
    };
    let graph = Graph::new(&trained.weights().unwrap());
    let loss = expected(&graph, &held_out, algorithm().aggregation).double_value(&[]);
    let found = metrics.held_out_loss.unwrap();
    assert!((found - loss).abs() < 1e-5 * loss, "{found} {loss}");

    let mut learnt_alone = alone();
    learnt_alone.micro_batch_tokens = 8;
    let without = Batch {
        supervised: Some(Supervised {
            steps: 9,
            held_out: Vec::new(),
        }),
        ..batch
    };
    let metrics = supervised::step(&mut learnt_alone, &without, "batch", &algorithm(), 0).unwrap();
    assert_eq!(metrics.held_out_loss, None);
    let same = flat(&learnt_alone.weights().unwrap()) == flat(&trained.weights().unwrap());
    assert!(same, "held out rows changed what was learnt");
}

#[test]
fn two_ranks_learn_what_one_does() {
    if worlds([2]).is_empty() {
        return;
    }
    let steps = |model: &mut _| {
        let steps =
            (1..=3).map(|step| supervised::step(model, &conversations(step), "batch", &algorithm(), 0).unwrap());
        let losses: Vec<(f64, f64)> = steps.map(|step| (step.loss, step.held_out_loss.unwrap())).collect();
        losses
    };
    let mut single = alone();
    let expected = steps(&mut single);
    let weights = flat(&single.weights().unwrap());
    for (losses, found) in ranks(2, |group| {
        let mut model = model(group);
        let losses = steps(&mut model);
        (losses, flat(&model.weights().unwrap()))
    }) {
        for ((a, b), (c, d)) in losses.iter().zip(&expected) {
            assert!((a - c).abs() < 1e-5 && (b - d).abs() < 1e-5, "{losses:?} {expected:?}");
        }
        let apart = found
            .iter()
            .zip(&weights)
            .map(|(a, b)| (a - b).abs())
            .fold(0.0, f32::max);
        assert!(apart < 1e-4, "{apart}");
    }
}

#[test]
fn rows_are_learnt_in_the_end() {
    let mut model = alone();
    let algorithm = Algorithm {
        learning_rate: 1e-2,
        ..algorithm()
    };
    let mut losses = Vec::new();
    for _ in 0..60 {
        losses.push(
            supervised::step(&mut model, &conversations(1), "batch", &algorithm, 0)
                .unwrap()
                .loss,
        );
    }
    assert!(losses[0] > 3.5 && losses[59] < 0.5, "{losses:?}");
}

#[test]
fn a_row_that_the_model_cannot_read_is_refused_and_changes_nothing() {
    let mut model = alone();
    let before = flat(&model.weights().unwrap());
    let mut batch = conversations(1);
    batch.supervised.as_mut().unwrap().held_out[0].tokens[0] = 64;
    let error = supervised::step(&mut model, &batch, "batch", &algorithm(), 0).unwrap_err();
    assert!(error.to_string().contains("outside the vocabulary"), "{error}");
    assert_eq!(flat(&model.weights().unwrap()), before);
}
