//! Router replay: tokens go through the recorded experts, on every rank and in every pack. The trainer refuses a
//! record that it cannot use.

use std::path::Path;

use crate::common::{algorithm, batch, family_config, flat, ranks, silenced};
use grpo_crds::algorithm::{Algorithm, OldLogprobs};
use grpo_model::Config;
use grpo_native::{Group, Rendezvous};
use grpo_records::{Batch, ExpertsSpan, RunStore};
use grpo_trainer::TrainError;
use grpo_trainer::grpo;
use grpo_trainer::initial::initial_weights;
use grpo_trainer::loss_fn::{LossGrad, Model};
use grpo_trainer::micro_batch::MicroBatch;
use grpo_trainer::mini_batch::MiniBatch;
use grpo_trainer::sharded::Sharded;
use grpo_trainer::state::sha256;
use grpo_trainer::train_row::TrainRow;
use tch::{Kind, Tensor};

/// Two layers; the second has five experts, two per token.
fn config() -> Config {
    family_config("qwen3_moe")
}

fn mixture(group: Group) -> Sharded {
    Sharded::new(config(), group, &initial_weights(&config(), 5)).unwrap()
}

fn alone() -> Sharded {
    mixture(Group::join(&Rendezvous::alone()).unwrap())
}

/// An engine's choice: arbitrary, but equal for tokens with the same history.
fn chosen(tokens: &[u32]) -> [u8; 2] {
    let sum = tokens
        .iter()
        .fold(7u32, |sum, token| sum.wrapping_mul(31).wrapping_add(*token));
    let first = (sum >> 4) % 5;
    [first as u8, ((first + 1 + (sum >> 9) % 4) % 5) as u8]
}

/// Writes the record of some of a row's tokens, each part into a file.
fn record(root: &Path, name: &str, tokens: &[u32], parts: &[(usize, usize)]) -> Vec<ExpertsSpan> {
    let span = |(part, (from, to)): (usize, &(usize, usize))| {
        let (from, to) = (*from, *to);
        let bytes: Vec<u8> = (from..to).flat_map(|at| chosen(&tokens[..=at])).collect();
        let file = format!("{name}-{part}.experts");
        std::fs::write(root.join(&file), &bytes).unwrap();
        let sha256 = sha256(&bytes);
        ExpertsSpan { from, to, file, sha256 }
    };
    parts.iter().enumerate().map(span).collect()
}

/// A batch with recorded experts in a store at `root`: for all tokens except one, and except the last, which no engine
/// computes.
fn recorded(root: &Path, step: u32) -> Batch {
    let mut batch = batch(step);
    for row in &mut batch.rows {
        let (gap, end) = (row.tokens.len() / 2, row.tokens.len() - 1);
        let name = format!("{step}-{}", row.episode);
        row.experts = record(root, &name, &row.tokens, &[(0, gap), (gap + 1, end)]);
    }
    batch
}

/// Recorded tokens of each of [`rows`]. For shared tokens any row's record may be used.
const KNOWN: usize = 4;

/// Rows with a common prefix, and one without it.
fn rows(root: &Path) -> Vec<TrainRow> {
    let texts: [&[u32]; 4] = [
        &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10],
        &[1, 2, 3, 4, 5, 6, 17, 18],
        &[1, 2, 3, 24, 25, 26, 27, 28, 29],
        &[40, 41, 42, 43, 44, 45],
    ];
    let row = |(at, tokens): (usize, &&[u32])| TrainRow {
        tokens: tokens.to_vec(),
        weights: (0..tokens.len()).map(|i| f32::from(u8::from(i > 2))).collect(),
        temperature: 1.0,
        experts: record(root, &at.to_string(), tokens, &[(0, KNOWN)]),
        ..Default::default()
    };
    texts.iter().enumerate().map(row).collect()
}

/// Gradients of a weighted sum of logprobs.
fn gradients(model: &Sharded, batches: &[MicroBatch]) -> Vec<Vec<f64>> {
    let mut loss = |batch: &MicroBatch, logprobs: &[f64], _: &[f64]| {
        let weight = |(row, token): &(usize, usize)| ((row * 7 + token * 3) % 5) as f64 - 1.5;
        LossGrad::weighted(batch.trained.iter().map(weight).collect(), logprobs)
    };
    let (gradients, _) = model.gradients(batches, &mut loss).unwrap();
    let numbers = |unit: Tensor| Vec::<f64>::try_from(unit.to_kind(Kind::Double)).unwrap();
    gradients.into_iter().map(numbers).collect()
}

