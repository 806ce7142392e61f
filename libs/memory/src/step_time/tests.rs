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

/// A frozen model with an adapter of rank 32 beside linear layers of these inputs and outputs in each block.
fn beside(geometry: Geometry, inputs: u64, outputs: u64) -> Geometry {
    let adapter = AdapterGeometry {
        units: [vec![0], vec![32 * (inputs + outputs); geometry.mlps.len()]].concat(),
        inputs,
        outputs,
        drops: false,
    };
    Geometry {
        adapter: Some(adapter),
        ..geometry
    }
}

/// Eight samples of 1,024 tokens, all trained, of a prompt of 8,192.
fn samples() -> StepWork {
    let (prompt, own) = (8192.0, 1024.0);
    StepWork {
        tokens: prompt + 8.0 * own,
        pairs: prompt * (prompt + 1.0) / 2.0 + 8.0 * (own * (own + 1.0) / 2.0 + own * prompt),
        trained: 8.0 * own,
    }
}

/// Steps of 16,384 tokens: `make bench-gpu`. Adapters have rank 32; the mixture is 12 layers of Qwen3-30B-A3B.
#[test]
fn the_estimate_is_within_a_quarter_of_what_was_measured() {
    let (h100, h200) = (h100(), named("NVIDIA H200"));
    let small = facts(geometry(28, 1024, 3072, 16, true));
    let mut same_bits = small.clone();
    same_bits.deterministic = true;
    let four = facts(beside(geometry(36, 2560, 9728, 32, true), 26_624, 30_720));
    let eight = facts(beside(geometry(36, 4096, 12_288, 32, false), 36_864, 38_912));
    let experts = Mlp::Experts {
        count: 128,
        per_token: 8,
        width: 768,
    };
    let mixture = facts(Geometry {
        groups: 4,
        mlps: vec![experts; 12],
        ..beside(geometry(12, 2048, 6144, 32, false), 10_240, 7168)
    });
    let (kept, streamed, row) = (Schedule::Kept, Schedule::Streamed, StepWork::row(16_384));
    for (name, facts, gpu, work, schedule, attended, seconds) in [
        ("0.6B", &small, h100, row, kept, 0, 0.359),
        ("0.6B", &small, h200, row, kept, 0, 0.346),
        ("0.6B, samples", &small, h200, samples(), kept, 0, 0.307),
        ("0.6B, attention kept", &small, h200, row, streamed, 28, 0.377),
        (
            "0.6B, samples, attention kept",
            &small,
            h200,
            samples(),
            streamed,
            28,
            0.342,
        ),
        ("0.6B, inputs kept", &small, h200, row, streamed, 0, 0.434),
        (
            "0.6B, samples, inputs kept",
            &small,
            h200,
            samples(),
            streamed,
            0,
            0.388,
        ),
        ("0.6B, deterministic", &same_bits, h100, row, kept, 0, 0.734),
        ("0.6B, deterministic", &same_bits, h200, row, kept, 0, 0.697),
        ("4B beside an adapter", &four, h200, row, kept, 0, 1.099),
        ("4B beside an adapter, samples", &four, h200, samples(), kept, 0, 1.012),
        ("8B beside an adapter", &eight, h200, row, kept, 0, 1.495),
        ("8B beside an adapter, samples", &eight, h200, samples(), kept, 0, 1.392),
        ("mixture beside an adapter", &mixture, h200, row, kept, 0, 0.349),
        (
            "mixture beside an adapter, samples",
            &mixture,
            h200,
            samples(),
            kept,
            0,
            0.308,
        ),
    ] {
        let time = facts.step_time(&work, schedule, attended, &gpu);
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
    let beside = facts(beside(geometry(36, 2560, 9728, 32, true), 13_000, 15_000));
    let work = StepWork::row(8192);
    let seconds = |facts: &Facts, schedule, gpu: &Gpu| facts.step_time(&work, schedule, 0, gpu).total();
    let kept = seconds(&whole, Schedule::Kept, &h100());
    let twice = seconds(&whole, Schedule::Streamed, &h100());
    assert!(twice > 1.2 * kept);
    let attended = |layers| whole.step_time(&work, Schedule::Streamed, layers, &h100()).total();
    let all = whole.step_time(&work, Schedule::Streamed, 0, &h100()).attention;
    let of_all = whole.step_time(&work, Schedule::Streamed, 36, &h100()).attention;
    assert!(attended(36) < attended(18) && attended(18) < twice && attended(36) > kept);
    assert!((all - of_all) > 0.9 * (twice - attended(36)));
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
        let time = small.step_time(&StepWork::row(tokens), Schedule::Kept, 0, &h100());
        time.total() - time.optimizer
    };
    assert!(seconds(32_768) > 2.5 * seconds(16_384));
}
