//! A memory estimate by part, also as text.

/// Bytes at the moment of peak memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Estimate {
    /// The name of this moment.
    pub moment: &'static str,
    /// Parameters and optimizer moments of this rank's shard, a frozen model's shard, and the table of rotations.
    pub state: u64,
    /// Whole units on every rank, and offloaded state on its way.
    pub gathered: u64,
    /// Whole gradients, gradients in transit, and this rank's shards.
    pub gradients: u64,
    /// Tensors that autograd keeps, temporaries of the backward pass, and the tokens' rotary angles.
    pub activations: u64,
    /// Inputs of all blocks, for recomputation.
    pub inputs: u64,
    /// A chunk's logits and the trained tokens' hidden states.
    pub head: u64,
}

impl Estimate {
    pub fn total(&self) -> u64 {
        self.parts().iter().map(|(_, bytes)| bytes).sum()
    }

    pub fn parts(&self) -> [(&'static str, u64); 6] {
        [
            ("parameters, moments and tables", self.state),
            ("gathered units", self.gathered),
            ("gradients", self.gradients),
            ("activations", self.activations),
            ("inputs of the blocks", self.inputs),
            ("vocabulary head", self.head),
        ]
    }
}

impl std::fmt::Display for Estimate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let parts = self.parts().map(|(name, bytes)| format!("{name} {}", in_words(bytes)));
        write!(
            f,
            "{} = {} ({})",
            parts.join(" + "),
            in_words(self.total()),
            self.moment
        )
    }
}

/// `3.25 GiB`.
pub fn in_words(bytes: u64) -> String {
    let mib = bytes as f64 / f64::from(1u32 << 20);
    match mib < 1024.0 {
        true => format!("{mib:.1} MiB"),
        false => format!("{:.2} GiB", mib / 1024.0),
    }
}
