//! Communication of units: whole units to every rank before their computation, gradients to the ranks that keep their
//! parts.
//!
//! If blocks are computed in bf16, data are rounded before they are sent. They arrive while something else is computed;
//! so do the parts of a rank that stay in the pod's memory.

use std::collections::VecDeque;

use grpo_model::weights::Unit;
use grpo_native::gpu_wait::wait_for;
use grpo_native::{Group, PendingCollective};
use tch::{Device, Kind, Tensor};

use crate::error::TrainError;
use crate::sharded::Sharded;

/// The part of a unit that is communicated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Parts {
    /// The model's tensors, then the adapter's.
    All,
    /// An adapter's, or without one the model's: a frozen model has many times its size.
    Trained,
}

impl Sharded {
    /// The unit's whole tensors on every rank, in the compute precision: the model's, then the adapter's.
    pub(crate) fn gather(&self, index: usize) -> Result<Vec<Tensor>, TrainError> {
        self.start_gather(index)?.wait()
    }

    /// Starts [`Sharded::gather`], while something else is computed.
    pub(crate) fn start_gather(&self, index: usize) -> Result<Gathering<'_>, TrainError> {
        self.start_gather_of(self.start_prefetch(index, Parts::All)?, self.kind())
    }

    /// Gathers on the host in the masters' kind: trained tensors are not rounded.
    pub(crate) fn gather_masters(&self, index: usize, parts: Parts) -> Result<Vec<Tensor>, TrainError> {
        let tensors = self
            .start_gather_of(self.start_prefetch(index, parts)?, Kind::Float)?
            .wait()?;
        let on_host = || tensors.iter().map(|tensor| tensor.to_device(Device::Cpu)).collect();
        Ok(wait_for(self.compute.device, on_host))
    }

    /// Takes part in another rank's [`Sharded::gather_masters`].
    pub(crate) fn send_masters(&self, index: usize, parts: Parts) -> Result<(), TrainError> {
        let whole = self
            .start_gather_of(self.start_prefetch(index, parts)?, Kind::Float)?
            .wait()?;
        // On a GPU the collective may still run. A rank that went ahead of the publishing one would wait for it at the
        // end for longer than a collective may take; a value of the last tensor arrives on the host after all of them.
        let last = whole.last().filter(|tensor| tensor.numel() > 0);
        let value = last.map(|tensor| tensor.reshape([-1]).narrow(0, 0, 1));
        wait_for(self.compute.device, || value.map(|value| value.to_device(Device::Cpu)));
        Ok(())
    }

    /// Units in this order, of which the next `ahead` are gathered while one is used.
    pub(crate) fn units_in(
        &self,
        order: impl Iterator<Item = usize>,
        ahead: usize,
    ) -> Result<Units<'_, impl Iterator<Item = usize>>, TrainError> {
        let mut units = Units {
            model: self,
            order,
            ahead: ahead.max(1),
            prefetched: None,
            coming: VecDeque::new(),
        };
        units.prefetch()?;
        units.fill()?;
        Ok(units)
    }

    /// Starts to copy this rank's parts of a unit to the device, if they stay in the pod's memory.
    fn start_prefetch(&self, index: usize, parts: Parts) -> Result<Prefetched<'_>, TrainError> {
        let shard = &self.shards[index];
        let frozen = self.frozen.get(index).filter(|_| parts == Parts::All);
        let frozen = frozen.map(|(unit, values)| (unit, values));
        let mut parts = Vec::new();
        for (unit, values) in frozen.into_iter().chain([(&shard.unit, &shard.values)]) {
            // An embedding's adapter is empty.
            if !unit.tensors.is_empty() {
                let part = match &self.replicated {
                    None => Part::Own(self.compute.start_prefetch(values)?),
                    Some(whole) => Part::Whole(&whole[index]),
                };
                parts.push((unit, part));
            }
        }
        Ok(Prefetched { parts })
    }

    fn start_gather_of<'a>(&'a self, prefetched: Prefetched<'a>, kind: Kind) -> Result<Gathering<'a>, TrainError> {
        if self.compute.kept_aside().parameters {
            self.compute.wait_for_copies()?;
        }
        let start = |(unit, part): (&'a Unit, Part<'a>)| {
            let coming = match part {
                Part::Own(values) => Whole::Coming(self.shard_group().start_all_gather(&sent_form(&values, kind))?),
                Part::Whole(whole) => Whole::There(whole),
            };
            Ok((unit, coming))
        };
        let parts = prefetched
            .parts
            .into_iter()
            .map(start)
            .collect::<Result<_, TrainError>>()?;
        Ok(Gathering { parts, kind })
    }

    /// The base model's whole unit on every rank.
    pub(crate) fn gather_base(&self, index: usize) -> Result<Vec<Tensor>, TrainError> {
        match self.frozen.get(index).or(self.base.get(index)) {
            Some((unit, values)) => {
                let part = sent_form(&values.to_device(self.compute.device), self.kind());
                Ok(split(unit, &self.shard_group().all_gather(&part)?))
            }
            None => Err(TrainError::Start(
                "no base model is held, but its logprobs are asked for".to_owned(),
            )),
        }
    }
}

