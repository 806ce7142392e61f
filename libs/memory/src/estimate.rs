//! An estimate, part by part, for people too.

/// Bytes at the fullest moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Estimate {
    /// This moment.
    pub moment: &'static str,
    /// Parameters and moments of this rank's part, a frozen model's part, and the table of rotations.
    pub state: u64,
    /// Whole units on every rank.
    pub gathered: u64,
    /// Whole, on the way, and this rank's parts.
    pub gradients: u64,
    /// What autograd keeps, and what backward makes beside it.
    pub activations: u64,
    /// Inputs of all blocks, from which they are computed again.
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
