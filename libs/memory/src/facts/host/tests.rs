use super::*;
use crate::geometry::{AdapterGeometry, Geometry, Mlp};
use crate::parallel_dims::ParallelDims;
use grpo_crds::grpo_run::Offload;

fn geometry() -> Geometry {
    Geometry {
        units: vec![1000, 2000, 2000],
        adapter: None,
        vocabulary: 100,
        hidden: 10,
        heads: 1,
        groups: 1,
        head_dim: 10,
        norms_heads: false,
        positions: 64,
        mlps: vec![Mlp::Dense { width: 16 }; 2],
    }
}

fn facts(geometry: Geometry, world: u32, offload: Offload) -> Facts {
    Facts {
        compute: 2,
        offload,
        ..Facts::of(geometry, ParallelDims::DATA_PARALLEL, world)
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
fn offloaded_tensors_are_in_the_pods_memory_and_a_checkpoint_copies_the_state_in_any_case() {
    let load = Load {
        // Inputs of 2,000 and 1,000 bytes in each of two blocks, in pinned blocks of 2,048 and 1,024.
        tokens: vec![100, 50],
        trained: 100,
    };
    for (world, offloaded, state, inputs) in [
        (1, offload(false, false, false), 0, 0),
        (1, offload(true, false, false), 8 * 5000, 0),
        (1, offload(false, true, false), 4 * 5000, 0),
        (4, offload(true, true, true), 12 * 1250, 2 * (2048 + 1024)),
    ] {
        let found = facts(geometry(), world, offloaded).host(&load);
        let checkpoint = 12 * 5000 / u64::from(world);
        assert_eq!(
            found,
            HostEstimate {
                state,
                inputs,
                checkpoint
            }
        );
        assert_eq!(found.total(), state + inputs + checkpoint);
        assert_eq!(found.of_ranks(4).total(), 4 * found.total());
    }
    let holds_base = Facts {
        holds_base: true,
        ..facts(geometry(), 1, offload(false, true, false))
    };
    assert_eq!(holds_base.host(&load).state, 2 * 4 * 5000);
}

#[test]
fn of_an_adapter_a_checkpoint_copies_only_what_is_trained() {
    let adapted = Geometry {
        adapter: Some(AdapterGeometry {
            units: vec![0, 100, 100],
            inputs: 10,
            outputs: 10,
            drops: false,
        }),
        ..geometry()
    };
    let found = facts(adapted, 1, offload(true, true, false)).host_row(64);
    assert_eq!((found.state, found.checkpoint), (12 * 200 + 2 * 5000, 12 * 200));
}

#[test]
fn ranks_that_share_a_sequence_keep_their_part_of_its_inputs() {
    let dims = ParallelDims {
        sequence: 2,
        shard: None,
    };
    let shared = Facts {
        compute: 2,
        offload: offload(false, false, true),
        ..Facts::of(geometry(), dims, 2)
    };
    // 50 tokens of 10 values in bf16: 1,000 bytes.
    assert_eq!(shared.host_row(100).inputs, 2 * 1024);
}
