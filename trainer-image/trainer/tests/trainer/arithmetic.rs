//! Compares breadth-first sharded steps with plain autograd and the objective's scalar formulas.

use crate::common::graph::Graph;
use crate::common::{algorithm, alone, batch, config, flat, model, ranks, steps, tested, worlds};
use grpo_crds::algorithm::{Algorithm, OldLogprobs};
use grpo_model::weights;
use grpo_native::attention::computed_passes;
use grpo_objective::advantage::batch_advantages;
use grpo_objective::loss::{token_loss, token_weights};
use grpo_trainer::finetune::{self, FinetuneSettings};
use grpo_trainer::flops::{Forward, Work};
use grpo_trainer::grpo;
use grpo_trainer::loss_fn::{LossGrad, LossOver};
use grpo_trainer::micro_batch::MicroBatch;
use grpo_trainer::mini_batch::{MiniBatch, cut, leave_out_what_adds_nothing};
use grpo_trainer::packing::{Cost, pack};
use grpo_trainer::sharded::Sharded;
use grpo_trainer::train_row::TrainRow;
use tch::{Kind, Tensor};

/// |a - b| / |b|.
fn distance(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len());
    let norm = |x: &mut dyn Iterator<Item = f64>| x.map(|v| v * v).sum::<f64>().sqrt();
    norm(&mut a.iter().zip(b).map(|(a, b)| f64::from(a - b))) / norm(&mut b.iter().map(|b| f64::from(*b)))
}

#[test]
fn two_ranks_step_as_one_does() {
    if worlds([2]).is_empty() {
        return;
    }
    let mut single = alone();
    steps(&mut single, 1..=3);
    let expected = flat(&single.weights().unwrap());
    assert!(
        distance(&expected, &flat(&alone().weights().unwrap())) > 1e-3,
        "the steps did nothing"
    );
    for weights in ranks(2, |group| {
        let mut model = model(group);
        steps(&mut model, 1..=3);
        flat(&model.weights().unwrap())
    }) {
        assert!(
            distance(&weights, &expected) < 1e-5,
            "{:e}",
            distance(&weights, &expected)
        );
    }
}

#[test]
fn breadth_first_gradients_are_those_of_one_graph() {
    let (rows, _) = grpo::prepare(&batch(1), "batch", &algorithm(), 0, None).unwrap();
    let graph = Graph::new(&alone().weights().unwrap());
    let mut loss = Tensor::from(0.0f32);
    for row in &rows {
        let weights = Tensor::from_slice(&row.weights[1..]) * row.advantage;
        loss += (graph.scores(&row.tokens, row.temperature).0 * weights).sum(Kind::Float);
    }
    loss.backward();
    let expected = graph.gradients();

    // Five ranks: most units do not divide evenly.
    for world in worlds([1, 2, 5]) {
        for way in WAYS {
            let whole = gradients_of(&rows, world, way);
            for (unit, expected) in expected.iter().enumerate() {
                let apart = distance(&whole[unit][..expected.len()], expected);
                assert!(apart < 1e-5, "unit {unit} at world {world}, {way:?}: {apart:e}");
            }
        }
    }
}

/// How gradients are computed.
#[derive(Clone, Copy, Debug)]
struct Way {
    packed: bool,
    kept: bool,
    over: LossOver,
    /// Unique tokens of a pack.
    budget: usize,
}

const WAYS: [Way; 4] = [
    Way {
        packed: false,
        kept: false,
        over: LossOver::Tokens,
        budget: 0,
    },
    Way {
        packed: true,
        kept: false,
        over: LossOver::Tokens,
        budget: 100,
    },
    Way {
        packed: true,
        kept: true,
        over: LossOver::Tokens,
        budget: 100,
    },
    Way {
        packed: true,
        kept: true,
        over: LossOver::Batches,
        budget: 1000,
    },
];

/// The summed `advantage * weight * logprob`.
fn weighted(batch: &MicroBatch, rows: &[TrainRow], logprobs: &[f64]) -> LossGrad {
    let weight = |&(row, token): &(usize, usize)| rows[row].advantage * f64::from(rows[row].weights[token]);
    let weights: Vec<f64> = batch.trained.iter().map(weight).collect();
    LossGrad::weighted(weights, logprobs)
}

