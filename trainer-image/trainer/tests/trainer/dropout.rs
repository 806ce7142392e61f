//! An adapter's dropout depends only on the token, the layer and the step, not on the packing, the ranks or the
//! schedule.

use crate::common::{algorithm, alone, batch, flat, model, ranks};
use grpo_crds::algorithm::{Algorithm, OldLogprobs};
use grpo_memory::ParallelDims;
use grpo_model::lora::Lora;
use grpo_native::Group;
use grpo_records::trainer::StepMetrics;
use grpo_trainer::canary::canary;
use grpo_trainer::grpo;
use grpo_trainer::mesh::Mesh;
use grpo_trainer::sharded::Sharded;

const ALL: [&str; 7] = [
    "q_proj",
    "k_proj",
    "v_proj",
    "o_proj",
    "gate_proj",
    "up_proj",
    "down_proj",
];

/// Adapters with two nonzero matrices, so that their inputs affect the output.
fn adapted(model: Sharded, rate: f64) -> Sharded {
    let lora = Lora::new(4, 8.0, &ALL).unwrap().with_dropout(rate);
    let model = model.with_adapter(lora, 3).unwrap();
    for shard in &model.shards {
        shard.values.shallow_clone().copy_(&(&shard.values + 0.05));
    }
    model
}

/// Takes two steps; returns the adapter's weights and the metrics of each.
fn stepped(model: &mut Sharded, algorithm: &Algorithm) -> Vec<(Vec<f32>, StepMetrics)> {
    let step = |step| {
        let metrics = grpo::step(model, &batch(step), "batch", algorithm, 7).unwrap();
        (flat(&model.adapter_weights().unwrap()), metrics)
    };
    (1..=2).map(step).collect()
}

fn is_near(found: &[(Vec<f32>, StepMetrics)], wanted: &[(Vec<f32>, StepMetrics)], what: &str) {
    for ((found, _), (wanted, _)) in found.iter().zip(wanted) {
        let norm = |values: &mut dyn Iterator<Item = f32>| values.map(|x| f64::from(x * x)).sum::<f64>().sqrt();
        let apart = norm(&mut found.iter().zip(wanted).map(|(a, b)| a - b)) / norm(&mut wanted.iter().copied());
        assert!(apart < 1e-5, "{what}: {apart:e}");
    }
}

#[test]
fn however_rows_are_packed_divided_and_scheduled_the_same_is_dropped() {
    let algorithm = algorithm();
    let wanted = stepped(&mut adapted(alone(), 0.4), &algorithm);
    assert_eq!(stepped(&mut adapted(alone(), 0.4), &algorithm)[1].0, wanted[1].0);
    let torn = |model: &mut Sharded| model.micro_batch_tokens = 8;
    let streamed = |model: &mut Sharded| model.activation_bytes = 0;
    for (what, change) in [("torn apart", &torn as &dyn Fn(&mut Sharded)), ("streamed", &streamed)] {
        let mut model = adapted(alone(), 0.4);
        change(&mut model);
        is_near(&stepped(&mut model, &algorithm), &wanted, what);
    }
    let over = |sequence: u32| {
        let dims = ParallelDims { sequence, shard: None };
        let mesh = |group: Group| Mesh::new(group, dims).unwrap();
        ranks(2, |group| {
            let whole = model(Group::join(&grpo_native::Rendezvous::alone()).unwrap());
            let divided = Sharded::new(crate::common::config(), mesh(group), &whole.weights().unwrap()).unwrap();
            stepped(&mut adapted(divided, 0.4), &algorithm)
        })
    };
    for (what, sequence) in [("two ranks", 1), ("two ranks that share sequences", 2)] {
        for found in over(sequence) {
            is_near(&found, &wanted, what);
        }
    }
}

#[test]
fn a_step_drops_something_else_than_the_step_before_and_than_another_seed_s() {
    let gradient = |rate: f64, seed: u64, step: u32| {
        let mut model = adapted(alone(), rate);
        let mut batch = batch(1);
        batch.step = step;
        grpo::step(&mut model, &batch, "batch", &algorithm(), seed).unwrap();
        flat(&model.adapter_weights().unwrap())
    };
    assert_eq!(gradient(0.4, 7, 1), gradient(0.4, 7, 1));
    assert_ne!(gradient(0.4, 7, 1), gradient(0.4, 7, 2));
    assert_ne!(gradient(0.4, 7, 1), gradient(0.4, 8, 1));
    assert_ne!(gradient(0.4, 7, 1), gradient(0.0, 7, 1));
    assert_eq!(gradient(0.0, 7, 1), gradient(0.0, 8, 2));
}

/// Dropout must not change a ratio: its two passes drop the same values, at any time.
#[test]
fn within_a_step_ratios_are_of_the_weights_alone() {
    let algorithm = Algorithm {
        old_logprobs: OldLogprobs::Recompute,
        mini_batches: 2,
        learning_rate: 0.0,
        ..algorithm()
    };
    for (_, metrics) in stepped(&mut adapted(alone(), 0.5), &algorithm) {
        assert_eq!(metrics.updates, 2);
        assert!(metrics.ratio_deviation.abs() < 1e-5, "{metrics:?}");
    }
}

#[test]
fn a_canary_is_of_the_weights_alone_whatever_is_dropped_and_however_ranks_divide_it() {
    let mut model = adapted(alone(), 0.4);
    model.begin_step(7, 1);
    let of = |model: &Sharded| canary(model).unwrap().unwrap();
    let found = of(&model);
    assert_eq!(found.logprobs.len() + 1, found.tokens.len());
    model.begin_step(8, 2);
    assert_eq!(of(&model), found);
    assert_eq!(of(&adapted(alone(), 0.0)), found);
    assert_ne!(of(&alone()), found);
    for sequence in [1, 2] {
        let dims = ParallelDims { sequence, shard: None };
        let divided = ranks(2, |group| {
            let whole = crate::common::model(Group::join(&grpo_native::Rendezvous::alone()).unwrap());
            let mesh = Mesh::new(group, dims).unwrap();
            let divided = Sharded::new(crate::common::config(), mesh, &whole.weights().unwrap()).unwrap();
            canary(&adapted(divided, 0.4)).unwrap().unwrap()
        });
        for of_rank in divided {
            assert_eq!(of_rank.tokens, found.tokens);
            let apart = of_rank.logprobs.iter().zip(&found.logprobs).map(|(a, b)| (a - b).abs());
            assert!(apart.fold(0.0, f32::max) < 1e-5, "sequence {sequence}");
        }
    }
}
