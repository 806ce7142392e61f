use super::*;
use crate::geometry::Mlp;

/// Qwen3-8B: 8.19 billion parameters, 36 layers, 8 groups of 128.
fn qwen3_8b() -> Geometry {
    let (layers, hidden, width) = (36, 4096, 12_288);
    let mut units = vec![192_946_176; layers + 1];
    units[0] = 1_244_663_808;
    Geometry {
        units,
        adapter: None,
        vocabulary: 151_936,
        hidden,
        heads: 32,
        groups: 8,
        head_dim: 128,
        norms_heads: true,
        positions: 40_960,
        mlps: vec![Mlp::Dense { width }; layers],
    }
}

#[test]
fn a_token_of_qwen3_8b_takes_144_kib_of_the_cache_and_its_weights_15_gib() {
    let share = EngineShare::of(&qwen3_8b(), 1, 1);
    assert_eq!(share.token, 144 << 10);
    assert_eq!(share.weights >> 30, 15);
    assert_eq!(share.tokens(share.weights + (144 << 20)), 1024);
    assert_eq!(share.tokens(0), 0);
}

#[test]
fn gpus_of_a_replica_divide_weights_and_cache() {
    let (one, eight) = (EngineShare::of(&qwen3_8b(), 1, 1), EngineShare::of(&qwen3_8b(), 8, 1));
    assert_eq!(eight.token * 8, one.token);
    assert_eq!(eight.weights, one.weights.div_ceil(8));
    let staged = EngineShare::of(&qwen3_8b(), 2, 2);
    assert_eq!((staged.token * 4, staged.weights), (one.token, one.weights.div_ceil(4)));
}

#[test]
fn more_gpus_than_groups_hold_copies_of_the_cache() {
    let (eight, sixteen) = (EngineShare::of(&qwen3_8b(), 8, 1), EngineShare::of(&qwen3_8b(), 16, 1));
    assert_eq!(sixteen.token, eight.token);
}
