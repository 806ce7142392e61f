//! The rotary embedding's angles as tensors; layouts select those of their tokens.

use tch::{Kind, Tensor};

use crate::config::Config;
use crate::rope::frequencies;

/// Cosines and sines of the rotary embedding, `[positions, head_dim]` each.
pub struct Rope {
    cos: Tensor,
    sin: Tensor,
}

impl Rope {
    pub fn new(config: &Config, positions: i64, kind: Kind) -> Self {
        let (frequencies, scale) = frequencies(config);
        let frequencies = Tensor::from_slice(&frequencies).unsqueeze(0);
        let angles = Tensor::arange(positions, (Kind::Double, tch::Device::Cpu)).unsqueeze(1) * frequencies;
        let angles = Tensor::cat(&[&angles, &angles], 1);
        Self {
            cos: (angles.cos() * scale).to_kind(kind),
            sin: (angles.sin() * scale).to_kind(kind),
        }
    }

    pub fn to_device(&self, device: tch::Device) -> Self {
        Self {
            cos: self.cos.to_device(device),
            sin: self.sin.to_device(device),
        }
    }

    /// Cosines and sines `[n, d / 2]` at `positions: [n]` int64. Dimension i is paired with i + d/2; both have the same
    /// angle.
    pub fn at(&self, positions: &Tensor) -> (Tensor, Tensor) {
        let half = self.cos.size()[1] / 2;
        let at = |table: &Tensor| table.narrow(1, 0, half).index_select(0, positions);
        (at(&self.cos), at(&self.sin))
    }
}
