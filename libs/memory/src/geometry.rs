//! The sizes of a model that determine its memory.

/// The sizes of a model that determine its memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Values of the model's sharding units: embedding with final norm and head, then each block.
    pub units: Vec<u64>,
    /// The adapter that is trained beside the frozen model.
    pub adapter: Option<AdapterGeometry>,
    pub vocabulary: u64,
    pub hidden: u64,
    pub heads: u64,
    /// Groups of keys and values.
    pub groups: u64,
    pub head_dim: u64,
    /// Whether each head of queries and keys is normed.
    pub norms_heads: bool,
    /// Maximum number of positions.
    pub positions: u64,
    /// The MLP of each block.
    pub mlps: Vec<Mlp>,
}

/// The MLP of a block, after its attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mlp {
    Dense { width: u64 },
    Experts { count: u64, per_token: u64, width: u64 },
}

/// An adapter beside every block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdapterGeometry {
    /// Values of its units, one for each unit of the model.
    pub units: Vec<u64>,
    /// Inputs and outputs of a block's linear layers that have an adapter, summed over them.
    pub inputs: u64,
    pub outputs: u64,
    /// Whether values are dropped from the adapters' inputs.
    pub drops: bool,
}

impl AdapterGeometry {
    /// Values per token and block that dropout keeps.
    pub(crate) fn dropped(&self) -> u64 {
        if self.drops { self.inputs } else { 0 }
    }
}
