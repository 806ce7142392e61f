use super::*;
use crate::geometry::AdapterGeometry;

const VALUES: [u64; 5] = [64_064, 30_880, 30_880, 30_880, 30_880];

fn geometry() -> Geometry {
    Geometry {
        units: VALUES.to_vec(),
        adapter: None,
        vocabulary: 1000,
        hidden: 64,
        heads: 4,
        groups: 2,
        head_dim: 16,
        norms_heads: true,
        positions: 512,
        mlps: vec![Mlp::Dense { width: 96 }; 4],
    }
}

fn facts(dims: ParallelDims, world: u32) -> Facts {
    Facts {
        head_logits: 10_000,
        ..Facts::of(geometry(), dims, world)
    }
}

fn adapter() -> Facts {
    let adapter = AdapterGeometry {
        units: vec![0, 2048, 2048, 2048, 2048],
        inputs: 128,
        outputs: 128,
        drops: false,
    };
    let geometry = Geometry {
        adapter: Some(adapter),
        ..geometry()
    };
    Facts::of(geometry, ParallelDims::DATA_PARALLEL, 1)
}

fn load(tokens: u64) -> Load {
    Load {
        tokens: vec![tokens; 2],
        trained: tokens / 2,
    }
}

fn offload(optimizer: bool, parameters: bool, activations: bool) -> Offload {
    Offload {
        optimizer,
        parameters,
        activations,
    }
}

#[test]
fn more_ranks_hold_less_each_and_copies_of_the_state_hold_more() {
    let total = |dims, world| facts(dims, world).estimate(&load(100), Schedule::Streamed).state;
    let node = |shard| ParallelDims {
        sequence: 1,
        shard: Some(shard),
    };
    assert!(total(ParallelDims::DATA_PARALLEL, 4) < total(ParallelDims::DATA_PARALLEL, 2));
    assert_eq!(total(node(2), 4), total(ParallelDims::DATA_PARALLEL, 2));
}

#[test]
fn keeping_grows_faster_with_tokens_than_streaming() {
    let facts = facts(ParallelDims::DATA_PARALLEL, 2);
    let total = |tokens, schedule| facts.estimate(&Load::one(tokens), schedule).total();
    let grown = |schedule| total(9000, schedule) - total(1000, schedule);
    assert!(grown(Schedule::Kept) > 2 * grown(Schedule::Streamed));
}

#[test]
fn what_keeping_takes_is_the_largest_micro_batch_beside_whole_units_and_gradients() {
    let kept = |tokens: &[u64], world| {
        let load = Load {
            tokens: tokens.to_vec(),
            trained: 10,
        };
        facts(ParallelDims::DATA_PARALLEL, world).step_bytes(&load, Schedule::Kept)
    };
    // Per token: the values that autograd keeps in four layers, and the temporaries of the last layer's backward pass.
    let (one, two) = (kept(&[2000], 2), kept(&[3000], 2));
    let facts = facts(ParallelDims::DATA_PARALLEL, 2);
    // And its angles, which are freed with its activations.
    let angles = 16;
    let token = (0..4).map(|layer| facts.saved(layer)).sum::<u64>() + facts.transient(3) + angles;
    assert_eq!(two - one, 1000 * MASTER * token);
    assert_eq!(kept(&[3000, 3000, 10], 2), kept(&[3000, 10], 2));
    // Units and gradients are whole for any number of ranks, but a single rank computes with its own values.
    let whole: u64 = facts.trained.iter().map(|values| MASTER * values).sum();
    assert_eq!((kept(&[3000], 4), kept(&[3000], 2) - kept(&[3000], 1)), (two, whole));
}

#[test]
fn a_parameter_has_its_master_and_two_moments_beside_the_gradient_that_comes_and_goes() {
    let rotations = MASTER * 2 * 512 * 16;
    let state = |facts: &Facts| facts.row(1).state - rotations;
    let mut alone = facts(ParallelDims::DATA_PARALLEL, 1);
    let values: u64 = VALUES.iter().sum();
    assert_eq!(state(&alone), 12 * values);
    alone.compute = BF16;
    assert_eq!(
        state(&alone),
        12 * values,
        "a bf16 copy is of one gathered unit, not of all"
    );
    alone.holds_base = true;
    assert_eq!(state(&alone), 16 * values);
}

