//! Numbers that look like chance and are a function of others: SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).

/// What the state moves by from one draw to the next.
pub const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// The draw that follows this state.
pub fn mixed(state: u64) -> u64 {
    let z = state.wrapping_add(STEP);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
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
}
