//! Compares steps on a GPU with the same steps on the CPU: `make test-gpu`, on a machine with a GPU. `GRPO_TEST_DEVICE`
//! names the GPU, such as `cuda:0`.
//!
//! Requirements: in fp32 a GPU differs from the CPU by the order of its sums, in bf16 by bf16's rounding; offloading to
//! the pod's memory changes no bit; a step repeated on a GPU has the same bits.

use grpo_crds::grpo_run::Offload;
use grpo_model::Config;
use grpo_model::lora::Lora;
use grpo_native::{Group, Rendezvous, device};
use grpo_trainer::compute::{Compute, Precision};
use grpo_trainer::initial::initial_weights;
use grpo_trainer::loss_fn::LossOver;
use grpo_trainer::sharded::Sharded;
use tch::{Device, Tensor};

use crate::common::{config_json, family_json, flat, steps, tested_gpu};
use crate::precision::{Found, GRADIENTS, LOSS, apart, gradients};

const FAMILIES: [&str; 3] = ["qwen3", "qwen2", "qwen3_moe"];

/// Bound for different orders of sums.
const FP32: f64 = 1e-4;

fn gpu() -> usize {
    let index = tested_gpu().expect("GRPO_TEST_DEVICE names no GPU: give cuda:0");
    device::use_gpu(index).unwrap();
    index
}

fn on_gpu(precision: Precision) -> Compute {
    Compute {
        device: Device::Cuda(gpu()),
        precision,
        deterministic: true,
        ..Compute::default()
    }
}

/// Geometry of a family with a head size that flash attention supports.
fn config(family: &str) -> Config {
    let mut json = match family {
        "qwen3" => config_json(),
        family => family_json(family),
    };
    json["head_dim"] = 16.into();
    if family != "qwen3" {
        json["hidden_size"] = 48.into();
    }
    Config::parse(json.to_string().as_bytes(), "config.json").unwrap()
}

fn fresh(family: &str) -> Sharded {
    let config = config(family);
    let weights = initial_weights(&config, 5);
    Sharded::new(config, Group::join(&Rendezvous::alone()).unwrap(), &weights).unwrap()
}

/// Gradients and loss on the host, for comparison.
fn found(model: &Sharded) -> Found {
    let Found { gradients, loss } = gradients(model);
    let gradients = gradients.iter().map(|unit| unit.to_device(Device::Cpu)).collect();
    Found { gradients, loss }
}

fn near(what: &str, got: &Found, wanted: &Found, bounds: [f64; 2]) {
    for (unit, (got, wanted)) in got.gradients.iter().zip(&wanted.gradients).enumerate() {
        // An embedding's adapter is empty.
        if got.numel() > 0 {
            let apart = apart(got, wanted);
            assert!(apart < bounds[0], "{what}, unit {unit}: {apart:e} apart");
        }
    }
    let apart = (got.loss - wanted.loss).abs() / wanted.loss.abs();
    assert!(apart < bounds[1], "{what}, loss: {apart:e} apart");
    println!("{what}: loss {apart:e} apart");
}

#[test]
fn the_geometries_of_these_tests_are_the_families() {
    for family in FAMILIES {
        assert_eq!(config(family).head_dim(), 16, "{family}");
    }
}

#[test]
#[ignore = "needs a GPU: make test-gpu"]
fn loss_and_gradients_of_every_family_are_near_the_cpus() {
    for family in FAMILIES {
        let wanted = found(&fresh(family));
        for (precision, bounds) in [(Precision::F32, [FP32, 1e-5]), (Precision::Bf16, [GRADIENTS, LOSS])] {
            // In bf16 a mixture's router may choose other experts if two are close.
            if family == "qwen3_moe" && precision == Precision::Bf16 {
                continue;
            }
            for deterministic in [true, false] {
                let compute = Compute {
                    deterministic,
                    ..on_gpu(precision)
                };
                let what = format!("{family}, {precision:?}, deterministic: {deterministic}");
                let mut model = fresh(family).compute_as(compute);
                near(&format!("{what}, kept"), &found(&model), &wanted, bounds);
                model.activation_bytes = 0;
                near(&format!("{what}, streamed"), &found(&model), &wanted, bounds);
            }
        }
    }
}

