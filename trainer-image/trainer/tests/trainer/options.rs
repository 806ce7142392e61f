//! Every option of the objective, as a step executes it: compares its gradient with the objective's scalar formulas and
//! one graph of the whole model.
//!
//! AdamW's first moment shows a step's gradient: without memory (beta 0) and without clipping it is the last optimizer
//! step's gradient.

use crate::common::graph::{At, expected};
use crate::common::{algorithm, alone, batch, config, flat, model, ranks, worlds};
use grpo_crds::algorithm::{
    Aggregation, Algorithm, Band, Clip, Correction, Denominator, Kl, KlEstimator, KlGradient, KlPlacement, Loss,
    OldLogprobs, Ratio,
};
use grpo_model::lora::Lora;
use grpo_records::batch::{Batch, Row};
use grpo_records::trainer::StepMetrics;
use grpo_trainer::TrainError;
use grpo_trainer::flops::Forward;
use grpo_trainer::grpo;
use grpo_trainer::mini_batch::{MiniBatch, cut, leave_out_what_adds_nothing};
use grpo_trainer::sharded::Sharded;
use grpo_trainer::train_row::TrainRow;
use tch::Tensor;

/// Every episode has two rows, and one was cut.
fn turns(step: u32) -> Batch {
    let mut batch = batch(step);
    let more: Vec<Row> = crate::common::batch(step + 100).rows;
    for (first, mut second) in batch.rows.clone().into_iter().zip(more) {
        second.reward = first.reward;
        batch.rows.push(second);
    }
    for row in batch.rows.iter_mut().filter(|row| row.episode == "i1__g1__i0") {
        row.truncated = true;
    }
    batch
}

fn plain() -> Algorithm {
    Algorithm {
        betas: [0.0, 0.999],
        gradient_clip: 0.0,
        ..algorithm()
    }
}

/// More than one rank, if that can be tested.
fn several() -> u32 {
    worlds([1, 2]).pop().unwrap()
}

/// Whole gradients by unit, and rank 0's metrics.
type StepOutcome = (Vec<Vec<f32>>, StepMetrics);

/// For each of `many`: the last optimizer step's gradient after `act` on every rank. `prepare` is called once; weights
/// are restored in between.
fn taken<T: Sync>(
    world: u32,
    many: &[T],
    prepare: impl Fn(&mut Sharded) + Sync,
    act: impl Fn(&mut Sharded, &T) -> StepMetrics + Sync,
) -> Vec<StepOutcome> {
    let parts = ranks(world, |group| {
        let mut model = model(group);
        prepare(&mut model);
        let before: Vec<Tensor> = model.shards.iter().map(|shard| shard.values.copy()).collect();
        let one = |one: &T| {
            for (shard, before) in model.shards.iter_mut().zip(&before) {
                shard.values.copy_(before);
                let _ = shard.first_moment.zero_();
                let _ = shard.second_moment.zero_();
            }
            model.updates = 0;
            let metrics = act(&mut model, one);
            let moments = model
                .shards
                .iter()
                .map(|shard| Vec::<f32>::try_from(&shard.first_moment).unwrap());
            (moments.collect::<Vec<_>>(), metrics)
        };
        many.iter().map(one).collect::<Vec<_>>()
    });
    let whole = |at: usize| {
        let units = 0..parts[0][at].0.len();
        let unit = |unit: usize| parts.iter().flat_map(|part| part[at].0[unit].clone()).collect();
        (units.map(unit).collect(), parts[0][at].1.clone())
    };
    (0..many.len()).map(whole).collect()
}

fn is_near(found: &[Vec<f32>], expected: &[Vec<f32>], what: &str) {
    for (unit, (found, expected)) in found.iter().zip(expected).enumerate() {
        let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|x| x * x).sum::<f64>().sqrt();
        let apart = norm(&mut found.iter().zip(expected).map(|(a, b)| f64::from(a - b)));
        let size = norm(&mut expected.iter().map(|x| f64::from(*x)));
        assert!(
            size > 0.0 && apart / size < 2e-4,
            "{what}, unit {unit}: {:e} of {size:e}",
            apart / size
        );
    }
}

const BAND: Option<Band> = Some(Band { low: 0.7, high: 1.6 });

fn kl(estimator: KlEstimator, gradient: KlGradient) -> Option<Kl> {
    Some(Kl {
        coefficient: 0.2,
        estimator,
        gradient,
        placement: KlPlacement::Loss,
    })
}

