use super::*;

/// The first draws of the reference implementation from the seed 1234567.
#[test]
fn draws_are_the_reference_implementation_s() {
    let draws = (0..3u64).map(|n| mixed(1_234_567u64.wrapping_add(STEP.wrapping_mul(n))));
    assert_eq!(
        draws.collect::<Vec<_>>(),
        [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423
        ]
    );
}
