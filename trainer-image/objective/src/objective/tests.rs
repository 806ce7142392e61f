use super::*;
use grpo_crds::algorithm::{Aggregation, Band, Clip, Correction, Kl, KlEstimator, KlGradient, Loss};
use proptest::prelude::*;

fn token() -> impl Strategy<Value = Token> {
    // `old` is up to 1 from `new`: ratios on both sides of the bounds.
    (-4.0f64..-0.1, -1.0f64..1.0, -1.0f64..1.0, -1.0f64..1.0, 0.0f64..3.0).prop_map(|(new, a, b, c, entropy)| Token {
        new,
        old: new + a,
        rollout: new + b,
        reference: new + c,
        entropy,
    })
}

fn sequences() -> impl Strategy<Value = Vec<Sequence>> {
    let sequence = (-2.0f64..2.0, prop::collection::vec(token(), 0..6));
    prop::collection::vec(
        sequence.prop_map(|(advantage, tokens)| Sequence { advantage, tokens }),
        1..5,
    )
}

fn algorithm() -> impl Strategy<Value = Algorithm> {
    let aggregations = vec![
        (Aggregation::TokenMean, None),
        (Aggregation::SequenceMean, None),
        (Aggregation::SequenceSum, Some(7)),
        (Aggregation::TokenSum, None),
    ];
    let kl = prop::option::of((0usize..5, prop::bool::ANY).prop_map(|(pick, weighted)| Kl {
        coefficient: 0.3,
        estimator: [
            KlEstimator::K1,
            KlEstimator::K2,
            KlEstimator::K3,
            KlEstimator::Abs,
            KlEstimator::SquaredRatio,
        ][pick],
        gradient: if weighted {
            KlGradient::ImportanceWeighted
        } else {
            KlGradient::Estimator
        },
        placement: KlPlacement::Loss,
    }));
    let correction = prop::option::of((0usize..3, prop::option::of(0.1f64..0.5)).prop_map(|(pick, bound)| {
        let band = Some(Band { low: 0.6, high: 1.7 });
        Correction {
            truncated_importance: band.clone().filter(|_| pick == 1),
            ice_pop: band.clone().filter(|_| pick == 2),
            geometric_mask: band,
            // Reads `new`, but is a constant to the gradient: left out for the derivative.
            sequence_mask: bound.filter(|_| false),
            ..Default::default()
        }
    }));
    (
        prop::sample::select(aggregations),
        kl,
        correction,
        prop::option::of(1.5f64..3.0),
        0.0f64..0.5,
        prop::bool::ANY,
    )
        .prop_map(
            |((aggregation, aggregation_length), kl, correction, dual, entropy_coefficient, recompute)| Algorithm {
                aggregation,
                aggregation_length,
                kl,
                correction,
                entropy_coefficient,
                clip: Clip {
                    low: 0.2,
                    high: 0.28,
                    dual,
                },
                old_logprobs: if recompute {
                    OldLogprobs::Recompute
                } else {
                    OldLogprobs::Engine
                },
                ..Default::default()
            },
        )
}

/// Derivative of the loss by one token's logprob, by central difference; `None` if a bound changes in between.
fn numeric(sequences: &[Sequence], algorithm: &Algorithm, at: (usize, usize)) -> Option<f64> {
    let step = 1e-6;
    let moved = |by: f64| {
        let mut sequences = sequences.to_vec();
        sequences[at.0].tokens[at.1].new += by;
        objective(&sequences, algorithm)
    };
    let (up, down) = (moved(step), moved(-step));
    (up.clipped == down.clipped).then(|| (up.loss - down.loss) / (2.0 * step))
}