/// A rank's part in the sent form: fp32 rounded to `kind`, other kinds unchanged.
fn sent_form(values: &Tensor, kind: Kind) -> Tensor {
    match values.kind() {
        Kind::Float => values.to_kind(kind),
        _ => values.shallow_clone(),
    }
}

/// Units on their way to this rank. Of one more, its own parts are on their way from the pod's memory.
pub(crate) struct Units<'a, I> {
    model: &'a Sharded,
    order: I,
    ahead: usize,
    prefetched: Option<Prefetched<'a>>,
    coming: VecDeque<Gathering<'a>>,
}

impl<I: Iterator<Item = usize>> Units<'_, I> {
    /// The next unit's whole tensors; `None` after the last.
    pub(crate) fn next(&mut self) -> Result<Option<Vec<Tensor>>, TrainError> {
        let Some(first) = self.coming.pop_front() else {
            return Ok(None);
        };
        let tensors = first.wait()?;
        self.fill()?;
        Ok(Some(tensors))
    }

    fn fill(&mut self) -> Result<(), TrainError> {
        while self.coming.len() < self.ahead {
            let Some(prefetched) = self.prefetched.take() else {
                return Ok(());
            };
            self.coming
                .push_back(self.model.start_gather_of(prefetched, self.model.kind())?);
            self.prefetch()?;
        }
        Ok(())
    }

    fn prefetch(&mut self) -> Result<(), TrainError> {
        let next = self
            .order
            .next()
            .map(|index| self.model.start_prefetch(index, Parts::All));
        self.prefetched = next.transpose()?;
        Ok(())
    }
}

/// A unit's parts on their way to the device.
struct Prefetched<'a> {
    parts: Vec<(&'a Unit, Part<'a>)>,
}

enum Part<'a> {
    /// This rank's.
    Own(Tensor),
    /// The whole unit, if nothing may be sent.
    Whole(&'a Tensor),
}

/// A unit on its way to this rank.
pub(crate) struct Gathering<'a> {
    parts: Vec<(&'a Unit, Whole<'a>)>,
    /// Parts in bf16 are converted to this kind on arrival.
    kind: Kind,
}

enum Whole<'a> {
    Coming(PendingCollective<'a>),
    There(&'a Tensor),
}

impl Gathering<'_> {
    pub(crate) fn wait(self) -> Result<Vec<Tensor>, TrainError> {
        let mut tensors = Vec::new();
        for (unit, part) in self.parts {
            let whole = match part {
                Whole::Coming(pending) => pending.wait()?,
                Whole::There(whole) => whole.shallow_clone(),
            };
            let whole = match whole.kind() {
                Kind::BFloat16 => whole.to_kind(self.kind),
                _ => whole,
            };
            tensors.extend(split(unit, &whole));
        }
        Ok(tensors)
    }
}

/// A gradient on its way to the ranks that have its parts.
pub(crate) struct Reducing<'a> {
    scattered: PendingCollective<'a>,
    replicate: Option<&'a Group>,
}

impl<'a> Reducing<'a> {
    /// A part that needs no communication.
    pub(crate) fn nothing(group: &'a Group, part: Tensor) -> Self {
        Self {
            scattered: PendingCollective::ready(group, part),
            replicate: None,
        }
    }

    /// Sums over the ranks that share the state, then over its replicas.
    pub(crate) fn wait(self) -> Result<Tensor, TrainError> {
        let mut part = self.scattered.wait()?;
        if let Some(replicate) = self.replicate {
            replicate.all_reduce_sum(&mut part)?;
        }
        Ok(part)
    }
}

impl Sharded {
    /// Sums a unit's gradient, flat and padded, over the ranks and gives each rank its part.
    pub(crate) fn start_reduce(&self, whole: &Tensor) -> Result<Reducing<'_>, TrainError> {
        let scattered = match &self.replicated {
            None => self.shard_group().start_reduce_scatter_sum(whole)?,
            Some(_) => {
                let group = self.shard_group();
                let part = whole.numel() as i64 / i64::from(group.world());
                PendingCollective::ready(group, whole.narrow(0, part * i64::from(group.rank()), part))
            }
        };
        let replicate = self.groups.replicate();
        Ok(Reducing { scattered, replicate })
    }
}

fn split(unit: &Unit, whole: &Tensor) -> Vec<Tensor> {
    let mut begin = 0;
    unit.tensors
        .iter()
        .map(|(_, shape)| {
            let shape: Vec<i64> = shape.iter().map(|n| *n as i64).collect();
            let numel: i64 = shape.iter().product();
            let tensor = whole.narrow(0, begin, numel).view(shape.as_slice());
            begin += numel;
            tensor
        })
        .collect()
}