/// Whole gradients of the summed `advantage * weight * logprob` by unit, with padding, then the loss.
fn gradients_of(rows: &[TrainRow], world: u32, way: Way) -> Vec<Vec<f32>> {
    let parts = ranks(world, |group| {
        let rank = group.rank() as usize;
        let batches: Vec<MicroBatch> = if way.packed {
            let packing = pack(rows, way.budget, world as usize, &Cost::of(&config()));
            let mine = &packing.ranks[rank];
            mine.iter()
                .map(|pack| MicroBatch::packed(pack, rows).unwrap())
                .collect()
        } else {
            let chunks = rows.chunks(2).enumerate().skip(rank).step_by(world as usize);
            chunks.map(|(at, rows)| MicroBatch::padded(rows, 2 * at)).collect()
        };
        let send = |batch: MicroBatch| batch.to_device(tested().device).unwrap();
        let batches: Vec<MicroBatch> = batches.into_iter().map(send).collect();
        let mut model = model(group);
        // Pieces of seven tokens; the reference graph has them all in one.
        model.head_logits = 7 * 64;
        model.activation_bytes = if way.kept { usize::MAX } else { 0 };
        model.loss_over = way.over;
        let loss = &mut |batch: &MicroBatch, logprobs: &[f64], _: &[f64]| weighted(batch, rows, logprobs);
        let (gradients, loss) = model.gradients(&batches, loss).unwrap();
        let mut parts: Vec<Vec<f32>> = gradients.iter().map(|g| Vec::<f32>::try_from(g).unwrap()).collect();
        parts.push(vec![model.sum(&[loss]).unwrap()[0] as f32]);
        parts
    });
    (0..parts[0].len())
        .map(|unit| parts.iter().flat_map(|part| part[unit].clone()).collect())
        .collect()
}

/// Rows of `episodes` episodes of one prompt, one per turn, each with its whole history or with all but its last
/// `window` turns cut short.
fn turn_rows(episodes: u32, turns: u32, window: Option<u32>) -> Vec<TrainRow> {
    let token = |episode: u32, turn: u32, i: u32| (7 + episode * 13 + turn * 5 + i * i * 3) % 64;
    let mut rows = Vec::new();
    for episode in 0..episodes {
        for turn in 0..turns {
            let mut tokens: Vec<u32> = (0..9).map(|i| (i * i) % 64).collect();
            for past in 0..=turn {
                let length = if window.is_some_and(|window| past + window <= turn) {
                    2
                } else {
                    5
                };
                tokens.extend((0..length).map(|i| token(episode, past, i)));
            }
            let n = tokens.len();
            rows.push(TrainRow {
                weights: (0..n)
                    .map(|i| if i + 3 >= n { 0.5 + i as f32 / 64.0 } else { 0.0 })
                    .collect(),
                rollout_logprobs: vec![-4.0; n],
                advantage: f64::from(episode) - 0.7 + f64::from(turn) * 0.1,
                temperature: 0.7 + 0.2 * episode as f32,
                tokens,
                ..Default::default()
            });
        }
    }
    rows
}

#[test]
fn packed_turns_have_the_gradients_and_the_loss_of_unpacked_ones_on_one_and_two_ranks() {
    for window in [None, Some(2)] {
        let rows = turn_rows(3, 8, window);
        let expected = gradients_of(&rows, 1, WAYS[0]);
        let packing = pack(&rows, 1000, 1, &Cost::of(&config()));
        assert!(
            packing.unique_tokens * 2 < packing.row_tokens,
            "{window:?}: nothing is shared"
        );
        for world in worlds([1, 2]) {
            for way in WAYS {
                let got = gradients_of(&rows, world, way);
                for (unit, (got, expected)) in got.iter().zip(&expected).enumerate() {
                    // Every rank appends the loss; the unit's padding is zero.
                    let got = &got[..expected.len()];
                    let apart = distance(got, expected);
                    assert!(
                        apart < 1e-5,
                        "{window:?}, {way:?}, unit {unit} at world {world}: {apart:e}"
                    );
                }
            }
        }
    }
}

