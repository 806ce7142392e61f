//! The crate's operations against libtorch's single ones, and collectives over processes.
//!
//! libtorch's generator is shared by the process, and tests draw from it in parallel: no test may depend on the drawn
//! numbers. Ranks of [`exchange`] are separate processes, each running one test of this binary.

#![allow(clippy::unwrap_used)]

mod attention;
mod dropout;
mod exchange;
mod gpu;
mod linear;
mod port;
mod routing;

use grpo_native::device;
use tch::Device;

/// The tested device: the CPU, or the GPU that `GRPO_TEST_DEVICE` names, such as `cuda:0` (`make test-gpu`).
fn tested() -> Device {
    let Ok(named) = std::env::var("GRPO_TEST_DEVICE") else {
        return Device::Cpu;
    };
    let index = named.strip_prefix("cuda:").and_then(|index| index.parse().ok());
    let index = index.expect("GRPO_TEST_DEVICE is cuda: and a number");
    device::use_gpu(index).unwrap();
    Device::Cuda(index)
}