proptest! {
    #[test]
    fn the_gradient_is_the_derivative_of_the_whole_loss(sequences in sequences(), algorithm in algorithm()) {
        let found = objective(&sequences, &algorithm);
        for (i, gradients) in found.gradient.iter().enumerate() {
            for (j, gradient) in gradients.iter().enumerate() {
                let token = sequences[i].tokens[j];
                prop_assume!((token.new - token.reference).abs() > 1e-4);
                if let Some(numeric) = numeric(&sequences, &algorithm, (i, j)) {
                    prop_assert!((numeric - gradient.logprob).abs() < 1e-5 * (1.0 + numeric.abs()), "{numeric} {gradient:?}");
                }
                let mut more = sequences.clone();
                more[i].tokens[j].entropy += 1.0;
                let by_entropy = objective(&more, &algorithm).loss - found.loss;
                prop_assert!((by_entropy - gradient.entropy).abs() < 1e-9);
            }
        }
    }

    #[test]
    fn with_one_ratio_a_sequence_the_tokens_gradients_are_the_derivative_too(sequences in sequences(), mut algorithm in algorithm()) {
        algorithm.ratio = Ratio::Sequence;
        algorithm.kl = None;
        // One correction for all tokens of a sequence.
        if let Some(correction) = &mut algorithm.correction {
            correction.level = Ratio::Sequence;
        }
        let found = objective(&sequences, &algorithm);
        for (i, gradients) in found.gradient.iter().enumerate() {
            for (j, gradient) in gradients.iter().enumerate() {
                if let Some(numeric) = numeric(&sequences, &algorithm, (i, j)) {
                    prop_assert!((numeric - gradient.logprob).abs() < 1e-5 * (1.0 + numeric.abs()), "{numeric} {gradient:?}");
                }
            }
        }
    }

    #[test]
    fn cut_into_any_two_parts_with_the_weights_of_the_whole_the_loss_is_the_same(sequences in sequences(), algorithm in algorithm()) {
        // TokenSum's weights do not depend on the cut; other aggregations have the whole batch's denominators.
        let algorithm = Algorithm { aggregation: Aggregation::TokenSum, aggregation_length: None, ..algorithm };
        let whole = objective(&sequences, &algorithm);
        let (head, tail) = sequences.split_at(sequences.len() / 2);
        let parts = objective(head, &algorithm).loss + objective(tail, &algorithm).loss;
        prop_assert!((whole.loss - parts).abs() < 1e-9 * (1.0 + whole.loss.abs()));
    }

    #[test]
    fn extreme_logprobs_give_finite_losses_and_gradients(mut sequences in sequences(), mut algorithm in algorithm(), far in prop::sample::select(vec![-1e5, -200.0, 0.0])) {
        for loss in [Loss::Clipped, Loss::Cispo] {
            for ratio in [Ratio::Token, Ratio::Sequence] {
                (algorithm.loss, algorithm.ratio) = (loss, ratio);
                if let Some(token) = sequences[0].tokens.first_mut() {
                    token.new = far;
                }
                let found = objective(&sequences, &algorithm);
                prop_assert!(found.loss.is_finite(), "{found:?}");
                prop_assert!(found.gradient.iter().flatten().all(|gradient| gradient.logprob.is_finite()));
            }
        }
    }
}

#[test]
fn a_masked_sequence_stays_in_the_denominator_and_one_without_tokens_does_not() {
    let token = |new: f64| Token {
        new,
        old: -1.0,
        rollout: -1.0,
        ..Default::default()
    };
    let one = |new, advantage| Sequence {
        advantage,
        tokens: vec![token(new)],
    };
    let algorithm = Algorithm {
        correction: Some(Correction {
            sequence_mask: Some(0.5),
            ..Default::default()
        }),
        ..Default::default()
    };
    let found = objective(&[one(-1.0, 1.0), one(-3.0, -1.0), Sequence::default()], &algorithm);
    assert_eq!((found.loss, found.left_out), (-0.5, 1));
    assert_eq!(found.gradient[1][0].logprob, 0.0);
    assert_eq!(
        objective(&[Sequence::default()], &algorithm),
        Objective {
            gradient: vec![vec![]],
            ..Default::default()
        }
    );
}

#[test]
fn recomputed_before_the_only_step_every_ratio_is_one_and_nothing_is_clipped() {
    let token = Token {
        new: -1.0,
        old: -1.0,
        rollout: -9.0,
        ..Default::default()
    };
    let sequences = [Sequence {
        advantage: 2.0,
        tokens: vec![token],
    }];
    let algorithm = Algorithm {
        old_logprobs: OldLogprobs::Recompute,
        ..Default::default()
    };
    let found = objective(&sequences, &algorithm);
    assert_eq!(
        (found.loss, found.clipped, found.gradient[0][0].logprob),
        (-2.0, 0, -2.0)
    );
}
