//! Every option of the objective, as a step executes it: its gradient against the objective's scalar words and one graph of the whole model.
//!
//! A step's gradient is seen in AdamW's first moment: without memory (beta 0) and without clipping that is the last optimizer step's gradient.

#![allow(clippy::unwrap_used)]

mod common;

use common::{algorithm, alone, batch, config, flat, model, ranks};
use grpo_crds::algorithm::{
    Aggregation, Algorithm, Band, Clip, Correction, Denominator, Kl, KlEstimator, KlGradient, KlPlacement, Loss,
    OldLogprobs, Ratio,
};
use grpo_objective::advantage::{batch_advantages, shaped_advantages};
use grpo_objective::kl::shaped_reward;
use grpo_objective::{Sequence, Token, objective};
use grpo_policy::layout::Layout;
use grpo_policy::lora::Lora;
use grpo_policy::model::{self, Block, Rope};
use grpo_policy::weights::{self, Weights};
use grpo_records::batch::{Batch, Row};
use grpo_records::trainer::StepMetrics;
use grpo_trainer::TrainError;
use grpo_trainer::grpo;
use grpo_trainer::sharded::Sharded;
use tch::{Kind, Tensor};

/// Every episode has two rows, and one was cut.
fn turns(step: u32) -> Batch {
    let mut batch = batch(step);
    let more: Vec<Row> = common::batch(step + 100).rows;
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

/// The whole model in one graph.
struct Graph {
    leaves: Vec<Vec<Tensor>>,
}

impl Graph {
    fn new(weights: &Weights) -> Self {
        let leaf = |name: &String, shape: &Vec<usize>| {
            let shape: Vec<i64> = shape.iter().map(|n| *n as i64).collect();
            let values = Tensor::from_slice(&weights[name].values).view(shape.as_slice());
            values.set_requires_grad(true)
        };
        let units = weights::units(&config());
        let leaves = units
            .iter()
            .map(|u| u.tensors.iter().map(|(name, shape)| leaf(name, shape)).collect());
        Self {
            leaves: leaves.collect(),
        }
    }

    /// Logprobs and entropies of tokens 1.., `[n - 1]` each.
    fn scores(&self, row: &Row) -> (Tensor, Tensor) {
        let ids: Vec<i64> = row.tokens.iter().map(|id| i64::from(*id)).collect();
        let (ids, n) = (Tensor::from_slice(&ids).unsqueeze(0), row.tokens.len() as i64);
        let rope = Rope::new(&config(), 64, Kind::Float);
        let mut x = model::embed(&self.leaves[0][0], &ids);
        for block in &self.leaves[1..] {
            x = model::block(&config(), &rope, &Layout::rows(1, n), &Block(block), &x, &mut None);
        }
        let logits = model::head(&config(), &self.leaves[0], &x.squeeze_dim(0).narrow(0, 0, n - 1));
        let logp = (logits / f64::from(row.temperature)).log_softmax(-1, Kind::Float);
        let entropies = -(logp.exp() * &logp).sum_dim_intlist(-1, false, Kind::Float);
        let chosen = logp.gather(-1, &ids.get(0).narrow(0, 1, n - 1).unsqueeze(-1), false);
        (chosen.squeeze_dim(-1), entropies)
    }

    /// Logprob of every token of every row; 0 for the first.
    fn logprobs(&self, rows: &[Row]) -> Vec<Vec<f64>> {
        let one = |row: &Row| {
            let found = Vec::<f32>::try_from(self.scores(row).0.detach()).unwrap();
            std::iter::once(0.0).chain(found.into_iter().map(f64::from)).collect()
        };
        rows.iter().map(one).collect()
    }
}

/// Weights before the batch, of the base, and now.
struct At<'a> {
    start: &'a Weights,
    base: &'a Weights,
    now: &'a Weights,
}

/// A sequence with its name, and row and logprob of each of its tokens.
type Named = (String, Sequence, Vec<(usize, usize)>);