fn options() -> Vec<(&'static str, Algorithm)> {
    let narrow = Clip {
        low: 0.02,
        high: 0.03,
        dual: None,
    };
    let corrected = |correction: Correction| Algorithm {
        correction: Some(correction),
        old_logprobs: OldLogprobs::Recompute,
        ..plain()
    };
    vec![
        ("plain", plain()),
        (
            "Cispo",
            Algorithm {
                loss: Loss::Cispo,
                clip: narrow.clone(),
                ..plain()
            },
        ),
        (
            "GSPO",
            Algorithm {
                ratio: Ratio::Sequence,
                ..plain()
            },
        ),
        (
            "GSPO by row",
            Algorithm {
                ratio: Ratio::Sequence,
                denominator: Denominator::Row,
                aggregation: Aggregation::SequenceMean,
                ..plain()
            },
        ),
        (
            "Dr. GRPO",
            Algorithm {
                aggregation: Aggregation::SequenceSum,
                aggregation_length: Some(32),
                ..plain()
            },
        ),
        (
            "rows as sequences",
            Algorithm {
                aggregation: Aggregation::SequenceMean,
                denominator: Denominator::Row,
                ..plain()
            },
        ),
        (
            "overlong",
            Algorithm {
                mask_overlong: true,
                aggregation: Aggregation::SequenceMean,
                ..plain()
            },
        ),
        (
            "entropy",
            Algorithm {
                entropy_coefficient: 0.1,
                ..plain()
            },
        ),
        (
            "k1 weighted",
            Algorithm {
                kl: kl(KlEstimator::K1, KlGradient::ImportanceWeighted),
                ..plain()
            },
        ),
        (
            "k2",
            Algorithm {
                kl: kl(KlEstimator::K2, KlGradient::Estimator),
                ..plain()
            },
        ),
        (
            "k3",
            Algorithm {
                kl: kl(KlEstimator::K3, KlGradient::Estimator),
                ..plain()
            },
        ),
        (
            "k3 straight through",
            Algorithm {
                kl: kl(KlEstimator::K3, KlGradient::StraightThrough),
                ..plain()
            },
        ),
        (
            "squared ratio",
            Algorithm {
                kl: kl(KlEstimator::SquaredRatio, KlGradient::Estimator),
                ..plain()
            },
        ),
        (
            "recompute",
            Algorithm {
                old_logprobs: OldLogprobs::Recompute,
                ..plain()
            },
        ),
        (
            "TIS",
            corrected(Correction {
                truncated_importance: BAND,
                ..Default::default()
            }),
        ),
        (
            "IcePop",
            corrected(Correction {
                ice_pop: BAND,
                ..Default::default()
            }),
        ),
        (
            "IcePop by sequence",
            corrected(Correction {
                ice_pop: Some(Band { low: 0.0, high: 1e9 }),
                level: Ratio::Sequence,
                ..Default::default()
            }),
        ),
        (
            "geometric mask",
            corrected(Correction {
                geometric_mask: Some(Band { low: 0.85, high: 1.6 }),
                ..Default::default()
            }),
        ),
        (
            "sequence mask",
            corrected(Correction {
                sequence_mask: Some(0.05),
                ..Default::default()
            }),
        ),
    ]
}

#[test]
fn every_option_has_the_gradient_and_loss_of_the_objective_in_one_graph_however_rows_are_packed() {
    let batch = turns(1);
    // The policy differs from the base.
    let moved = |model: &mut Sharded| {
        model.base_is_here();
        crate::common::steps(model, 3..=4);
    };
    let mut single = alone();
    let base = single.weights().unwrap();
    moved(&mut single);
    let now = single.weights().unwrap();
    let at = At {
        start: &now,
        base: &base,
        now: &now,
    };
    let options = options();
    // One pack; packs that tear episodes apart; the same over two ranks.
    let ways = [(1, 4096), (1, 50), (several(), 50)];
    let found = ways.map(|(world, tokens)| {
        let act = |model: &mut Sharded, (_, algorithm): &(&str, Algorithm)| {
            model.micro_batch_tokens = tokens;
            model.head_logits = 11 * 64;
            grpo::step(model, &batch, "batch", algorithm, 0).unwrap()
        };
        taken(world, &options, moved, act)
    });
    for (number, (name, algorithm)) in options.iter().enumerate() {
        let (wanted, loss) = expected(&batch, algorithm, &at, |_| true);
        for (way, found) in ways.iter().zip(&found) {
            let (found, metrics) = &found[number];
            let what = format!("{name}, ranks and tokens {way:?}");
            assert!(
                (metrics.loss - loss).abs() < 1e-5 * (1.0 + loss.abs()),
                "{what}: {} {loss}",
                metrics.loss
            );
            is_near(found, &wanted, &what);
        }
    }
}

