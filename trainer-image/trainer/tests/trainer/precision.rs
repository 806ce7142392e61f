//! Compares steps in bf16 over fp32 masters with steps in fp32, and both with the operations of devices other than the
//! CPU.

use crate::common::{alone, config, flat, model, ranks, steps, tested, worlds};
use grpo_model::lora::Lora;
use grpo_model::weights::{self, Source};
use grpo_native::{Group, Rendezvous};
use grpo_trainer::compute::Precision;
use grpo_trainer::loss_fn::LossGrad;
use grpo_trainer::micro_batch::MicroBatch;
use grpo_trainer::optimizer::AdamW;
use grpo_trainer::packing::{Cost, pack};
use grpo_trainer::sharded::Sharded;
use grpo_trainer::train_row::TrainRow;
use tch::{Kind, Tensor};

/// bf16 keeps 8 bits, and a path through this model rounds a few dozen times; its sums are short, so little of that is
/// averaged away. For a unit's gradient, by norm.
pub const GRADIENTS: f64 = 4e-2;
pub const LOSS: f64 = 2e-3;

fn rows() -> Vec<TrainRow> {
    let token = |row: u32, i: u32| (3 + row * 11 + i * i * (1 + row % 3)) % 40;
    (0..5)
        .map(|row| {
            let n = 14 + 5 * row;
            TrainRow {
                tokens: (0..n).map(|i| if i < 6 { i } else { token(row, i) }).collect(),
                weights: (0..n).map(|i| f32::from(u8::from(i >= 6)) / n as f32).collect(),
                temperature: 0.8,
                ..Default::default()
            }
        })
        .collect()
}

fn batches(model: &Sharded, rows: &[TrainRow]) -> Vec<MicroBatch> {
    let packing = pack(rows, 60, model.group.world() as usize, &Cost::of(&model.config));
    let mine = &packing.ranks[model.group.rank() as usize];
    mine.iter().map(|pack| model.micro_batch(pack, rows).unwrap()).collect()
}

/// This rank's gradients of every unit, and its loss.
pub struct Found {
    pub gradients: Vec<Tensor>,
    pub loss: f64,
}

/// Gradients of weighted logprobs.
pub fn gradients(model: &Sharded) -> Found {
    let rows = rows();
    let batches = batches(model, &rows);
    let loss = &mut |batch: &MicroBatch, logprobs: &[f64], _: &[f64]| {
        let weights: Vec<f64> = batch
            .trained
            .iter()
            .map(|(row, at)| f64::from(rows[*row].weights[*at]))
            .collect();
        LossGrad::weighted(weights, logprobs)
    };
    let (gradients, loss) = model.gradients(&batches, loss).unwrap();
    Found { gradients, loss }
}

pub fn apart(a: &Tensor, b: &Tensor) -> f64 {
    let (a, b) = (a.to_kind(Kind::Double), b.to_kind(Kind::Double));
    (a - &b).norm().double_value(&[]) / b.norm().double_value(&[])
}

fn near(got: &Found, wanted: &Found, gradients: f64) {
    let units = got.gradients.iter().zip(&wanted.gradients);
    // An embedding's adapter is empty.
    for (unit, (got, wanted)) in units.enumerate().filter(|(_, (got, _))| got.numel() > 0) {
        assert_eq!(got.kind(), Kind::Float);
        let apart = apart(got, wanted);
        assert!(apart < gradients, "unit {unit}: {apart:e} apart");
    }
    let apart = (got.loss - wanted.loss).abs() / wanted.loss.abs();
    assert!(apart < LOSS, "loss: {apart:e} apart");
}

#[test]
fn loss_and_gradients_in_bf16_are_near_those_in_fp32_by_either_schedule() {
    let mut model = alone();
    let wanted = gradients(&model);
    model = model.compute_in(Precision::Bf16);
    let kept = gradients(&model);
    near(&kept, &wanted, GRADIENTS);
    // Part of the difference is the weights' own rounding, which no precision of the computation undoes.
    let mut weights = model.weights().unwrap();
    for array in weights.values_mut() {
        let rounded = Tensor::from_slice(&array.values)
            .to_kind(Kind::BFloat16)
            .to_kind(Kind::Float);
        array.values = Vec::<f32>::try_from(rounded).unwrap();
    }
    let rounded = Sharded::new(config(), Group::join(&Rendezvous::alone()).unwrap(), &weights).unwrap();
    let rounded = rounded.compute_as(tested());
    near(&kept, &gradients(&rounded), GRADIENTS);
    assert!(
        apart(&kept.gradients[1], &wanted.gradients[1]) > 1e-4,
        "nothing was rounded"
    );
    model.activation_bytes = 0;
    let streamed = gradients(&model);
    // Blocks have equal bits; the embedding's two parts are added in another order.
    let mut blocks = streamed.gradients.iter().zip(&kept.gradients).skip(1);
    assert!(blocks.all(|(a, b)| a.equal(b)) && streamed.loss == kept.loss);
    assert!(apart(&streamed.gradients[0], &kept.gradients[0]) < 1e-6);
}

