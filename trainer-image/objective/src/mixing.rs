//! Pseudorandom numbers as a function of their inputs: SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).

/// Increment of the state from one draw to the next.
pub const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// The draw that follows this state.
pub fn mixed(state: u64) -> u64 {
    let z = state.wrapping_add(STEP);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests;