#[test]
fn a_kl_penalty_in_the_reward_changes_advantages_and_nothing_else() {
    let batch = turns(1);
    let mut single = alone();
    let base = single.weights().unwrap();
    crate::common::steps(&mut single, 3..=4);
    let now = single.weights().unwrap();
    let at = At {
        start: &now,
        base: &base,
        now: &now,
    };
    for old_logprobs in [OldLogprobs::Engine, OldLogprobs::Recompute] {
        let algorithm = Algorithm {
            kl: kl(KlEstimator::K1, KlGradient::Estimator).map(|kl| Kl {
                placement: KlPlacement::Reward,
                ..kl
            }),
            old_logprobs,
            mask_overlong: true,
            ..plain()
        };
        let (wanted, _) = expected(&batch, &algorithm, &at, |_| true);
        let moved = |model: &mut Sharded| {
            model.base_is_here();
            crate::common::steps(model, 3..=4);
        };
        let act = |model: &mut Sharded, _: &()| grpo::step(model, &batch, "batch", &algorithm, 0).unwrap();
        let (found, metrics) = taken(several(), &[()], moved, act).remove(0);
        is_near(&found, &wanted, &format!("{old_logprobs:?}"));
        assert!(metrics.kl != 0.0 && metrics.kl_loss == 0.0 && metrics.rows_overlong == 2);
        // Equal rewards are not equal any more.
        assert_eq!(metrics.groups_zero_variance, 0);
    }
}

#[test]
fn logprobs_that_shaped_the_reward_are_those_that_later_steps_compare_with() {
    let batch = turns(1);
    let with = |kl: Option<Kl>| Algorithm {
        kl,
        old_logprobs: OldLogprobs::Recompute,
        mask_overlong: true,
        mini_batches: 2,
        epochs: 2,
        ..plain()
    };
    let step = |algorithm: &Algorithm| {
        let mut model = alone();
        model.base_is_here();
        let metrics = grpo::step(&mut model, &batch, "batch", algorithm, 0).unwrap();
        (flat(&model.weights().unwrap()), metrics)
    };
    // It changes no reward, but computes all logprobs of both models.
    let nothing = kl(KlEstimator::K1, KlGradient::Estimator).map(|kl| Kl {
        coefficient: 0.0,
        placement: KlPlacement::Reward,
        ..kl
    });
    let ((found, looked), (wanted, metrics)) = (step(&with(nothing)), step(&with(None)));
    assert!(found.iter().zip(&wanted).all(|(a, b)| (a - b).abs() < 1e-6));
    assert!((looked.ratio_deviation / metrics.ratio_deviation - 1.0).abs() < 1e-3 && looked.rows_overlong == 2);
    // One pass each of the base model and the policy over all rows; the other run has one pass of the policy over its
    // trained rows.
    let forward = Forward::of(&config());
    let looking = |rows: Vec<TrainRow>| forward.looking(&MiniBatch::new(rows, &alone()).unwrap().packing.work());
    let stored = batch.rows.iter().map(|row| TrainRow {
        tokens: row.tokens.clone(),
        weights: row.mask.iter().map(|mask| f32::from(*mask)).collect(),
        ..Default::default()
    });
    let (rows, _) = grpo::prepare(&batch, "batch", &with(None), 0, None).unwrap();
    let trained = cut(rows, 2).into_iter().map(|mut rows| {
        leave_out_what_adds_nothing(&mut rows, &with(None));
        looking(rows)
    });
    let own: f64 = trained.sum();
    let more = (looked.model_flops - metrics.model_flops) / (2.0 * looking(stored.collect()) - own);
    assert!((more - 1.0).abs() < 1e-9, "{more}");
}

#[test]
fn mini_batches_are_optimizer_steps_one_after_the_other() {
    let whole = turns(1);
    let algorithm = Algorithm {
        mini_batches: 3,
        ..plain()
    };
    let mut cut = alone();
    let metrics = grpo::step(&mut cut, &whole, "batch", &algorithm, 0).unwrap();
    let mut apart = alone();
    for group in 0..3 {
        let mut part = whole.clone();
        part.rows.retain(|row| row.group == group);
        grpo::step(&mut apart, &part, "batch", &plain(), 0).unwrap();
    }
    let (found, wanted) = (flat(&cut.weights().unwrap()), flat(&apart.weights().unwrap()));
    assert!(found.iter().zip(&wanted).all(|(a, b)| (a - b).abs() < 1e-6));
    assert_eq!((metrics.updates, cut.updates), (3, 3));
}

