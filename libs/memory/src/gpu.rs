//! Peak performance of GPUs, by name.

/// Peaks from a GPU's data sheet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gpu {
    /// Dense bf16 operations per second.
    pub flops: f64,
    /// Memory bandwidth, bytes per second.
    pub bandwidth: f64,
}

const fn gpu(flops: f64, bandwidth: f64) -> Gpu {
    Gpu { flops, bandwidth }
}

/// Keyed by words of a GPU's name, from NVIDIA's data sheets of the H100, H200, A100, L40S and Blackwell (those of
/// Hopper and Blackwell give twice as many operations, with sparsity). The first line whose words all occur applies.
const GPUS: [(&[&str], Gpu); 9] = [
    (&["H100", "NVL"], gpu(835e12, 3.9e12)),
    (&["H100", "PCIe"], gpu(756e12, 2.0e12)),
    (&["H100"], gpu(989e12, 3.35e12)),
    (&["H200", "NVL"], gpu(835e12, 4.8e12)),
    (&["H200"], gpu(989e12, 4.8e12)),
    (&["A100", "40GB"], gpu(312e12, 1.555e12)),
    (&["A100"], gpu(312e12, 1.935e12)),
    (&["L40S"], gpu(362e12, 0.864e12)),
    (&["B200"], gpu(2250e12, 8.0e12)),
];

impl Gpu {
    /// Finds a GPU by its driver's name for it, or by a node's label `nvidia.com/gpu.product`. `None` for a GPU that is
    /// not in the table, and for a partition of a GPU (MIG).
    pub fn named(name: &str) -> Option<Self> {
        let words: Vec<&str> = name.split([' ', '-']).collect();
        let has = |wanted: &&str| words.contains(wanted);
        let (_, gpu) = GPUS.iter().find(|(wanted, _)| wanted.iter().all(has))?;
        (!words.contains(&"MIG")).then_some(*gpu)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peaks_are_of_a_known_gpu_that_is_whole() {
        for (name, flops) in [
            ("NVIDIA H100 80GB HBM3", Some(989e12)),
            ("NVIDIA-H100-80GB-HBM3", Some(989e12)),
            ("NVIDIA H100 PCIe", Some(756e12)),
            ("NVIDIA H100 NVL", Some(835e12)),
            ("NVIDIA H200", Some(989e12)),
            ("NVIDIA A100-SXM4-80GB", Some(312e12)),
            ("NVIDIA A100 80GB PCIe", Some(312e12)),
            ("NVIDIA B200", Some(2250e12)),
            ("NVIDIA L40S", Some(362e12)),
            ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None),
            ("NVIDIA L40", None),
            ("Tesla V100-SXM2-16GB", None),
            ("", None),
        ] {
            assert_eq!(Gpu::named(name).map(|gpu| gpu.flops), flops, "{name}");
        }
        assert!(Gpu::named("NVIDIA H200").is_some_and(|gpu| gpu.bandwidth > 4e12));
    }
}
