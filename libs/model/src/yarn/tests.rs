//! The shares of speed that pairs keep, by the formulas of the paper and of transformers.

use std::f64::consts::TAU;

use super::*;

/// Qwen's YaRN for 128k positions.
fn qwen(truncate: bool) -> Yarn {
    Yarn {
        factor: 4.0,
        original: 32768,
        attention_factor: 0.1 * 4f64.ln() + 1.0,
        beta_fast: 32.0,
        beta_slow: 1.0,
        truncate,
    }
}

#[test]
fn pairs_between_the_bounds_are_interpolated_and_only_truncation_rounds_the_bounds() {
    let bound = |turns: f64| 128.0 * (32768.0 / (turns * TAU)).ln() / (2.0 * 1e6f64.ln());
    let (fast, slow) = (bound(32.0), bound(1.0));
    assert!(
        (23.0..24.0).contains(&fast) && (39.0..40.0).contains(&slow),
        "{fast} {slow}"
    );
    for (truncate, low, high) in [(true, 23.0, 40.0), (false, fast, slow)] {
        let kept = qwen(truncate).kept(128, 1e6);
        assert_eq!(kept.len(), 64);
        for (pair, kept) in kept.into_iter().enumerate() {
            let expected = match pair as f64 {
                pair if pair <= low => 1.0,
                pair if pair >= high => 0.0,
                pair => (high - pair) / (high - low),
            };
            assert!((kept - expected).abs() < 1e-12, "{truncate} {pair}: {kept} {expected}");
        }
    }
}
