//! Tensor values as bytes, in the types of weights.

use grpo_model::weights::Precision;
use half::{bf16, f16};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    F32,
    F16,
    BF16,
}

impl Kind {
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "F32" => Some(Self::F32),
            "F16" => Some(Self::F16),
            "BF16" => Some(Self::BF16),
            _ => None,
        }
    }

    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::BF16 => 2,
        }
    }
}

pub fn decoded(kind: Kind, bytes: &[u8]) -> Vec<f32> {
    match kind {
        Kind::F32 => numbers(bytes, f32::from_le_bytes),
        Kind::F16 => numbers(bytes, |bytes| f16::from_le_bytes(bytes).to_f32()),
        Kind::BF16 => numbers(bytes, |bytes| bf16::from_le_bytes(bytes).to_f32()),
    }
}

fn numbers<const N: usize>(bytes: &[u8], number: impl Fn([u8; N]) -> f32) -> Vec<f32> {
    let (numbers, _) = bytes.as_chunks::<N>();
    numbers.iter().map(|bytes| number(*bytes)).collect()
}

pub fn encoded(kind: Kind, values: &[f32]) -> Vec<u8> {
    match kind {
        Kind::F32 => Precision::F32.encoded(values),
        Kind::F16 => values
            .iter()
            .flat_map(|value| f16::from_f32(*value).to_le_bytes())
            .collect(),
        Kind::BF16 => Precision::Bf16.encoded(values),
    }
}
