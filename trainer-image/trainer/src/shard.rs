//! One rank's part of a unit, and its sources.

use std::ops::Range;

use grpo_model::ModelError;
use grpo_model::weights::{Unit, Weights};
use grpo_native::Group;
use tch::Tensor;

use crate::compute::Compute;
use crate::error::TrainError;

/// One rank's part of one unit.
pub struct Shard {
    pub unit: Unit,
    /// `[padded / ranks]`, with the ranks that share the state.
    pub values: Tensor,
    pub first_moment: Tensor,
    pub second_moment: Tensor,
}

impl Shard {
    pub(crate) fn new(
        unit: Unit,
        group: &Group,
        read: &impl Fn(&str, Range<usize>) -> Result<Vec<f32>, ModelError>,
    ) -> Result<Self, TrainError> {
        let values = part(&unit, group, read)?;
        let (first_moment, second_moment) = (values.zeros_like(), values.zeros_like());
        Ok(Self {
            unit,
            values,
            first_moment,
            second_moment,
        })
    }
}

/// This rank's part of a unit, `[padded / world]`; `read` returns ranges of a tensor.
pub(crate) fn part(
    unit: &Unit,
    group: &Group,
    read: &impl Fn(&str, Range<usize>) -> Result<Vec<f32>, ModelError>,
) -> Result<Tensor, TrainError> {
    let part = padded(unit, group.world() as usize) / group.world() as usize;
    let (begin, end) = (part * group.rank() as usize, part * (group.rank() as usize + 1));
    let mut values = Vec::with_capacity(part);
    let mut offset = 0;
    for (name, shape) in &unit.tensors {
        let numel: usize = shape.iter().product();
        let inside = |at: usize| at.clamp(offset, offset + numel) - offset;
        let range = inside(begin)..inside(end);
        if !range.is_empty() {
            values.extend(read(name, range)?);
        }
        offset += numel;
    }
    values.resize(part, 0.0);
    Ok(Tensor::from_slice(&values))
}

/// This rank's parts of frozen units, on the device and in the kind in which they are held, without moments. At most
/// one unit's part exists in fp32 at a time.
pub(crate) fn frozen_parts(
    units: Vec<Unit>,
    group: &Group,
    compute: &Compute,
    read: &impl Fn(&str, Range<usize>) -> Result<Vec<f32>, ModelError>,
) -> Result<Vec<(Unit, Tensor)>, TrainError> {
    let held = |unit: Unit| {
        let values = part(&unit, group, read)?.to_kind(compute.kind());
        Ok((unit, compute.in_its_place(&values, compute.of_parameters())))
    };
    units.into_iter().map(held).collect()
}

/// Reads ranges of weights that are in memory; `path` is for messages.
pub(crate) fn part_of(
    weights: &Weights,
    path: &'static str,
) -> impl Fn(&str, Range<usize>) -> Result<Vec<f32>, ModelError> {
    move |name, range| {
        let missing = || ModelError::MissingTensor {
            path: path.to_owned(),
            name: name.to_owned(),
        };
        Ok(weights.get(name).ok_or_else(missing)?.values[range].to_vec())
    }
}

/// Values of a unit after padding to a multiple of the world.
pub fn padded(unit: &Unit, world: usize) -> usize {
    unit.numel().div_ceil(world) * world
}
