//! Guesses the geometry of a model from its size: the published model nearest in size, with units scaled so that their
//! sum is the size.

use grpo_crds::sources::Lora;
use grpo_memory::{AdapterGeometry, Geometry, Mlp};

use super::size::Size;

const VOCABULARY: u64 = 151_936;
const POSITIONS: u64 = 40_960;
const HEAD_DIM: u64 = 128;

/// A published model of the Qwen families, which the trainer supports.
struct Published {
    layers: usize,
    hidden: u64,
    mlp: Mlp,
    heads: u64,
    groups: u64,
    /// The vocabulary head uses the embedding's weights.
    tied: bool,
}

const fn dense(layers: usize, hidden: u64, width: u64, heads: u64, tied: bool) -> Published {
    Published {
        layers,
        hidden,
        mlp: Mlp::Dense { width },
        heads,
        groups: 8,
        tied,
    }
}

const fn mixture(layers: usize, hidden: u64, width: u64, heads: u64) -> Published {
    let mlp = Mlp::Experts {
        count: 128,
        per_token: 8,
        width,
    };
    Published {
        layers,
        hidden,
        mlp,
        heads,
        groups: 4,
        tied: false,
    }
}

/// Qwen3 of 0.6, 1.7, 4, 8, 14 and 32 billion parameters, and Qwen2.5 of 72.
const DENSE: [Published; 7] = [
    dense(28, 1024, 3072, 16, true),
    dense(28, 2048, 6144, 16, true),
    dense(36, 2560, 9728, 32, true),
    dense(36, 4096, 12_288, 32, false),
    dense(40, 5120, 17_408, 40, false),
    dense(64, 5120, 25_600, 64, false),
    dense(80, 8192, 29_568, 64, false),
];

/// Qwen3-30B-A3B and Qwen3-235B-A22B.
const MIXTURES: [Published; 2] = [mixture(48, 2048, 768, 32), mixture(94, 4096, 1536, 64)];

impl Published {
    /// `[inputs, outputs]` of a block's linear layers that may have an adapter, by name.
    fn linears(&self) -> Vec<(&'static str, [u64; 2])> {
        let (h, queries, keys) = (self.hidden, self.heads * HEAD_DIM, self.groups * HEAD_DIM);
        let mut linears = vec![
            ("q_proj", [h, queries]),
            ("k_proj", [h, keys]),
            ("v_proj", [h, keys]),
            ("o_proj", [queries, h]),
        ];
        if let Mlp::Dense { width } = self.mlp {
            linears.extend([
                ("gate_proj", [h, width]),
                ("up_proj", [h, width]),
                ("down_proj", [width, h]),
            ]);
        }
        linears
    }

    fn ends(&self) -> u64 {
        let tables = if self.tied { 1 } else { 2 };
        tables * VOCABULARY * self.hidden + self.hidden
    }

    fn block(&self) -> u64 {
        let linears: u64 = self
            .linears()
            .iter()
            .map(|(_, [inputs, outputs])| inputs * outputs)
            .sum();
        let experts = match self.mlp {
            Mlp::Dense { .. } => 0,
            Mlp::Experts { count, width, .. } => count * (3 * width + 1) * self.hidden,
        };
        linears + experts + 2 * self.hidden + 2 * HEAD_DIM
    }

    fn parameters(&self) -> u64 {
        self.ends() + self.layers as u64 * self.block()
    }
}

/// The geometry of a model of this size, with its trained adapter.
pub fn guess(size: Size, lora: Option<&Lora>) -> Geometry {
    let known: &[Published] = if size.active < size.parameters {
        &MIXTURES
    } else {
        &DENSE
    };
    let off = |model: &&Published| (size.parameters / model.parameters() as f64).ln().abs();
    let nearest = known
        .iter()
        .min_by(|a, b| off(a).total_cmp(&off(b)))
        .unwrap_or(&DENSE[0]);
    let scale = size.parameters / nearest.parameters() as f64;
    let scaled = |values: u64| (values as f64 * scale) as u64;
    let mut units = vec![scaled(nearest.block()); nearest.layers + 1];
    units[0] = scaled(nearest.ends());
    Geometry {
        units,
        adapter: lora.map(|lora| adapter(nearest, lora)),
        vocabulary: VOCABULARY,
        hidden: nearest.hidden,
        heads: nearest.heads,
        groups: nearest.groups,
        head_dim: HEAD_DIM,
        norms_heads: true,
        positions: POSITIONS,
        mlps: vec![nearest.mlp; nearest.layers],
    }
}

/// The adapter of the named linear layers, or of all.
fn adapter(model: &Published, lora: &Lora) -> AdapterGeometry {
    let named = |name: &str| lora.target_modules.is_empty() || lora.target_modules.iter().any(|target| target == name);
    let targets: Vec<[u64; 2]> = model
        .linears()
        .into_iter()
        .filter_map(|(name, shape)| named(name).then_some(shape))
        .collect();
    let values = targets
        .iter()
        .map(|[inputs, outputs]| u64::from(lora.rank) * (inputs + outputs));
    let mut units = vec![values.sum(); model.layers + 1];
    units[0] = 0;
    AdapterGeometry {
        units,
        inputs: targets.iter().map(|[inputs, _]| inputs).sum(),
        outputs: targets.iter().map(|[_, outputs]| outputs).sum(),
        drops: lora.dropout > 0.0,
    }
}

#[cfg(test)]
mod tests;