#[test]
fn what_is_offloaded_is_not_counted() {
    let rotations = MASTER * 2 * 512 * 16;
    let values: u64 = VALUES.iter().sum();
    let of = |offload: Offload| Facts {
        offload,
        compute: BF16,
        ..facts(ParallelDims::DATA_PARALLEL, 1)
    };
    let state = |offload| of(offload).row(1).state - rotations;
    assert_eq!(state(offload(true, false, false)), 4 * values);
    assert_eq!(state(offload(false, true, false)), 8 * values);
    assert_eq!(state(offload(true, true, false)), 0);
    // The blocks' inputs that a block reads and writes.
    let inputs = |offload| {
        let at = of(offload).streamed(&load(1000));
        at.iter().map(|at| at.inputs).max()
    };
    let stack = BF16 * 64 * 2000;
    assert_eq!(inputs(offload(false, false, false)), Some(5 * stack));
    assert_eq!(inputs(offload(false, false, true)), Some(2 * stack));
}

/// A unit that comes and one that is rounded; in the optimizer's step, one that comes, one that changes and one that
/// returns.
#[test]
fn offloaded_state_takes_memory_on_its_way() {
    let of = |offload: Offload| Facts {
        offload,
        compute: BF16,
        ..facts(ParallelDims::DATA_PARALLEL, 1)
    };
    let [here, aside] = [false, true].map(|aside| {
        let moments = of(offload(false, aside, false)).streamed(&load(1000)).into_iter();
        let mut in_block = moments.filter(|at| at.moment == "in the last block");
        in_block.next().map_or(0, |at| at.gathered)
    });
    // A single rank computes with a copy in bf16 in either case.
    assert_eq!(aside, here + 2 * MASTER * VALUES[0]);
    let step = |optimizer, parameters| {
        let at = of(offload(optimizer, parameters, true)).optimizing();
        at.map(|at| at.gathered)
    };
    let units = VALUES[0] + 2 * VALUES[1];
    assert_eq!(step(false, false), None);
    assert_eq!(step(true, false), Some(8 * units));
    assert_eq!(step(true, true), Some(12 * units));
}

#[test]
fn attentions_outputs_are_kept_in_layers_that_fit_into_half_of_the_rest() {
    let facts = facts(ParallelDims::DATA_PARALLEL, 1);
    let load = load(1000);
    // Outputs and logarithms of four heads.
    let each = 2000 * 4 * (16 * MASTER + MASTER);
    assert_eq!(facts.attended_bytes(&load), each);
    let step = facts.step_bytes(&load, Schedule::Streamed);
    for (room, most, layers) in [
        (None, u64::MAX, 4),
        (None, 2 * each, 2),
        (Some(step), u64::MAX, 0),
        (Some(step + 2 * 3 * each), u64::MAX, 3),
        (Some(step + 2 * 3 * each), each, 1),
        (Some(step + 100 * each), u64::MAX, 4),
    ] {
        assert_eq!(facts.attended_layers(&load, room, most), layers, "{room:?} {most}");
    }
}

#[test]
fn a_rank_alone_has_no_second_copy_of_a_frozen_model_unless_it_is_aside() {
    let mut facts = adapter();
    facts.compute = BF16;
    assert_eq!(facts.whole(1), BF16 * 2048, "of the adapter alone, rounded");
    facts.offload.parameters = true;
    assert_eq!(facts.whole(1), BF16 * (2048 + VALUES[1]));
    assert_eq!(
        facts.row(1).state,
        8 * 4 * 2048 + MASTER * 2 * 512 * 16,
        "an adapter's moments"
    );
}

#[test]
fn a_run_on_gpus_computes_in_bf16_and_offloads_and_one_without_does_neither() {
    let spec = |trainer: serde_json::Value| -> GrpoRunSpec {
        serde_json::from_value(serde_json::json!({
            "model": {"hub": {"repo": "a/b"}}, "store": {"persistentVolumeClaim": {"claimName": "c"}}, "trainer": trainer,
        }))
        .unwrap()
    };
    let of = |trainer| Facts::of_run(geometry(), &spec(trainer), 4, 8);
    let gpus = of(serde_json::json!({"gpusPerNode": 4, "nodes": 2, "shard": "Node", "offload": {"optimizer": true}}));
    assert_eq!(
        (gpus.compute, gpus.shards, gpus.offload),
        (BF16, 4, offload(true, false, false))
    );
    for cpus in [
        serde_json::json!({"nodes": 2}),
        serde_json::json!({"nodes": 2, "colocate": true}),
    ] {
        let cpus = of(cpus);
        assert_eq!(
            (cpus.compute, cpus.shards, cpus.offload),
            (MASTER, 8, Offload::default())
        );
    }
    let colocated = of(serde_json::json!({"gpusPerNode": 4, "nodes": 2, "colocate": true}));
    assert_eq!(colocated.offload, offload(true, true, false));
}