#[test]
fn keeping_activations_and_computing_them_again_give_the_same_bits() {
    let rows = turn_rows(2, 5, Some(2));
    assert_eq!(gradients_of(&rows, 1, WAYS[1]), gradients_of(&rows, 1, WAYS[2]));
    let batches = [MicroBatch::padded(&rows, 0).to_device(tested().device).unwrap()];
    let mut model: Sharded = alone();
    let least = model.kept_bytes(&batches);
    model.activation_bytes = least - 1;
    let loss = &mut |batch: &MicroBatch, logprobs: &[f64], entropies: &[f64]| LossGrad {
        // Entropies flow back too.
        entropies: vec![-0.1; entropies.len()],
        ..weighted(batch, &rows, logprobs)
    };
    let (streamed, _) = model.gradients(&batches, loss).unwrap();
    model.activation_bytes = least;
    let (kept, _) = model.gradients(&batches, loss).unwrap();
    assert!(streamed.iter().zip(&kept).all(|(a, b)| a.equal(b)));
}

#[test]
fn attention_that_is_kept_in_some_layers_or_all_is_not_computed_again_and_gives_the_same_bits() {
    let rows = turn_rows(2, 5, Some(2));
    let batches = [MicroBatch::padded(&rows, 0).to_device(tested().device).unwrap()];
    let mut model: Sharded = alone();
    model.activation_bytes = 0;
    let each = model.attended_bytes(&batches);
    let mut gradients = |layers: usize| {
        model.attention_bytes = layers * each;
        let before = computed_passes();
        let loss = &mut |batch: &MicroBatch, logprobs: &[f64], _: &[f64]| weighted(batch, &rows, logprobs);
        let (gradients, _) = model.gradients(&batches, loss).unwrap();
        (gradients, computed_passes() - before)
    };
    let (wanted, all) = gradients(0);
    assert_eq!(all, 4, "two layers, forward and again in backward");
    for layers in [1, 2, 9] {
        let (found, passes) = gradients(layers);
        assert_eq!(passes, all - layers.min(2) as u64, "{layers} layers are kept");
        assert!(found.iter().zip(&wanted).all(|(a, b)| a.equal(b)), "{layers} layers");
    }
}

#[test]
fn waves_of_micro_batches_keep_no_more_inputs_than_their_budget_and_have_the_gradients_of_one_wave() {
    let rows = turn_rows(6, 8, Some(2));
    let gradients = |world: u32, waves: bool| {
        ranks(world, |group| {
            let rank = group.rank() as usize;
            let packing = pack(&rows, 32, world as usize, &Cost::of(&config()));
            let mine = packing.ranks[rank].iter();
            let mut model = model(group);
            let batches = mine.map(|pack| model.micro_batch(pack, &rows).unwrap());
            let batches: Vec<MicroBatch> = batches.collect();
            model.activation_bytes = 0;
            let all = model.input_bytes_of(&batches);
            // Ranks need different numbers of waves: all make the same number.
            model.input_bytes = match (waves, rank) {
                (true, 0) => all / 3,
                (true, _) => all / 2,
                (false, _) => all,
            };
            let mut order = Vec::new();
            let loss = &mut |batch: &MicroBatch, logprobs: &[f64], _: &[f64]| {
                order.extend(batch.trained.iter().copied());
                weighted(batch, &rows, logprobs)
            };
            let (gradients, loss) = model.gradients(&batches, loss).unwrap();
            assert!(batches.len() > 3, "{} micro-batches", batches.len());
            let wanted = batches.iter().flat_map(|batch| batch.trained.iter().copied());
            assert_eq!(order, wanted.collect::<Vec<_>>());
            let parts = gradients.iter().map(|part| Vec::<f32>::try_from(part).unwrap());
            (parts.collect::<Vec<_>>(), loss)
        })
    };
    for world in worlds([1, 2]) {
        for (one, several) in gradients(world, false).iter().zip(&gradients(world, true)) {
            assert!((one.1 - several.1).abs() < 1e-9, "{} {}", one.1, several.1);
            for (unit, (one, several)) in one.0.iter().zip(&several.0).enumerate() {
                let apart = distance(several, one);
                assert!(apart < 1e-5, "unit {unit} at world {world}: {apart:e}");
            }
        }
    }
}

#[test]
fn only_the_rank_that_publishes_makes_whole_units_of_what_all_ranks_send() {
    let given = ranks(2, |group| {
        let model = model(group);
        let units = 0..model.shards.len();
        let whole = units.filter_map(|index| model.published_unit(false, index).unwrap());
        let whole: Vec<_> = whole.flat_map(|(_, tensors)| tensors).collect();
        whole.iter().map(|tensor| tensor.numel()).sum::<usize>()
    });
    let all: usize = weights::units(&config()).iter().map(|unit| unit.numel()).sum();
    assert_eq!(given, [all, 0]);
}