/// Gradient by unit, and loss, of those rows of a batch that `takes`, as the scalar objective has them. Advantages are of the whole batch.
fn expected(batch: &Batch, algorithm: &Algorithm, at: &At<'_>, takes: impl Fn(&Row) -> bool) -> (Vec<Vec<f32>>, f64) {
    let (start, base) = (
        Graph::new(at.start).logprobs(&batch.rows),
        Graph::new(at.base).logprobs(&batch.rows),
    );
    let advantages = match algorithm.kl.as_ref().filter(|kl| kl.placement == KlPlacement::Reward) {
        None => batch_advantages(batch, algorithm, 0).unwrap(),
        Some(kl) => {
            let reward = |row: &Row| {
                let own = batch
                    .rows
                    .iter()
                    .enumerate()
                    .filter(|(_, other)| other.episode == row.episode);
                let old = |number: usize, token: usize| match algorithm.old_logprobs {
                    OldLogprobs::Engine => f64::from(batch.rows[number].logprobs[token]),
                    OldLogprobs::Recompute => start[number][token],
                };
                let tokens = own.flat_map(|(number, row)| {
                    (0..row.tokens.len())
                        .filter(|i| row.mask[*i] == 1)
                        .map(move |i| (number, i))
                });
                let differences: Vec<f64> = tokens.map(|(number, i)| old(number, i) - base[number][i]).collect();
                shaped_reward(f64::from(row.reward), kl, differences.into_iter())
            };
            let rewards: Vec<f64> = batch.rows.iter().map(reward).collect();
            shaped_advantages(batch, &rewards, algorithm, 0).unwrap()
        }
    };
    let graph = Graph::new(at.now);
    let mut sequences: Vec<Named> = Vec::new();
    let mut scores = Vec::new();
    for (number, row) in batch.rows.iter().enumerate() {
        let (logprobs, entropies) = graph.scores(row);
        let new = Vec::<f32>::try_from(logprobs.detach()).unwrap();
        let spread = Vec::<f32>::try_from(entropies.detach()).unwrap();
        scores.push((logprobs, entropies));
        if !takes(row) || advantages.masked[number] {
            continue;
        }
        let name = match algorithm.denominator {
            Denominator::Episode => row.episode.clone(),
            Denominator::Row => number.to_string(),
        };
        let place = sequences
            .iter()
            .position(|(other, ..)| *other == name)
            .unwrap_or_else(|| {
                let advantage = advantages.rows[number].unwrap();
                let sequence = Sequence {
                    advantage,
                    tokens: Vec::new(),
                };
                sequences.push((name, sequence, Vec::new()));
                sequences.len() - 1
            });
        for i in (1..row.tokens.len()).filter(|i| row.mask[*i] == 1) {
            sequences[place].2.push((number, i - 1));
            sequences[place].1.tokens.push(Token {
                new: f64::from(new[i - 1]),
                start: start[number][i],
                engine: f64::from(row.logprobs[i]),
                reference: base[number][i],
                entropy: f64::from(spread[i - 1]),
            });
        }
    }
    let plain: Vec<Sequence> = sequences.iter().map(|(_, sequence, _)| sequence.clone()).collect();
    let found = objective(&plain, algorithm);
    let mut loss = Tensor::from(0.0f32);
    for (gradients, (_, _, places)) in found.gradient.iter().zip(&sequences) {
        for (gradient, (row, i)) in gradients.iter().zip(places) {
            let (logprobs, entropies) = &scores[*row];
            loss += logprobs.get(*i as i64) * gradient.logprob + entropies.get(*i as i64) * gradient.entropy;
        }
    }
    loss.backward();
    let flat = |unit: &Vec<Tensor>| {
        unit.iter()
            .flat_map(|t| Vec::<f32>::try_from(t.grad().reshape([-1])).unwrap())
            .collect()
    };
    (graph.leaves.iter().map(flat).collect(), found.loss)
}

/// Gradients by unit, whole, and rank 0's metrics.
type Taken = (Vec<Vec<f32>>, StepMetrics);

/// Of each of `many`: the last optimizer step's gradient after `act` on every rank. `prepare` is called once; weights are put back in between.
fn taken<T: Sync>(
    world: u32,
    many: &[T],
    prepare: impl Fn(&mut Sharded) + Sync,
    act: impl Fn(&mut Sharded, &T) -> StepMetrics + Sync,
) -> Vec<Taken> {
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
    // The policy is not the base any more.
    let moved = |model: &mut Sharded| {
        model.base_is_here();
        common::steps(model, 3..=4);
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
    let ways = [(1, 4096), (1, 50), (2, 50)];
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
    common::steps(&mut single, 3..=4);
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
            common::steps(model, 3..=4);
        };
        let act = |model: &mut Sharded, _: &()| grpo::step(model, &batch, "batch", &algorithm, 0).unwrap();
        let (found, metrics) = taken(2, &[()], moved, act).remove(0);
        is_near(&found, &wanted, &format!("{old_logprobs:?}"));
        assert!(metrics.kl != 0.0 && metrics.kl_loss == 0.0 && metrics.rows_overlong == 2);
        // Equal rewards are not equal any more.
        assert_eq!(metrics.groups_zero_variance, 0);
    }
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
            // So wide that some sequences' ratios are inside.
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
        let (found, metrics) = taken(2, &[()], |_| (), act).remove(0);
        assert!(metrics.updates == 4 && metrics.ratio_deviation > 1e-3, "{metrics:?}");
        // The three before it by hand: gradients of one graph, stepped by AdamW.
        let mut by_hand = alone();
        for takes in [&first as &dyn Fn(&Row) -> bool, &last, &first] {
            let now = by_hand.weights().unwrap();
            let at = At {
                start: &start,
                base: &start,
                now: &now,
            };
            let (gradients, _) = expected(&whole, &algorithm, &at, takes);
            let gradients: Vec<Tensor> = gradients.iter().map(|unit| Tensor::from_slice(unit)).collect();
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
    // The same policy as whole weights, with the same base beside it.
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
