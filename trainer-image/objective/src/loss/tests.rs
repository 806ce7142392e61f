use super::*;
use proptest::prelude::*;

const CLIP: Clip = Clip {
    low: 0.2,
    high: 0.28,
    dual: None,
};

#[test]
fn the_bound_that_holds_depends_on_the_sign_of_the_advantage() {
    let up = 1.5f64.ln();
    let down = 0.5f64.ln();
    // ratio, advantage, loss, clipped
    for (log_ratio, advantage, loss, clipped) in [
        (0.0, 1.0, -1.0, false),
        (up, 1.0, -1.28, true),
        (up, -1.0, 1.5, false),
        (down, 1.0, -0.5, false),
        (down, -1.0, 0.8, true),
    ] {
        let token = token_loss(log_ratio, 0.0, advantage, &CLIP);
        assert!(
            (token.loss - loss).abs() < 1e-12 && token.clipped == clipped,
            "{log_ratio} {advantage}: {token:?}"
        );
    }
}

#[test]
fn dual_clip_bounds_the_loss_of_a_bad_token_that_became_likely() {
    let clip = Clip {
        dual: Some(3.0),
        ..CLIP
    };
    let token = token_loss(5.0f64.ln(), 0.0, -1.0, &clip);
    assert_eq!((token.loss, token.gradient, token.clipped), (3.0, 0.0, true));
}

#[test]
fn cispo_bounds_the_ratio_but_keeps_the_gradient() {
    let token = policy_loss(Loss::Cispo, bounded(2.0f64.ln()), -0.5, 3.0, &CLIP);
    assert!((token.loss - 1.28 * 3.0 * 0.5).abs() < 1e-12, "{token:?}");
    assert!(
        (token.gradient + 1.28 * 3.0).abs() < 1e-12 && token.clipped,
        "{token:?}"
    );
}

#[test]
fn weights_sum_to_one_mean_per_aggregation() {
    let tokens = [3u64, 0, 1];
    let weights = |aggregation| token_weights(&tokens, aggregation);
    assert_eq!(weights(Aggregation::TokenMean), [0.25, 0.0, 0.25]);
    assert_eq!(weights(Aggregation::SequenceMean), [1.0 / 6.0, 0.0, 0.5]);
    assert_eq!(weights(Aggregation::SequenceSum), [0.5, 0.0, 0.5]);
    assert_eq!(weights(Aggregation::TokenSum), [1.0, 0.0, 1.0]);
    assert_eq!(
        batch_weights(&tokens, Aggregation::SequenceSum, Some(10)),
        [0.05, 0.0, 0.05]
    );
}

proptest! {
    #[test]
    fn the_gradient_is_the_derivative_of_the_loss(
        new in -3.0f64..0.0,
        old in -3.0f64..0.0,
        advantage in -2.0f64..2.0,
        dual in prop::option::of(1.5f64..4.0),
    ) {
        let step = 1e-6;
        let clip = Clip { dual, ..CLIP };
        let at = |x| token_loss(x, old, advantage, &clip);
        // At a kink the derivative is not defined.
        prop_assume!(at(new - step).clipped == at(new + step).clipped);
        let numeric = (at(new + step).loss - at(new - step).loss) / (2.0 * step);
        prop_assert!((numeric - at(new).gradient).abs() < 1e-4 * (1.0 + numeric.abs()));
    }

    #[test]
    fn the_gradient_of_cispo_is_the_derivative_with_the_ratio_held(new in -3.0f64..0.0, old in -3.0f64..0.0, advantage in -2.0f64..2.0) {
        let (step, ratio) = (1e-6, bounded(new - old));
        let at = |x| policy_loss(Loss::Cispo, ratio, x, advantage, &CLIP);
        let numeric = (at(new + step).loss - at(new - step).loss) / (2.0 * step);
        prop_assert!((numeric - at(new).gradient).abs() < 1e-6 * (1.0 + numeric.abs()));
    }
}
