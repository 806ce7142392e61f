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

    /// The same angles with each tensor replaced by `place` of it.
    pub fn moved<E>(&self, place: impl Fn(&Tensor) -> Result<Tensor, E>) -> Result<Self, E> {
        Ok(Self {
            cos: place(&self.cos)?,
            sin: place(&self.sin)?,
        })
    }

    /// The angles at `positions: [n]` int32. Dimension i is paired with i + d/2; both have the same angle.
    pub fn at(&self, positions: &Tensor) -> Angles {
        let half = self.cos.size()[1] / 2;
        let at = |table: &Tensor| table.narrow(1, 0, half).index_select(0, positions);
        Angles {
            cos: at(&self.cos),
            sin: at(&self.sin),
            of: self.cos.shallow_clone(),
        }
    }
}

/// Cosines and sines of tokens, `[n, d / 2]` each.
pub struct Angles {
    pub cos: Tensor,
    pub sin: Tensor,
    /// The table that they were taken from. Held, so that no later table gets its address.
    of: Tensor,
}

impl Angles {
    /// Whether they were taken from this table.
    pub fn are_of(&self, rope: &Rope) -> bool {
        self.of.data_ptr() == rope.cos.data_ptr() && self.of.kind() == rope.cos.kind()
    }
}