#[test]
fn a_step_reports_the_weighted_sum_of_the_objectives_losses() {
    let (batch, algorithm) = (batch(1), algorithm());
    let mut model = alone();
    let new = Graph::new(&model.weights().unwrap()).logprobs(&batch.rows);
    let advantages = batch_advantages(&batch, &algorithm, 0).unwrap();
    let tokens: Vec<u64> = batch
        .rows
        .iter()
        .map(|row| row.mask.iter().map(|m| u64::from(*m)).sum())
        .collect();
    let weights = token_weights(&tokens, algorithm.aggregation);
    let (mut loss, mut clipped, mut entries) = (0.0, 0.0, 0.0);
    for (at, row) in batch.rows.iter().enumerate() {
        for i in (1..row.tokens.len()).filter(|i| row.mask[*i] == 1) {
            let advantage = advantages.rows[at].unwrap();
            let token = token_loss(new[at][i], f64::from(row.logprobs[i]), advantage, &algorithm.clip);
            loss += weights[at] * token.loss;
            clipped += f64::from(u8::from(token.clipped));
            entries += 1.0;
        }
    }
    let metrics = grpo::step(&mut model, &batch, "batch", &algorithm, 0).unwrap();
    assert!(
        (metrics.loss - loss).abs() < 1e-5 * (1.0 + loss.abs()),
        "{} {loss}",
        metrics.loss
    );
    assert!(
        (metrics.clip_fraction - clipped / entries).abs() < 1e-9 && clipped > 10.0,
        "{}",
        metrics.clip_fraction
    );
    assert_eq!((metrics.groups, metrics.groups_zero_variance), (3, 1));
}

#[test]
fn a_step_counts_what_it_asks_of_the_model_and_nothing_that_is_computed_again() {
    let (batch, forward) = (batch(1), Forward::of(&config()));
    let works = |algorithm: &Algorithm| -> Vec<Work> {
        let (rows, _) = grpo::prepare(&batch, "batch", algorithm, 0, None).unwrap();
        let parts = cut(rows, algorithm.mini_batches).into_iter();
        parts
            .map(|mut rows| {
                leave_out_what_adds_nothing(&mut rows, algorithm);
                MiniBatch::new(rows, &alone()).unwrap().packing.work()
            })
            .collect()
    };
    let close = |found: f64, wanted: f64| assert!((found / wanted - 1.0).abs() < 1e-12, "{found} {wanted}");
    let plain = algorithm();
    let once = forward.training(&works(&plain)[0]);
    for kept in [0, usize::MAX] {
        let mut model = alone();
        model.activation_bytes = kept;
        let metrics = grpo::step(&mut model, &batch, "batch", &plain, 0).unwrap();
        close(metrics.model_flops, once);
    }
    // Two epochs of two mini-batches, after the logprobs of the base model and the policy.
    let much = Algorithm {
        mini_batches: 2,
        epochs: 2,
        old_logprobs: OldLogprobs::Recompute,
        kl: Some(serde_json::from_str("{}").unwrap()),
        ..plain
    };
    let mut model = alone();
    model.base_is_here();
    let metrics = grpo::step(&mut model, &batch, "batch", &much, 0).unwrap();
    let wanted = works(&much)
        .into_iter()
        .map(|work| 2.0 * forward.looking(&work) + 2.0 * forward.training(&work));
    close(metrics.model_flops, wanted.sum());
}

#[test]
fn a_warm_start_learns_what_repeats() {
    let row = |begin: u32| {
        let tokens: Vec<u32> = (0..40).map(|i| (begin + 3 * i) % 64).collect();
        let weights = vec![1.0; tokens.len()];
        TrainRow {
            tokens,
            weights,
            temperature: 1.0,
            ..Default::default()
        }
    };
    let rows: Vec<TrainRow> = (0..32).map(row).collect();
    let settings = FinetuneSettings {
        tokens: 60_000,
        step_tokens: 500,
        warmup_steps: 10,
        ..FinetuneSettings::default()
    };
    let report = finetune::train(&mut alone(), &rows, &settings, |_, _, _, _| ()).unwrap();
    assert!(report.first_loss > 3.5 && report.last_loss < 0.2, "{report:?}");
}
