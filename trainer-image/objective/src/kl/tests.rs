use super::*;
use crate::ratio::bounded;
use grpo_crds::algorithm::KlPlacement;
use proptest::prelude::*;

const ALL: [KlEstimator; 5] = [
    KlEstimator::K1,
    KlEstimator::K2,
    KlEstimator::K3,
    KlEstimator::Abs,
    KlEstimator::SquaredRatio,
];

fn kl(estimator: KlEstimator, gradient: KlGradient) -> Kl {
    Kl {
        coefficient: 0.1,
        estimator,
        gradient,
        placement: KlPlacement::Loss,
    }
}

#[test]
fn estimators_are_the_published_formulas() {
    let x = 0.5f64;
    let at = |estimator| estimate(estimator, x).value;
    assert_eq!(at(KlEstimator::K1), 0.5);
    assert_eq!(at(KlEstimator::K2), 0.125);
    assert!((at(KlEstimator::K3) - ((-0.5f64).exp() - 0.5)).abs() < 1e-15);
    assert_eq!(estimate(KlEstimator::Abs, -x).value, 0.5);
    assert!((at(KlEstimator::SquaredRatio) - ((-0.5f64).exp() - 1.0).powi(2) / 2.0).abs() < 1e-15);
}

#[test]
fn straight_through_has_the_value_of_its_estimator_and_the_gradient_of_k2() {
    for estimator in ALL {
        let found = penalty(&kl(estimator, KlGradient::StraightThrough), -1.5, bounded(0.0));
        assert_eq!(found.value, estimate(estimator, -1.5).value);
        assert_eq!(found.gradient, -1.5);
    }
}

#[test]
fn only_straight_through_k2_points_where_the_divergence_falls() {
    // Two tokens; the policy's probability of the first is too high. By enumeration: E[gradient of the estimator x d
    // logp / d logit].
    let (policy, reference) = ([0.8f64, 0.2], [0.5f64, 0.5]);
    let expected = |gradient: KlGradient, estimator| -> f64 {
        (0..2)
            .map(|token| {
                let slope = if token == 0 { 1.0 - policy[0] } else { -policy[0] };
                let x = (policy[token] / reference[token]).ln();
                policy[token] * penalty(&kl(estimator, gradient), x, bounded(0.0)).gradient * slope
            })
            .sum()
    };
    let divergence = |p: f64| p * (p / 0.5).ln() + (1.0 - p) * ((1.0 - p) / 0.5).ln();
    // d p / d logit = p (1 - p).
    let truth = (divergence(0.8 + 1e-6) - divergence(0.8 - 1e-6)) / 2e-6 * 0.8 * 0.2;
    assert!(expected(KlGradient::Estimator, KlEstimator::K1).abs() < 1e-12);
    assert!((expected(KlGradient::Estimator, KlEstimator::K3) - truth).abs() > 1e-2);
    assert!((expected(KlGradient::Estimator, KlEstimator::K2) - truth).abs() < 1e-6);
    for estimator in ALL {
        assert!((expected(KlGradient::StraightThrough, estimator) - truth).abs() < 1e-6);
    }
    // On the policy's own samples the weighted k1 and k3 are right as well.
    for estimator in [KlEstimator::K1, KlEstimator::K3] {
        assert!((expected(KlGradient::ImportanceWeighted, estimator) - truth).abs() < 1e-6);
    }
}

#[test]
fn a_reward_loses_the_penalty_of_all_its_tokens() {
    let kl = kl(KlEstimator::K1, KlGradient::Estimator);
    assert!((shaped_reward(1.0, &kl, [1.0, 2.0].into_iter()) - 0.7).abs() < 1e-12);
}

proptest! {
    #[test]
    fn gradients_are_the_derivatives_of_the_values(x in -6.0f64..6.0, old in -3.0f64..3.0, pick in 0usize..5) {
        prop_assume!(x.abs() > 1e-3);
        let step = 1e-6;
        for gradient in [KlGradient::Estimator, KlGradient::ImportanceWeighted] {
            // `old` and reference are fixed while the logprob changes by `by`.
            let at = |by: f64| penalty(&kl(ALL[pick], gradient), x + by, bounded(old + by));
            let numeric = (at(step).value - at(-step).value) / (2.0 * step);
            prop_assert!((numeric - at(0.0).gradient).abs() < 1e-5 * (1.0 + numeric.abs()), "{numeric} {:?}", at(0.0));
        }
    }

    #[test]
    fn extreme_logprobs_give_finite_numbers(x in prop::sample::select(vec![-1e6, -50.0, -20.0, 20.0, 50.0, 1e6]), pick in 0usize..5) {
        for gradient in [KlGradient::Estimator, KlGradient::StraightThrough, KlGradient::ImportanceWeighted] {
            let found = penalty(&kl(ALL[pick], gradient), x, bounded(x));
            prop_assert!(found.value.is_finite() && found.gradient.is_finite());
        }
    }
}