fn distance(a: &[Vec<f64>], b: &[Vec<f64>]) -> f64 {
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|x| x * x).sum::<f64>().sqrt();
    let pairs = || a.iter().flatten().zip(b.iter().flatten());
    norm(&mut pairs().map(|(a, b)| a - b)) / norm(&mut pairs().map(|(_, b)| *b))
}

#[test]
fn what_is_packed_goes_through_the_experts_that_each_row_s_tokens_went_through() {
    let folder = tempfile::tempdir().unwrap();
    let rows = rows(folder.path());
    // Without packing, and with the experts given directly.
    let mut padded = MicroBatch::padded(&rows, 0);
    let t = padded.ids.size()[1] as usize;
    let mut experts = vec![-1i64; rows.len() * t * 2];
    for (at, row) in rows.iter().enumerate() {
        for token in 0..KNOWN {
            let place = (at * t + token) * 2;
            for (expert, chosen) in experts[place..place + 2].iter_mut().zip(chosen(&row.tokens[..=token])) {
                *expert = i64::from(chosen);
            }
        }
    }
    let experts = Tensor::from_slice(&experts).view([rows.len() as i64, t as i64, 2]);
    padded.experts = vec![None, Some(experts)];
    let model = alone();
    let wanted = gradients(&model, &[padded]);

    for (budget, kept) in [(4096, true), (4096, false), (5, true), (5, false)] {
        let mut model = alone();
        model.replays = Some(RunStore::existing(folder.path()).unwrap());
        model.micro_batch_tokens = budget;
        if !kept {
            model.activation_bytes = 0;
        }
        let mini_batch = MiniBatch::new(rows.clone(), &model).unwrap();
        let apart = distance(&gradients(&model, &mini_batch.batches), &wanted);
        assert!(apart < 1e-5, "budget {budget}, kept {kept}: {apart:e}");
        model.replays = None;
        let free = MiniBatch::new(rows.clone(), &model).unwrap();
        let apart = distance(&gradients(&model, &free.batches), &wanted);
        assert!(apart > 1e-2, "the records make no difference: {apart:e}");
    }
}

fn stepped(model: &mut Sharded, root: &Path, algorithm: &Algorithm) -> Vec<f32> {
    model.replays = Some(RunStore::existing(root).unwrap());
    for step in 1..=2 {
        grpo::step(model, &recorded(root, step), "batch", algorithm, 0).unwrap();
    }
    flat(&model.weights().unwrap())
}

#[test]
fn two_ranks_repeat_an_engine_s_choices_as_one_does_and_old_logprobs_are_of_the_same_experts() {
    let folder = tempfile::tempdir().unwrap();
    let wanted = stepped(&mut alone(), folder.path(), &algorithm());
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let found = ranks(2, |group| {
        let root = folders[group.rank() as usize].path();
        stepped(&mut mixture(group), root, &algorithm())
    });
    let norm = |values: &mut dyn Iterator<Item = f32>| values.map(|x| f64::from(x * x)).sum::<f64>().sqrt();
    for found in found {
        let apart = norm(&mut found.iter().zip(&wanted).map(|(a, b)| a - b)) / norm(&mut wanted.iter().copied());
        assert!(apart < 1e-5, "{apart:e}");
    }
    let mut model = alone();
    model.replays = Some(RunStore::existing(folder.path()).unwrap());
    let still = Algorithm {
        old_logprobs: OldLogprobs::Recompute,
        mini_batches: 2,
        learning_rate: 0.0,
        ..algorithm()
    };
    let metrics = grpo::step(&mut model, &recorded(folder.path(), 1), "batch", &still, 0).unwrap();
    assert!(
        metrics.updates == 2 && metrics.ratio_deviation.abs() < 1e-5,
        "{metrics:?}"
    );
}

#[test]
fn the_base_model_goes_its_own_way() {
    let folder = tempfile::tempdir().unwrap();
    let rows = rows(folder.path());
    let mut model = alone();
    model.base_is_here();
    model.replays = Some(RunStore::existing(folder.path()).unwrap());
    let said = |model: &Sharded, which: Model| {
        let mini_batch = MiniBatch::new(rows.clone(), model).unwrap();
        let mut all = Vec::new();
        let batches: Vec<&MicroBatch> = mini_batch.batches.iter().collect();
        let mut note = |_: usize, _: &MicroBatch, logprobs: &[f64], _: &[f64]| all.extend_from_slice(logprobs);
        model.observe(which, &batches, &mut note).unwrap();
        all
    };
    let (base, policy) = (said(&model, Model::Base), said(&model, Model::Policy));
    model.replays = None;
    assert_eq!(base, said(&model, Model::Policy));
    assert_ne!(base, policy);
}

