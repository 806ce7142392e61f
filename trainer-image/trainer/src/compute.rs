//! How and where a rank computes: its device, the precision of blocks, and the data offloaded to the pod's memory.
//!
//! Each rank has one GPU. On the CPU everything is in the pod's memory already, so nothing is offloaded.

use grpo_crds::grpo_run::{Offload, Trainer};
pub use grpo_model::weights::export::Precision;
use grpo_native::device;
use tch::{Device, Kind, Tensor};

use crate::error::TrainError;

/// How a rank computes.
#[derive(Clone, Debug, PartialEq)]
pub struct Compute {
    pub device: Device,
    /// Precision of blocks and the head's operands. Masters, moments and gradients are in fp32.
    pub precision: Precision,
    /// Data that stay in the pod's memory while they are not in use.
    pub offload: Offload,
    /// Whether a GPU computes the same bits every time. The CPU always does.
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
    /// The run's setting: without GPUs in fp32 on the CPU, with GPUs in bf16 on the pod's GPU with the number
    /// `local_rank`.
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

    /// Place of masters and frozen weights while they are not in use.
    pub(crate) fn of_parameters(&self) -> Device {
        self.home(self.offload.parameters)
    }

    /// Place of the optimizer's moments between steps.
    pub(crate) fn of_moments(&self) -> Device {
        self.home(self.offload.optimizer)
    }

    /// Data in the pod's memory instead of the device's: none on the CPU, where both are the same.
    pub(crate) fn kept_aside(&self) -> Offload {
        match self.device {
            Device::Cpu => Offload::default(),
            _ => self.offload.clone(),
        }
    }

    fn home(&self, aside: bool) -> Device {
        if aside { Device::Cpu } else { self.device }
    }

    /// Keeps a block's input until its backward pass.
    pub(crate) fn put_aside(&self, input: Tensor) -> Result<Tensor, TrainError> {
        match self.offload.activations {
            true => Ok(device::host_copy(&input)?),
            false => Ok(input),
        }
    }

    /// Begins to copy kept inputs back to the device, beside the computation.
    pub(crate) fn start_taking_back(&self, inputs: Vec<Tensor>) -> Result<Vec<Tensor>, TrainError> {
        let coming = |input: Tensor| match (input.device(), self.device) {
            (Device::Cpu, Device::Cuda(index)) => Ok(device::start_gpu_copy(&input, index)?),
            _ => Ok(input),
        };
        inputs.into_iter().map(coming).collect()
    }

    /// Makes the computation wait for the copies under way.
    pub(crate) fn wait_for_copies(&self) -> Result<(), TrainError> {
        match self.device {
            Device::Cuda(index) if self.offload.activations => {
                device::wait_for_copies(index).map_err(TrainError::Start)
            }
            _ => Ok(()),
        }
    }
}
