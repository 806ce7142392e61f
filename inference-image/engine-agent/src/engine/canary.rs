//! Compares an engine's logprobs of a version's canary with the trainer's.
//!
//! vLLM's reload answered 200 and computed with neither the old nor the new weights. Its checksums can be right then:
//! it computes with packed copies. Logprobs of such an engine are several nats off; those of a right one differ by the
//! rounding of bf16 or fp8 only. Weights of the step before pass: a step moves logprobs less than rounding does. An
//! adapter that is ignored passes for the same reason. One on another base model does not.

use std::time::Duration;

/// Most of the mean distance, in nats. Quantized engines must pass: the alert on logprobs watches small distances.
pub const MOST: f32 = 1.0;

/// For the logprobs of an adapter. Sampling does not pause for it: in an engine with a queue its requests wait, and the
/// run waits for the version.
pub const ADAPTER_DEADLINE: Duration = Duration::from_secs(30);

/// The mean distance of the engine's logprobs from the trainer's; an error says why they prove a wrong load.
pub fn compare(expected: &[f32], found: &[f32]) -> Result<f32, String> {
    if found.len() != expected.len() {
        return Err(format!(
            "it returned {} logprobs of {} tokens of a prompt",
            found.len(),
            expected.len()
        ));
    }
    let apart = expected.iter().zip(found).map(|(a, b)| (a - b).abs());
    let mean = apart.sum::<f32>() / found.len().max(1) as f32;
    // A NaN is not within.
    match mean <= MOST {
        true => Ok(mean),
        false => Err(format!(
            "its logprobs of {} tokens differ from the trainer's by {mean:.2} on average, at most {MOST} is rounding",
            found.len()
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXPECTED: [f32; 2] = [-1.0, -9.0];

    #[test]
    fn rounding_passes_and_other_weights_do_not() {
        assert!(compare(&EXPECTED, &[-1.1, -8.8]).unwrap() < 0.2);
        for wrong in [
            &[-4.0, -6.0][..],
            &[f32::NAN, -9.0],
            &[-1.0],
            &[f32::NEG_INFINITY, -9.0],
        ] {
            assert!(compare(&EXPECTED, wrong).is_err(), "{wrong:?}");
        }
    }
}
