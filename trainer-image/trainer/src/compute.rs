//! How and where a rank computes: its device, the precision of blocks, and what stays in the pod's memory meanwhile.
//!
//! One GPU is one rank's. On the CPU device the pod's memory is where everything is already, so nothing is ever taken
//! aside there.

use grpo_crds::grpo_run::{Offload, Trainer};
pub use grpo_model::weights::export::Precision;
use grpo_native::device;
use tch::{Device, Kind, Tensor};

use crate::error::TrainError;

/// How a rank computes.
#[derive(Clone, Debug, PartialEq)]
pub struct Compute {
    pub device: Device,
    /// What blocks and the head's operands are in. Masters, moments and gradients are in fp32.
    pub precision: Precision,
    /// What stays in the pod's memory while it is not in use.
    pub offload: Offload,
    /// Whether a GPU computes the same bits every time. The CPU does so anyway.
    pub deterministic: bool,
}

impl Default for Compute {
    /// fp32 on the CPU.
    fn default() -> Self {
        Self {
            device: Device::Cpu,
            precision: Precision::F32,
            offload: Offload::default(),
            deterministic: false,
        }
    }
}

impl Compute {
    /// As a run asks for: without GPUs in fp32 on the CPU, with them in bf16 on the pod's GPU of this number.
    pub fn of(trainer: Option<&Trainer>, local_rank: u32) -> Result<Self, TrainError> {
        match trainer {
            Some(trainer) if trainer.gpus_per_node > 0 => {
                let gpus = trainer.gpus_per_node;
                device::use_gpu(local_rank as usize).map_err(|message| TrainError::Gpu {
                    gpus,
                    index: local_rank,
                    message,
                })?;
                Ok(Self {
                    device: Device::Cuda(local_rank as usize),
                    precision: Precision::Bf16,
                    offload: trainer.offload.clone(),
                    deterministic: trainer.deterministic,
                })
            }
            _ => Ok(Self::default()),
        }
    }

    pub(crate) fn kind(&self) -> Kind {
        match self.precision {
            Precision::F32 => Kind::Float,
            Precision::Bf16 => Kind::BFloat16,
        }
    }

    /// Where masters and frozen weights are while they are not in use.
    pub(crate) fn of_parameters(&self) -> Device {
        self.home(self.offload.parameters)
    }

    /// Where the optimizer's moments are between steps.
    pub(crate) fn of_moments(&self) -> Device {
        self.home(self.offload.optimizer)
    }

    /// What is in the pod's memory instead of the device's: nothing where they are the same.
    pub(crate) fn kept_aside(&self) -> Offload {
        match self.device {
            Device::Cpu => Offload::default(),
            _ => self.offload.clone(),
        }
    }

    fn home(&self, aside: bool) -> Device {
        if aside { Device::Cpu } else { self.device }
    }

    /// A block's input until the backward pass comes to it.
    pub(crate) fn put_aside(&self, input: Tensor) -> Result<Tensor, TrainError> {
        match self.offload.activations {
            true => Ok(device::host_copy(&input)?),
            false => Ok(input),
        }
    }

    /// The same on its way to where it is computed with, beside the computation.
    pub(crate) fn start_taking_back(&self, inputs: Vec<Tensor>) -> Result<Vec<Tensor>, TrainError> {
        let coming = |input: Tensor| match (input.device(), self.device) {
            (Device::Cpu, Device::Cuda(index)) => Ok(device::start_gpu_copy(&input, index)?),
            _ => Ok(input),
        };
        inputs.into_iter().map(coming).collect()
    }

    /// Orders the computation behind what is on its way.
    pub(crate) fn wait_for_copies(&self) -> Result<(), TrainError> {
        match self.device {
            Device::Cuda(index) if self.offload.activations => {
                device::wait_for_copies(index).map_err(TrainError::Start)
            }
            _ => Ok(()),
        }
    }
}
