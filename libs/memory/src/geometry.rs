//! The sizes of a model that decide how much memory it takes.

/// The sizes of a model that decide how much memory it takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Values of the model's sharding units: embedding with final norm and head, then each block.
    pub units: Vec<u64>,
    /// What is trained beside the frozen model.
    pub adapter: Option<AdapterGeometry>,
    pub vocabulary: u64,
    pub hidden: u64,
    pub heads: u64,
    /// Groups of keys and values.
    pub groups: u64,
    pub head_dim: u64,
    /// Whether each head of queries and keys is normed.
    pub norms_heads: bool,
    /// Positions the model may be given.
    pub positions: u64,
    /// What each block has behind its attention.
    pub mlps: Vec<Mlp>,
}

/// What a block has behind its attention.
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
    /// Values that dropout keeps of a token in a block: the inputs of all targets; 0 without dropout.
    pub dropped: u64,
}