#[test]
fn a_record_that_cannot_be_used_is_refused_by_its_name_and_weights_stay_as_they_were() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let mut model = alone();
    model.replays = Some(RunStore::existing(root).unwrap());
    let before = flat(&model.weights().unwrap());
    let mut refused = |spoil: &dyn Fn(&mut ExpertsSpan, &Path), words: &[&str]| {
        let mut batch = recorded(root, 1);
        let span = &mut batch.rows[0].experts[1];
        let file = root.join(&span.file);
        spoil(span, &file);
        let error = grpo::step(&mut model, &batch, "batch", &algorithm(), 0).unwrap_err();
        assert!(error.is_refusal(), "{error}");
        for word in words {
            assert!(error.to_string().contains(word), "{word}: {error}");
        }
    };
    let rewritten = |span: &mut ExpertsSpan, file: &Path, change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = std::fs::read(file).unwrap();
        change(&mut bytes);
        std::fs::write(file, &bytes).unwrap();
        span.sha256 = sha256(&bytes);
    };
    refused(
        &|_, file| std::fs::remove_file(file).unwrap(),
        &["experts", "not in the store"],
    );
    refused(
        &|span, file| rewritten(span, file, &|bytes| bytes.truncate(bytes.len() - 1)),
        &["bytes, but it has"],
    );
    refused(
        &|_, file| {
            std::fs::write(
                file,
                std::fs::read(file).unwrap().iter().map(|b| 4 - b).collect::<Vec<u8>>(),
            )
            .unwrap()
        },
        &["sha256"],
    );
    refused(
        &|span, file| rewritten(span, file, &|bytes| bytes[3] = 5),
        &["no expert 5 of 5"],
    );
    refused(
        &|span, file| rewritten(span, file, &|bytes| bytes[3] = bytes[2]),
        &["twice"],
    );
    refused(&|span, _| span.file.insert_str(0, "../"), &["below the run's store"]);
    refused(&|span, _| span.to += 40, &["out of order, empty or beyond"]);
    let mut silent = recorded(root, 1);
    silent.rows[2].experts.clear();
    let error = grpo::step(&mut model, &silent, "batch", &algorithm(), 0).unwrap_err();
    assert!(
        error.is_refusal() && error.to_string().contains("routerReplay: false"),
        "{error}"
    );
    assert_eq!(flat(&model.weights().unwrap()), before);
}

#[test]
fn a_record_that_the_store_does_not_return_now_refuses_no_batch() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let mut model = alone();
    model.replays = Some(RunStore::existing(root).unwrap());
    let before = flat(&model.weights().unwrap());
    let batch = recorded(root, 1);
    let file = &batch.rows[0].experts[0].file;
    let error = silenced(&root.join(file), || {
        grpo::step(&mut model, &batch, "batch", &algorithm(), 0).unwrap_err()
    });
    let message = error.to_string();
    assert!(error.is_unread() && !error.is_refusal(), "{message}");
    assert!(message.contains(file.as_str()), "{message}");
    assert_eq!(flat(&model.weights().unwrap()), before);
    grpo::step(&mut model, &batch, "batch", &algorithm(), 0).unwrap();
}

/// Otherwise the other ranks would wait for it in their next exchange.
#[test]
fn a_record_that_one_rank_cannot_read_is_refused_by_all() {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let errors: Vec<TrainError> = ranks(2, |group| {
        let root = folders[group.rank() as usize].path();
        let batch = recorded(root, 1);
        if group.rank() == 1 {
            for row in &batch.rows {
                std::fs::remove_file(root.join(&row.experts[0].file)).unwrap();
            }
        }
        let mut model = mixture(group);
        model.replays = Some(RunStore::existing(root).unwrap());
        let error = grpo::step(&mut model, &batch, "batch", &algorithm(), 0).unwrap_err();
        model.group.barrier().unwrap();
        error
    });
    assert!(errors.iter().all(TrainError::is_refusal), "{errors:?}");
    assert!(errors[0].to_string().contains("of the ranks"), "{errors:?}");
}
