//! Metrics of a step with several mini-batches, and the work that it skips.

use crate::common::{algorithm, alone, batch, flat, model, ranks, worlds};
use grpo_crds::algorithm::{Algorithm, Kl, OldLogprobs};
use grpo_native::gpu_wait::waits;
use grpo_records::token_stats::{self, CLIPPED, COMPUTED};
use grpo_trainer::grpo;
use grpo_trainer::loss_fn::{LossGrad, Model};
use grpo_trainer::micro_batch::MicroBatch;
use grpo_trainer::packing::{Cost, pack};
use grpo_trainer::sharded::Sharded;

#[test]
fn the_largest_gap_of_a_step_is_found_in_its_last_mini_batch_too() {
    let algorithm = Algorithm {
        mini_batches: 3,
        epochs: 2,
        old_logprobs: OldLogprobs::Recompute,
        ..algorithm()
    };
    let gap = |off: f32| {
        let mut batch = batch(1);
        let row = batch.rows.iter_mut().rfind(|row| row.group == 1).unwrap();
        let last = row.mask.iter().rposition(|mask| *mask == 1).unwrap();
        row.logprobs[last] -= off;
        grpo::step(&mut alone(), &batch, "batch", &algorithm, 0).unwrap()
    };
    let (usual, off) = (gap(0.0), gap(50.0));
    let wider = off.logprob_gap_max - usual.logprob_gap_max;
    assert!(wider > 30.0, "{} {}", usual.logprob_gap_max, off.logprob_gap_max);
}

#[test]
fn the_statistics_of_tokens_are_those_of_the_metrics_whichever_rank_computes_a_token() {
    let algorithm = Algorithm {
        old_logprobs: OldLogprobs::Engine,
        ..algorithm()
    };
    let batch = batch(1);
    let sampled = |row: &grpo_records::batch::Row| -> Vec<f64> {
        let marked = row.mask.iter().zip(&row.logprobs).filter(|(mask, _)| **mask == 1);
        marked.map(|(_, logprob)| f64::from(*logprob)).collect()
    };
    let engine: Vec<f64> = batch.rows.iter().flat_map(sampled).collect();
    for world in worlds([1, 2]) {
        let found = ranks(world, |group| {
            let (metrics, stats) = grpo::recorded_step(&mut model(group), &batch, "batch", &algorithm, 0).unwrap();
            (metrics, stats.file().unwrap())
        });
        assert!(found.iter().all(|(_, file)| *file == found[0].1), "{world} ranks agree");
        let (metrics, file) = &found[0];
        let (rows, columns) = token_stats::decode(file).unwrap();
        assert_eq!((rows.len(), columns.marks.len()), (batch.rows.len(), engine.len()));
        let computed: Vec<usize> = (0..engine.len())
            .filter(|at| columns.marks[*at] & COMPUTED != 0)
            .collect();
        let mean =
            |value: &dyn Fn(usize) -> f64| computed.iter().map(|at| value(*at)).sum::<f64>() / computed.len() as f64;
        let gap = |at: usize| (f64::from(columns.logprobs[at]) - engine[at]).abs();
        let farthest = computed.iter().map(|at| gap(*at)).fold(0.0, f64::max);
        assert!(
            (farthest - metrics.logprob_gap_max).abs() < 1e-4,
            "{farthest} {metrics:?}"
        );
        assert!(
            (mean(&|at| f64::from(columns.entropies[at])) - metrics.entropy).abs() < 1e-4,
            "{metrics:?}"
        );
        let deviation = mean(&|at| (f64::from(columns.ratios[at]) - 1.0).abs());
        assert!(
            (deviation - metrics.ratio_deviation).abs() < 1e-4 * (1.0 + deviation),
            "{deviation} {metrics:?}"
        );
        let clipped = columns.marks.iter().filter(|mark| **mark & CLIPPED != 0).count() as f64;
        assert!(clipped > 0.0 && (clipped / metrics.trained_tokens as f64 - metrics.clip_fraction).abs() < 1e-9);
        // The last group has no advantage, so its tokens are not computed.
        let last = rows.last().unwrap();
        assert_eq!(last.advantage, Some(0.0));
        assert!(
            columns.logprobs[last.from..last.to]
                .iter()
                .all(|logprob| logprob.is_nan())
        );
    }
}

