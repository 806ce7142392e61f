use super::*;
use crate::geometry::{AdapterGeometry, Geometry};
use crate::parallel_dims::ParallelDims;

fn geometry(layers: usize, hidden: u64, width: u64, heads: u64, tied: bool) -> Geometry {
    let attention = hidden * 128 * (2 * heads + 2 * 8);
    let ends = 151_936 * hidden * if tied { 1 } else { 2 };
    let mut units = vec![ends];
    units.extend(vec![attention + 3 * hidden * width; layers]);
    Geometry {
        units,
        adapter: None,
        vocabulary: 151_936,
        hidden,
        heads,
        groups: 8,
        head_dim: 128,
        norms_heads: true,
        positions: 16_384,
        mlps: vec![Mlp::Dense { width }; layers],
    }
}

fn facts(geometry: Geometry) -> Facts {
    Facts::of(geometry, ParallelDims::DATA_PARALLEL, 1)
}

fn named(name: &str) -> Gpu {
    Gpu::named(name).unwrap_or(Gpu {
        flops: 1.0,
        bandwidth: 1.0,
    })
}

fn h100() -> Gpu {
    named("NVIDIA H100 80GB HBM3")
}

/// A frozen model with an adapter of `values` values in each block.
fn beside(geometry: Geometry, values: u64) -> Geometry {
    let adapter = AdapterGeometry {
        units: [vec![0], vec![values; geometry.mlps.len()]].concat(),
        dropped: 0,
    };
    Geometry {
        adapter: Some(adapter),
        ..geometry
    }
}

/// Rows of 16,384 tokens with activations kept: `make bench-gpu`. Adapters have rank 32; the mixture is 12 layers of
/// Qwen3-30B-A3B.
#[test]
fn the_estimate_is_within_a_quarter_of_what_was_measured() {
    let (h100, h200) = (h100(), named("NVIDIA H200"));
    let small = || facts(geometry(28, 1024, 3072, 16, true));
    let same_bits = || {
        let mut facts = small();
        facts.deterministic = true;
        facts
    };
    let four = facts(beside(geometry(36, 2560, 9728, 32, true), 1_835_008));
    let eight = facts(beside(geometry(36, 4096, 12_288, 32, false), 2_424_832));
    let experts = Mlp::Experts {
        count: 128,
        per_token: 8,
        width: 768,
    };
    let mixture = facts(Geometry {
        groups: 4,
        mlps: vec![experts; 12],
        ..beside(geometry(12, 2048, 6144, 32, false), 557_056)
    });
    for (name, facts, gpu, seconds) in [
        ("0.6B", small(), h100, 0.359),
        ("0.6B", small(), h200, 0.351),
        ("0.6B, deterministic", same_bits(), h100, 0.734),
        ("0.6B, deterministic", same_bits(), h200, 0.701),
        ("4B beside an adapter", four, h200, 1.114),
        ("8B beside an adapter", eight, h200, 1.510),
        ("mixture beside an adapter", mixture, h200, 0.426),
    ] {
        let time = facts.step_time(&StepWork::row(16_384), Schedule::Kept, &gpu);
        let share = time.total() / seconds;
        assert!(
            (0.75..1.25).contains(&share),
            "{name}: {time:?}, {share} of what was measured"
        );
    }
}

#[test]
fn computing_again_and_slower_gpus_take_longer_and_frozen_weights_less() {
    let whole = facts(geometry(36, 2560, 9728, 32, true));
    let beside = facts(beside(geometry(36, 2560, 9728, 32, true), 900_000));
    let work = StepWork::row(8192);
    let seconds = |facts: &Facts, schedule, gpu: &Gpu| facts.step_time(&work, schedule, gpu).total();
    let kept = seconds(&whole, Schedule::Kept, &h100());
    assert!(seconds(&whole, Schedule::Streamed, &h100()) > 1.2 * kept);
    assert!(seconds(&beside, Schedule::Kept, &h100()) < 0.8 * kept);
    let slower = Gpu {
        flops: h100().flops / 2.0,
        bandwidth: h100().bandwidth / 2.0,
    };
    assert!((seconds(&whole, Schedule::Kept, &slower) / kept - 2.0).abs() < 1e-9);
}

/// Twice the tokens give more than twice the pairs.
#[test]
fn longer_rows_take_more_than_their_share() {
    let small = facts(geometry(28, 1024, 3072, 16, true));
    let seconds = |tokens| {
        let time = small.step_time(&StepWork::row(tokens), Schedule::Kept, &h100());
        time.total() - time.optimizer
    };
    assert!(seconds(32_768) > 2.5 * seconds(16_384));
}
