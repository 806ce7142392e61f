//! Peak memory of a rank's tensors in operations that could easily need much more.
//!
//! A separate binary: the counter of libtorch's allocator is per process, so tests run one at a time.

#![allow(clippy::unwrap_used)]

use std::sync::{Mutex, MutexGuard, PoisonError};

use grpo_model::Config;
use grpo_model::lora::Lora;
use grpo_model::weights::{self, Source};
use grpo_native::memory;
use grpo_native::{Group, Rendezvous};
use grpo_trainer::compute::{Compute, Precision};
use grpo_trainer::initial::initial_weights;
use grpo_trainer::sharded::Sharded;
use grpo_trainer::state::{Form, TrainerStore, Written};

/// Counts only this test's tensors.
fn counted() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    let guard = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    memory::count();
    guard
}

/// Most bytes that tensors take during `work`, beyond those before it.
fn peak<T>(work: impl FnOnce() -> T) -> (u64, T) {
    let before = memory::now();
    memory::reset_peak();
    let done = work();
    (memory::peak() - before, done)
}

/// Most bytes of the process during `work`, beyond those before it, memory outside of tensors included.
fn resident_peak<T>(work: impl FnOnce() -> T) -> (u64, T) {
    let bytes = |name: &str| -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        1024 * line.split_whitespace().next().unwrap().parse::<u64>().unwrap()
    };
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
    let before = bytes("VmRSS:");
    let done = work();
    (bytes("VmHWM:").saturating_sub(before), done)
}

/// Many blocks, which have most of the values.
fn config() -> Config {
    sized(64)
}

fn sized(hidden: u64) -> Config {
    let json = serde_json::json!({
        "model_type": "qwen3", "vocab_size": 64, "hidden_size": hidden, "intermediate_size": 192, "num_hidden_layers": 12,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "rms_norm_eps": 1e-6, "rope_theta": 1e4,
        "max_position_embeddings": 64, "tie_word_embeddings": true
    });
    Config::parse(json.to_string().as_bytes(), "config.json").unwrap()
}

fn alone() -> Group {
    Group::join(&Rendezvous::alone()).unwrap()
}

/// A model directory, values of the whole model, and of its largest unit.
fn model() -> (tempfile::TempDir, u64, u64) {
    let folder = tempfile::tempdir().unwrap();
    let bytes = weights::to_safetensors(&initial_weights(&config(), 5)).unwrap();
    std::fs::write(folder.path().join("model.safetensors"), bytes).unwrap();
    let sizes: Vec<u64> = weights::units(&config())
        .iter()
        .map(|unit| unit.numel() as u64)
        .collect();
    (folder, sizes.iter().sum(), sizes.iter().copied().max().unwrap())
}

/// Masters and moments for a frozen model of `n` values in bf16 would waste `8 * n` bytes.
#[test]
fn a_model_beside_an_adapter_is_read_in_the_precision_of_its_blocks_without_masters_and_moments() {
    let _guard = counted();
    let (folder, values, unit) = model();
    let source = Source::open(folder.path(), &config()).unwrap();
    let compute = Compute {
        precision: Precision::Bf16,
        ..Compute::default()
    };
    let lora = Lora::new(2, 4.0, &["q_proj".to_owned()]).unwrap();
    let (most, read) = peak(|| Sharded::read_frozen(config(), alone(), &source, &compute, lora.clone(), 3).unwrap());
    // A unit's part during the read, and the adapter with tables of angles.
    let others = 1 << 17;
    assert!(most < 2 * values + 4 * unit + others, "{most} of {values} values");
    let whole = Sharded::read(config(), alone(), &source).unwrap().compute_as(compute);
    let whole = whole.with_adapter(lora, 3).unwrap();
    assert_eq!(read.weights().unwrap(), whole.weights().unwrap());
    assert_eq!(read.shards.len(), whole.shards.len());
}

/// The state of 2.4 million values is 28 MiB, and so is its file.
#[test]
fn a_checkpoint_is_written_with_one_copy_of_the_state_in_memory_and_loaded_with_one_file() {
    let _guard = counted();
    let config = sized(256);
    let mut model = Sharded::new(config.clone(), alone(), &initial_weights(&config, 5)).unwrap();
    let state: u64 = model.shards.iter().map(|shard| 12 * shard.unit.numel() as u64).sum();
    let folder = tempfile::tempdir().unwrap();
    let store = TrainerStore::existing(folder.path()).unwrap();
    let (most, written) = resident_peak(|| {
        let own = store.write_shards(&model, "l1", 1).unwrap();
        let written = Written::on_all_ranks(Some(own), &model).unwrap();
        store.seal(&model, "l1", 1, written.as_ref().unwrap(), 1)
    });
    written.unwrap();
    // One copy, so that training continues meanwhile, and pieces on their way to the file.
    assert!(most < state + (32 << 20), "{most} while {state} bytes are written");
    let checkpoint = store.newest_checkpoint().unwrap().unwrap();
    let (most, loaded) = resident_peak(|| store.load(&mut model, &checkpoint));
    loaded.unwrap();
    assert!(most < state + state / 2, "{most} beside a file of {state} bytes");
}

/// A unit has 128 MiB. One copy of it, rounded, encoded or digested, would be too much.
#[test]
fn a_version_is_published_with_pieces_of_a_unit_in_memory() {
    let _guard = counted();
    let json = serde_json::json!({
        "model_type": "qwen3", "vocab_size": 65_536, "hidden_size": 512, "intermediate_size": 64, "num_hidden_layers": 1,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "rms_norm_eps": 1e-6, "rope_theta": 1e4,
        "max_position_embeddings": 64, "tie_word_embeddings": true
    });
    let config = Config::parse(json.to_string().as_bytes(), "config.json").unwrap();
    let values = weights::units(&config).into_iter().flat_map(|unit| unit.tensors);
    let values = values.map(|(name, shape)| {
        let values = vec![0.5; shape.iter().product()];
        (name, weights::Array { shape, values })
    });
    let model = Sharded::new(config, alone(), &values.collect())
        .unwrap()
        .compute_as(Compute {
            precision: Precision::Bf16,
            ..Compute::default()
        });
    let folder = tempfile::tempdir().unwrap();
    let store = TrainerStore::existing(folder.path()).unwrap();
    let (tensors, precision) = (model.published_tensors(false), model.published_precision(false));
    for step in 1..=2 {
        let parent = (step > 1).then(|| "l1-v1".to_owned());
        let (most, published) = resident_peak(|| {
            let form = Form::Model(folder.path());
            let mut publication = store
                .begin_version(form, &tensors, precision, "l1", step, parent)
                .unwrap();
            model
                .each_published(false, "publishing weights", |name, shape, values| {
                    publication.tensor(name, shape, values)
                })
                .unwrap();
            publication.finish().unwrap().0
        });
        assert_eq!(published.deltas.len(), step as usize - 1);
        assert!(most < 96 << 20, "{most}");
    }
}