#[test]
fn groups_without_an_advantage_are_not_computed_and_change_no_weight() {
    let nothing: Kl = serde_json::from_str(r#"{"coefficient": 0.0}"#).unwrap();
    let step = |kl: Option<Kl>| {
        let mut model = alone();
        model.base_is_here();
        let algorithm = Algorithm { kl, ..algorithm() };
        let metrics = grpo::step(&mut model, &batch(1), "batch", &algorithm, 0).unwrap();
        (flat(&model.weights().unwrap()), metrics)
    };
    // A divergence needs all rows, although its coefficient is 0 here.
    let ((found, short), (wanted, whole)) = (step(None), step(Some(nothing)));
    assert_eq!(
        (short.groups_zero_variance, short.trained_tokens),
        (1, whole.trained_tokens)
    );
    assert!(found.iter().zip(&wanted).all(|(a, b)| (a - b).abs() < 1e-6));
    assert!((short.loss - whole.loss).abs() < 1e-6, "{} {}", short.loss, whole.loss);
    assert!((short.clip_fraction - whole.clip_fraction).abs() < 1e-12, "{short:?}");
    assert!(short.unique_tokens < whole.unique_tokens, "{short:?}");
    assert!(short.model_flops < 0.8 * whole.model_flops, "{short:?}");
}

#[test]
fn a_step_in_which_no_group_has_an_advantage_is_a_step_that_computes_nothing() {
    let mut batch = batch(1);
    batch.rows.retain(|row| row.group == 2);
    for world in worlds([1, 2]) {
        for metrics in ranks(world, |group| {
            grpo::step(&mut model(group), &batch, "batch", &algorithm(), 0).unwrap()
        }) {
            assert_eq!((metrics.updates, metrics.unique_tokens), (1, 0));
            assert_eq!(
                (metrics.loss, metrics.gradient_norm, metrics.model_flops),
                (0.0, 0.0, 0.0)
            );
            assert!(metrics.trained_tokens > 0);
        }
    }
}

/// Each wait empties the GPU's queue.
#[test]
fn the_host_waits_for_a_gpu_once_for_each_chunk_of_the_head_and_once_for_the_norm() {
    let (rows, _) = grpo::prepare(&batch(1), "batch", &algorithm(), 0, None).unwrap();
    for (budget, kept, chunk) in [
        (4096, true, 4096),
        (4096, false, 4096),
        (64, true, 4096),
        (64, false, 4096),
        (4096, true, 7),
    ] {
        let mut model = alone();
        model.head_logits = chunk * model.config.vocab_size;
        if !kept {
            model.activation_bytes = 0;
        }
        let packing = pack(&rows, budget, 1, &Cost::of(&model.config));
        let packs = packing.ranks[0].iter();
        let batches: Vec<MicroBatch> = packs.map(|pack| model.micro_batch(pack, &rows).unwrap()).collect();
        assert_eq!(batches.len() > 2, budget == 64);
        let before = waits();
        let (gradients, _) = model
            .gradients(&batches, &mut |batch, logprobs, _| {
                LossGrad::weighted(vec![1e-3; batch.trained.len()], logprobs)
            })
            .unwrap();
        model.update(&gradients, 1e-3, &grpo::optimizer(&algorithm())).unwrap();
        let chunks: usize = batches.iter().map(|batch| batch.trained.len().div_ceil(chunk)).sum();
        assert_eq!(
            waits() - before,
            chunks as u64 + 1,
            "{budget} tokens, kept: {kept}, chunks of {chunk}"
        );
    }
}

#[test]
fn what_is_observed_passes_in_waves_too_and_is_the_same() {
    if worlds([2]).is_empty() {
        return;
    }
    let (rows, _) = grpo::prepare(&batch(1), "batch", &algorithm(), 0, None).unwrap();
    let entered = |model: &Sharded| {
        let rank = model.group.rank() as usize;
        let all = model
            .group
            .watch()
            .positions(std::time::Duration::from_secs(60))
            .unwrap();
        all[rank].as_ref().unwrap().number
    };
    let observed = |waves: usize| {
        ranks(2, |group| {
            let rank = group.rank() as usize;
            let packing = pack(&rows, 32, 2, &Cost::of(&crate::common::config()));
            let mine = packing.ranks[rank].iter();
            let batches: Vec<MicroBatch> = mine.map(|pack| MicroBatch::packed(pack, &rows).unwrap()).collect();
            assert!(batches.len() > 3, "{} micro-batches", batches.len());
            let mut model = model(group);
            model.input_bytes = model.input_bytes_of(&batches) / waves;
            let before = entered(&model);
            let mut said = Vec::new();
            let note = &mut |at: usize, piece: &MicroBatch, logprobs: &[f64], entropies: &[f64]| {
                said.push((at, piece.trained.clone(), logprobs.to_vec(), entropies.to_vec()));
            };
            let all: Vec<&MicroBatch> = batches.iter().collect();
            model.observe(Model::Policy, &all, note).unwrap();
            (said, entered(&model) - before)
        })
    };
    for (one, several) in observed(1).iter().zip(&observed(3)) {
        assert_eq!(one.0, several.0);
        // Each wave gathers the units anew.
        assert!(several.1 >= 2 * one.1, "{} {}", one.1, several.1);
    }
}
