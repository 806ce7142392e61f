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

fn h100() -> Gpu {
    Gpu::named("NVIDIA H100 80GB HBM3").unwrap_or(Gpu {
        flops: 1.0,
        bandwidth: 1.0,
    })
}

/// A row of 16,384 tokens on an H100: `make bench-gpu`.
#[test]
fn the_estimate_is_within_a_quarter_of_what_was_measured() {
    let small = facts(geometry(28, 1024, 3072, 16, true));
    let measured = [(small.clone(), Schedule::Kept, 0.359)];
    for (facts, schedule, seconds) in measured {
        let time = facts.step_time(&StepWork::row(16_384), schedule, &h100());
        let share = time.total() / seconds;
        assert!((0.75..1.25).contains(&share), "{time:?}: {} s of {seconds} s", time.total());
    }
}

#[test]
fn computing_again_and_slower_gpus_take_longer_and_frozen_weights_less() {
    let whole = facts(geometry(36, 2560, 9728, 32, true));
    let adapter = AdapterGeometry {
        units: [vec![0], vec![900_000; 36]].concat(),
        dropped: 0,
    };
    let beside = facts(Geometry {
        adapter: Some(adapter),
        ..geometry(36, 2560, 9728, 32, true)
    });
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

/// Twice the tokens are more than twice the pairs.
#[test]
fn longer_rows_take_more_than_their_share() {
    let small = facts(geometry(28, 1024, 3072, 16, true));
    let seconds = |tokens| {
        let time = small.step_time(&StepWork::row(tokens), Schedule::Kept, &h100());
        time.total() - time.optimizer
    };
    assert!(seconds(32_768) > 2.5 * seconds(16_384));
}
