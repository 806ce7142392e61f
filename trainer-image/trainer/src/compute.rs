//! How and where a rank computes: its device, the precision of blocks, and the data offloaded to the pod's memory.
//!
//! Each rank has one GPU. On the CPU everything is in the pod's memory already, so nothing is offloaded.

use grpo_crds::grpo_run::{Offload, Trainer};
pub use grpo_model::weights::Precision;
use grpo_native::device;
use grpo_native::gpu_wait::wait_for;
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
    /// `local_rank`, which it begins to use.
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
                    offload: trainer.keeps_aside(),
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
        inputs.iter().map(|input| self.start_prefetch(input)).collect()
    }

    /// Begins to copy a tensor to the device, beside the computation. A tensor of the device is returned itself.
    pub(crate) fn start_prefetch(&self, tensor: &Tensor) -> Result<Tensor, TrainError> {
        Ok(match (tensor.device(), self.device) {
            (Device::Cpu, Device::Cuda(index)) => device::start_gpu_copy(tensor, index)?,
            _ => tensor.shallow_clone(),
        })
    }

    /// Makes the computation wait for the copies to the device that are under way.
    pub(crate) fn wait_for_copies(&self) -> Result<(), TrainError> {
        match self.device {
            Device::Cuda(index) if self.offload != Offload::default() => {
                device::wait_for_copies(index).map_err(TrainError::Start)
            }
            _ => Ok(()),
        }
    }

    /// Begins to copy a changed tensor of the device into its place in the pod's memory, beside the computation.
    /// Without such a place, `home` is the tensor itself.
    pub(crate) fn start_writing_back(&self, now: &Tensor, home: &mut Tensor) -> Result<(), TrainError> {
        if home.device() != now.device() {
            device::start_copy_into(now, home)?;
        }
        Ok(())
    }

    /// Waits until everything is home.
    pub(crate) fn finish_writing_back(&self) -> Result<(), TrainError> {
        match self.device {
            Device::Cuda(index) if self.offload.optimizer || self.offload.parameters => {
                wait_for(self.device, || device::finish_host_copies(index)).map_err(TrainError::Start)
            }
            _ => Ok(()),
        }
    }

    /// Moves state to its place between steps, [`Compute::of_parameters`] or [`Compute::of_moments`]. In the pod's
    /// memory it is pinned, so that copies run beside the computation.
    pub(crate) fn in_its_place(&self, tensor: &Tensor, place: Device) -> Tensor {
        match (place, self.device) {
            // A tensor that could not be pinned has the same values, and slower copies.
            (Device::Cpu, Device::Cuda(_)) => device::pinned(tensor).unwrap_or_else(|error| {
                tracing::warn!("state stays in memory that is not pinned: {error}");
                tensor.to_device(Device::Cpu)
            }),
            _ => tensor.to_device(place),
        }
    }
}