#[test]
fn a_mixtures_gradients_in_bf16_are_near_those_in_fp32() {
    // They are near only if no token is between two experts, as here.
    let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../libs/model/tests/golden/moe");
    let config = grpo_model::Config::read(&dir).unwrap();
    let source = Source::open(&dir, &config).unwrap();
    let read = || Sharded::read(config.clone(), Group::join(&Rendezvous::alone()).unwrap(), &source).unwrap();
    let (wanted, got) = (gradients(&read()), gradients(&read().compute_in(Precision::Bf16)));
    near(&got, &wanted, GRADIENTS);
}

#[test]
fn two_ranks_gather_in_bf16_and_sum_gradients_in_fp32() {
    if worlds([2]).is_empty() {
        return;
    }
    let whole = gradients(&alone().compute_in(Precision::Bf16));
    let parts = ranks(2, |group| {
        let model = model(group).compute_in(Precision::Bf16);
        let Found { gradients, loss } = gradients(&model);
        let loss = model.sum(&[loss]).unwrap()[0];
        let parts: Vec<Vec<f32>> = gradients
            .iter()
            .map(|part| Vec::<f32>::try_from(part).unwrap())
            .collect();
        (parts, loss)
    });
    let units = whole.gradients.iter().enumerate().map(|(unit, whole)| {
        let both: Vec<f32> = parts.iter().flat_map(|(parts, _)| parts[unit].clone()).collect();
        Tensor::from_slice(&both).narrow(0, 0, whole.numel() as i64)
    });
    // Other packs, so another order of rounding within a block.
    let both = Found {
        gradients: units.collect(),
        loss: parts[0].1,
    };
    near(&both, &whole, GRADIENTS);
}

#[test]
fn masters_keep_updates_that_bf16_weights_would_lose() {
    let mut model = alone().compute_in(Precision::Bf16);
    let before = model.weights().unwrap();
    let adam = AdamW {
        betas: [0.9, 0.95],
        epsilon: 1e-8,
        weight_decay: 0.0,
        clip: 0.0,
    };
    // A step changes a weight by the rate, and bf16's numbers at 0.1 are 5e-4 apart: one step is lost, forty are not.
    let rate = 2e-5;
    let bf16 = |values: &[f32]| Tensor::from_slice(values).to_kind(Kind::BFloat16).to_kind(Kind::Float);
    let layer = "model.layers.0.mlp.gate_proj.weight";
    let begun = bf16(&before[layer].values);
    let moved = |values: &Tensor| {
        values
            .ne_tensor(&begun)
            .to_kind(Kind::Float)
            .mean(Kind::Float)
            .double_value(&[])
    };
    // The weights if each step were added to bf16 values.
    let mut lost = begun.copy();
    let mut last = Tensor::from_slice(&before[layer].values);
    for _ in 0..40 {
        let found = gradients(&model);
        model.update(&found.gradients, rate, &adam).unwrap();
        let now = Tensor::from_slice(&model.weights().unwrap()[layer].values);
        lost = (&lost + (&now - &last)).to_kind(Kind::BFloat16).to_kind(Kind::Float);
        last = now;
    }
    let masters = bf16(&model.weights().unwrap()[layer].values);
    let (by_masters, by_weights) = (moved(&masters), moved(&lost));
    assert!(by_masters > 0.6 && by_weights < 0.3, "{by_masters} {by_weights}");
}

#[test]
fn an_adapter_is_trained_beside_a_base_in_bf16() {
    let lora = Lora::new(4, 8.0, &["q_proj", "v_proj", "down_proj"]).unwrap();
    let adapted = |precision| {
        let model = alone().compute_in(precision).with_adapter(lora.clone(), 3).unwrap();
        assert_eq!(model.computes().precision, precision);
        model
    };
    let exact = gradients(&adapted(Precision::F32));
    let mut model = adapted(Precision::Bf16);
    let got = gradients(&model);
    near(&got, &exact, GRADIENTS);
    let before: Vec<Tensor> = model.adapter(1).unwrap().1.iter().map(Tensor::copy).collect();
    steps(&mut model, 1..=2);
    let after = model.adapter(1).unwrap().1;
    assert!(before.iter().zip(&after).any(|(a, b)| !a.equal(b)) && after.iter().all(|x| x.kind() == Kind::Float));
}

#[test]
fn what_is_published_are_the_masters() {
    let model = alone().compute_in(Precision::Bf16);
    assert_eq!(flat(&model.weights().unwrap()), flat(&alone().weights().unwrap()));
    assert_eq!(
        weights::checksum(&model.weights().unwrap()),
        weights::checksum(&alone().weights().unwrap())
    );
}

#[test]
fn steps_by_operations_alone_are_those_by_kernels() {
    let mut wanted = alone();
    steps(&mut wanted, 1..=2);
    let mut got = alone();
    grpo_native::generic(|| steps(&mut got, 1..=2));
    let flat = |model: &Sharded| Tensor::from_slice(&flat(&model.weights().unwrap()));
    let distance = apart(&flat(&got), &flat(&wanted));
    assert!(distance < 1e-5, "{distance:e}");
    // And in bf16.
    let model = alone().compute_in(Precision::Bf16);
    let exact = gradients(&alone());
    near(&grpo_native::generic(|| gradients(&model)), &exact, GRADIENTS);
}
