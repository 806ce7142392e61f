//! Random clusters and runs: no run stays half placed, and none waits that would fit.

use proptest::prelude::*;

use super::world::{World, node};
use crate::admission::facts::NodeFacts;

/// GPUs of a node, or of one pod.
fn sizes() -> impl Strategy<Value = u32> {
    prop_oneof![Just(1u32), Just(2), Just(3), Just(4), Just(5), Just(8)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// When admission has settled, every run is whole or holds nothing. A run that is never admitted would not fit even
    /// alone.
    #[test]
    fn there_is_neither_a_half_placed_run_nor_a_deadlock(
        nodes in prop::collection::vec(sizes(), 1..6),
        runs in prop::collection::vec(((1u32..4, sizes()), (0u32..4, sizes())), 2..5),
    ) {
        let nodes: Vec<NodeFacts> = nodes.iter().enumerate().map(|(n, gpus)| node(&format!("node-{n}"), *gpus)).collect();
        let mut world = World::new(nodes.clone());
        for (n, (trainers, engines)) in runs.iter().enumerate() {
            world.add(&format!("run-{n}"), 100 - i64::try_from(n).unwrap(), *trainers, *engines);
        }
        let mut unfinished: Vec<usize> = (0..runs.len()).collect();
        // Runs end one after the other; after each end, the rest settles again.
        loop {
            world.settle();
            for n in &unfinished {
                let run = format!("run-{n}");
                prop_assert!(world.is_whole(&run) || world.bound(&run) == 0, "{run} is half placed");
            }
            let Some(whole) = unfinished.iter().copied().find(|n| world.is_whole(&format!("run-{n}"))) else { break };
            world.end(&format!("run-{whole}"));
            unfinished.retain(|n| *n != whole);
        }
        for n in unfinished {
            let mut sizes: Vec<u32> = std::iter::repeat_n(runs[n].0.1, runs[n].0.0 as usize)
                .chain(std::iter::repeat_n(runs[n].1.1, runs[n].1.0 as usize))
                .collect();
            sizes.sort_unstable_by(|a, b| b.cmp(a));
            let mut free: Vec<u32> = nodes.iter().map(|node| {
                u32::try_from(node.allocatable.get("nvidia.com/gpu").copied().unwrap_or(0) / 1000).unwrap()
            }).collect();
            prop_assert!(!fits(&sizes, &mut free), "run-{n} would fit alone and was never admitted");
        }
    }
}

/// Exact packing by exhaustive search.
fn fits(sizes: &[u32], free: &mut [u32]) -> bool {
    let Some((first, rest)) = sizes.split_first() else {
        return true;
    };
    for n in 0..free.len() {
        if free[n] >= *first {
            free[n] -= first;
            let fitted = fits(rest, free);
            free[n] += first;
            if fitted {
                return true;
            }
        }
    }
    false
}