#[test]
#[ignore = "needs a GPU: make test-gpu"]
fn a_head_that_takes_all_tokens_at_once_has_the_gradients_of_pieces() {
    let wanted = found(&fresh("qwen3"));
    for deterministic in [true, false] {
        for loss_over in [LossOver::Tokens, LossOver::Batches] {
            let compute = Compute {
                deterministic,
                ..on_gpu(Precision::Bf16)
            };
            let mut model = fresh("qwen3").compute_as(compute);
            model.loss_over = loss_over;
            // Seven tokens, unless the memory to spare gives the head more.
            model.head_logits = 7 * 64;
            let what = format!("deterministic: {deterministic}, {loss_over:?}");
            near(&format!("{what}, kept"), &found(&model), &wanted, [GRADIENTS, LOSS]);
            model.activation_bytes = 0;
            near(&format!("{what}, streamed"), &found(&model), &wanted, [GRADIENTS, LOSS]);
        }
    }
}

#[test]
#[ignore = "needs a GPU: make test-gpu"]
fn an_adapters_gradients_are_near_the_cpus() {
    let lora = Lora::new(4, 8.0, &["q_proj", "v_proj", "down_proj"]).unwrap();
    let wanted = found(&fresh("qwen3").with_adapter(lora.clone(), 3).unwrap());
    for (precision, bounds) in [(Precision::F32, [FP32, 1e-5]), (Precision::Bf16, [GRADIENTS, LOSS])] {
        let model = fresh("qwen3").compute_as(on_gpu(precision));
        let model = model.with_adapter(lora.clone(), 3).unwrap();
        near(&format!("adapter, {precision:?}"), &found(&model), &wanted, bounds);
    }
}

/// The values of all units after some steps.
fn after_steps(compute: &Compute, streamed: bool) -> Tensor {
    let mut model = fresh("qwen3").compute_as(compute.clone());
    if streamed {
        model.activation_bytes = 0;
    }
    steps(&mut model, 1..=3);
    Tensor::from_slice(&flat(&model.weights().unwrap()))
}

#[test]
#[ignore = "needs a GPU: make test-gpu"]
fn steps_on_a_gpu_are_near_the_cpus_and_repeat_their_bits() {
    let wanted = after_steps(&Compute::default(), false);
    let begun = Tensor::from_slice(&flat(&fresh("qwen3").weights().unwrap()));
    for (precision, bound) in [(Precision::F32, FP32), (Precision::Bf16, 0.3)] {
        let compute = on_gpu(precision);
        let got = after_steps(&compute, false);
        // Compares the change over three steps: Adam's first steps follow signs, and small gradients change their sign
        // in bf16.
        let apart = apart(&(&got - &begun), &(&wanted - &begun));
        println!("three steps, {precision:?}: {apart:e} apart");
        assert!(apart < bound, "{precision:?}: {apart:e} apart");
        assert!(
            got.equal(&after_steps(&compute, false)),
            "{precision:?}: other bits the second time"
        );
    }
}

#[test]
#[ignore = "needs a GPU: make test-gpu"]
fn what_stays_in_the_pods_memory_changes_no_bit_of_a_step() {
    let compute = on_gpu(Precision::Bf16);
    let wanted = after_steps(&compute, true);
    let kept = after_steps(&compute, false);
    let none = Offload::default();
    let aside = [
        Offload {
            optimizer: true,
            ..none.clone()
        },
        Offload {
            parameters: true,
            ..none.clone()
        },
        Offload {
            activations: true,
            ..none
        },
        Offload {
            optimizer: true,
            parameters: true,
            activations: true,
        },
    ];
    for offload in aside {
        let compute = Compute {
            offload: offload.clone(),
            ..compute.clone()
        };
        assert!(after_steps(&compute, true).equal(&wanted), "{offload:?}, streamed");
        assert!(after_steps(&compute, false).equal(&kept), "{offload:?}, kept");
    }
}
