use super::*;

#[test]
fn a_broken_logprob_gives_a_finite_ratio_without_slope() {
    assert_eq!(
        bounded(-1e30),
        Bounded {
            value: (-20.0f64).exp(),
            slope: 0.0
        }
    );
    assert_eq!(
        bounded(1e30),
        Bounded {
            value: 20.0f64.exp(),
            slope: 0.0
        }
    );
    assert_eq!(bounded(0.0), Bounded { value: 1.0, slope: 1.0 });
}
