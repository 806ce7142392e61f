//! The first values of a model and of an adapter.

use grpo_model::lora::Lora;
use grpo_model::weights::{self, Array, Weights};
use grpo_model::{Config, adapter};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// Random weights: normal with the config's range (default 0.02), norms at one, biases at zero. Each tensor's generator
/// is keyed by its name, so the values do not depend on the order of initialisation.
pub fn initial_weights(config: &Config, seed: u64) -> Weights {
    let range = config.initializer_range.unwrap_or(0.02) as f32;
    let mut weights = Weights::new();
    for (name, shape) in weights::units(config).into_iter().flat_map(|unit| unit.tensors) {
        let numel: usize = shape.iter().product();
        let mut rng = generator(&name, seed);
        // Box-Muller; open at zero so that the logarithm is finite.
        let mut normal = || {
            let (a, b): (f32, f32) = (1.0 - rng.random::<f32>(), rng.random());
            (-2.0 * a.ln()).sqrt() * (std::f32::consts::TAU * b).cos()
        };
        let values = match shape.len() {
            1 if name.ends_with(".bias") => vec![0.0; numel],
            1 => vec![1.0; numel],
            _ => (0..numel).map(|_| normal() * range).collect(),
        };
        weights.insert(name, Array { shape, values });
    }
    weights
}

/// An adapter's first values as in PEFT: A uniform within the root of 1 / inputs, B zero.
pub fn initial_adapter(config: &Config, lora: &Lora, seed: u64) -> Weights {
    let mut weights = Weights::new();
    for (name, shape) in adapter::units(config, lora).into_iter().flat_map(|unit| unit.tensors) {
        let numel: usize = shape.iter().product();
        let mut rng = generator(&name, seed);
        let bound = (1.0 / shape[1] as f32).sqrt();
        let values = match name.contains("lora_B") {
            true => vec![0.0; numel],
            false => (0..numel).map(|_| rng.random_range(-bound..bound)).collect(),
        };
        weights.insert(name, Array { shape, values });
    }
    weights
}

/// A tensor's own generator.
fn generator(name: &str, seed: u64) -> StdRng {
    let key = name.bytes().fold(seed ^ 0xcbf2_9ce4_8422_2325, |h, b| {
        (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3)
    });
    StdRng::seed_from_u64(key)
}