#[test]
fn later_steps_of_a_batch_compare_with_the_weights_that_it_began_with() {
    let whole = turns(1);
    // Episodes in order: five of nine, then four.
    let first = |row: &Row| row.episode.as_str() < "i1__g1__i2";
    let last = |row: &Row| !first(row);
    for (ratio, loss) in [
        (Ratio::Token, Loss::Clipped),
        (Ratio::Sequence, Loss::Clipped),
        (Ratio::Token, Loss::Cispo),
    ] {
        let algorithm = Algorithm {
            old_logprobs: OldLogprobs::Recompute,
            correction: Some(Correction {
                truncated_importance: BAND,
                ..Default::default()
            }),
            mini_batches: 2,
            epochs: 2,
            // Wide enough that some sequences' ratios are inside.
            clip: Clip {
                low: 0.6,
                high: 2.0,
                dual: None,
            },
            learning_rate: 3e-4,
            ratio,
            loss,
            ..plain()
        };
        let start = alone().weights().unwrap();
        let act = |model: &mut Sharded, _: &()| {
            model.micro_batch_tokens = 60;
            grpo::step(model, &whole, "batch", &algorithm, 0).unwrap()
        };
        let (found, metrics) = taken(several(), &[()], |_| (), act).remove(0);
        assert!(metrics.updates == 4 && metrics.ratio_deviation > 1e-3, "{metrics:?}");
        // The three optimizer steps before it by hand: gradients of one graph, stepped by AdamW.
        let mut by_hand = alone();
        for takes in [&first as &dyn Fn(&Row) -> bool, &last, &first] {
            let now = by_hand.weights().unwrap();
            let at = At {
                start: &start,
                base: &start,
                now: &now,
            };
            let (gradients, _) = expected(&whole, &algorithm, &at, takes);
            let gradients: Vec<Tensor> = gradients
                .iter()
                .map(|unit| Tensor::from_slice(unit).to_device(by_hand.computes().device))
                .collect();
            by_hand
                .update(&gradients, algorithm.learning_rate, &grpo::optimizer(&algorithm))
                .unwrap();
        }
        let now = by_hand.weights().unwrap();
        let at = At {
            start: &start,
            base: &start,
            now: &now,
        };
        let (wanted, _) = expected(&whole, &algorithm, &at, last);
        is_near(&found, &wanted, &format!("{ratio:?} {loss:?}"));
    }
}

#[test]
fn beside_an_adapter_the_frozen_model_is_the_reference() {
    let algorithm = Algorithm {
        kl: kl(KlEstimator::K3, KlGradient::Estimator),
        learning_rate: 1e-2,
        ..algorithm()
    };
    let lora = Lora::new(4, 8.0, &["q_proj", "v_proj", "down_proj"]).unwrap();
    let mut model = alone().with_adapter(lora, 3).unwrap();
    let first = grpo::step(&mut model, &batch(1), "batch", &algorithm, 0).unwrap();
    assert!(first.kl.abs() < 1e-9, "an adapter begins at its base: {first:?}");
    let second = grpo::step(&mut model, &batch(2), "batch", &algorithm, 0).unwrap();
    assert!(second.kl > 1e-6, "{second:?}");
    // The same policy as full weights, with the same base.
    let merged = Sharded::new(
        config(),
        grpo_native::Group::join(&grpo_native::Rendezvous::alone()).unwrap(),
        &model.weights().unwrap(),
    );
    let error = grpo::step(&mut merged.unwrap(), &batch(2), "batch", &algorithm, 0).unwrap_err();
    assert!(error.to_string().contains("no base model is held"), "{error}");
}

#[test]
fn a_batch_that_diverges_after_its_first_optimizer_step_ends_the_process_and_one_before_it_is_refused() {
    let algorithm = Algorithm {
        learning_rate: 1.0,
        mini_batches: 3,
        epochs: 4,
        ..plain()
    };
    let mut model = alone();
    for shard in &mut model.shards {
        shard.values *= 1e18;
    }
    let error = grpo::step(&mut model, &batch(1), "batch", &algorithm, 0).unwrap_err();
    assert!(error.is_refusal(), "{error}");
    let wild = Algorithm {
        learning_rate: 1e37,
        ..algorithm
    };
    let error = grpo::step(&mut alone(), &batch(1), "batch", &wild, 0).unwrap_err();
    assert!(matches!(error, TrainError::Diverged { updates: 1.., .. }), "{error}");
}
