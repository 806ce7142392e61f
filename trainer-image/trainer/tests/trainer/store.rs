//! Checkpoints, published versions, and batches that are refused.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use crate::common::volume::Volume;
use crate::common::{algorithm, alone, batch, config, config_json, flat, model, ranks, silenced, steps};
use grpo_model::weights::export::Named;
use grpo_model::weights::{Precision, Weights, checksum};
use grpo_native::{Group, Rendezvous};
use grpo_records::batch::Batch;
use grpo_records::weights::WeightsManifest;
use grpo_records::{fixture, paths};
use grpo_trainer::mini_batch::agreed;
use grpo_trainer::sharded::Sharded;
use grpo_trainer::state::{Form, TrainerStore, Written, json, sha256};
use grpo_trainer::{TrainError, grpo};

pub fn save(store: &TrainerStore, model: &Sharded, step: u32) {
    let own = store.write_shards(model, "l1", step).unwrap();
    let written = Written::on_all_ranks(Some(own), model).unwrap().unwrap();
    if model.group.rank() == 0 {
        store.seal(model, "l1", step, &written, 3).unwrap();
    }
}

/// Publishes weights of lineage `l1` as a model whose other files are in `folder`.
pub fn publish(
    store: &TrainerStore,
    weights: &Weights,
    folder: &std::path::Path,
    step: u32,
    parent: Option<String>,
) -> Result<(WeightsManifest, String), TrainError> {
    let tensors: Vec<Named> = weights
        .iter()
        .map(|(name, array)| (name.clone(), array.shape.clone()))
        .collect();
    let mut publication = store.begin_version(Form::Model(folder), &tensors, Precision::F32, "l1", step, parent)?;
    for (name, array) in weights {
        publication.tensor(name, &array.shape, &array.values)?;
    }
    publication.finish()
}

fn load(store: &TrainerStore, group: Group) -> Sharded {
    let mut model = model(group);
    store
        .load(&mut model, &store.newest_checkpoint().unwrap().unwrap())
        .unwrap();
    model
}

#[test]
fn a_checkpoint_goes_on_with_the_same_bits_at_any_world() {
    let folder = tempfile::tempdir().unwrap();
    let store = TrainerStore::existing(folder.path()).unwrap();
    let mut straight = alone();
    steps(&mut straight, 1..=2);
    save(&store, &straight, 2);
    let half = straight.weights().unwrap();
    steps(&mut straight, 3..=4);

    let mut resumed = load(&store, Group::join(&Rendezvous::alone()).unwrap());
    assert_eq!(resumed.updates, 2);
    steps(&mut resumed, 3..=4);
    assert_eq!(
        checksum(&resumed.weights().unwrap()),
        checksum(&straight.weights().unwrap())
    );

    for weights in ranks(2, |group| load(&store, group).weights().unwrap()) {
        assert_eq!(weights, half);
    }
    // And from five ranks, which pad units, back to one.
    ranks(5, |group| save(&store, &load(&store, group), 3));
    let mut back = load(&store, Group::join(&Rendezvous::alone()).unwrap());
    assert_eq!(back.weights().unwrap(), half);
    steps(&mut back, 3..=4);
    assert_eq!(
        checksum(&back.weights().unwrap()),
        checksum(&straight.weights().unwrap())
    );
}

#[test]
fn a_truncated_checkpoint_gives_way_to_the_older_one_until_it_is_written_again() {
    let folder = tempfile::tempdir().unwrap();
    let store = TrainerStore::existing(folder.path()).unwrap();
    let mut model = alone();
    steps(&mut model, 1..=1);
    save(&store, &model, 1);
    steps(&mut model, 2..=2);
    save(&store, &model, 2);
    assert_eq!(store.newest_checkpoint().unwrap().unwrap().step, 2);

    let shard = folder.path().join(paths::checkpoint_rank("l1", 2, 0, 1));
    let bytes = std::fs::read(&shard).unwrap();
    std::fs::write(&shard, &bytes[..bytes.len() / 2]).unwrap();
    assert_eq!(store.newest_checkpoint().unwrap().unwrap().step, 1);
    // A checkpoint without its manifest does not count.
    store.write_shards(&model, "l1", 3).unwrap();
    assert_eq!(store.newest_checkpoint().unwrap().unwrap().step, 1);

    steps(&mut model, 3..=3);
    save(&store, &model, 2);
    assert_eq!(store.newest_checkpoint().unwrap().unwrap().step, 2);
}

#[test]
fn a_checkpoint_whose_manifest_is_damaged_gives_way_to_the_older_one_until_it_is_written_again() {
    let folder = tempfile::tempdir().unwrap();
    let store = TrainerStore::existing(folder.path()).unwrap();
    let model = alone();
    save(&store, &model, 1);
    save(&store, &model, 2);
    std::fs::write(folder.path().join(paths::checkpoint_manifest("l1", 2)), b"{\"linea").unwrap();
    assert_eq!(store.newest_checkpoint().unwrap().unwrap().step, 1);
    save(&store, &model, 2);
    assert_eq!(store.newest_checkpoint().unwrap().unwrap().step, 2);
}

/// Sealing uses the checksums of the written bytes and does not read the files again.
#[test]
fn a_file_that_changed_before_its_checkpoint_was_sealed_makes_no_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let store = TrainerStore::existing(folder.path()).unwrap();
    let model = alone();
    save(&store, &model, 1);
    let written = store.write_shards(&model, "l1", 2).unwrap();
    let shard = folder.path().join(paths::checkpoint_rank("l1", 2, 0, 1));
    let mut bytes = std::fs::read(&shard).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&shard, &bytes).unwrap();
    store.seal(&model, "l1", 2, &[written], 3).unwrap();
    assert_eq!(store.newest_checkpoint().unwrap().unwrap().step, 1);
}

#[test]
fn ranks_that_still_write_keep_a_checkpoint_from_being_sealed() {
    let folder = tempfile::tempdir().unwrap();
    let store = TrainerStore::existing(folder.path()).unwrap();
    for (rank, found) in (0..).zip(ranks(3, |group| {
        let model = model(group);
        let own = store.write_shards(&model, "l1", 1).unwrap();
        let late = (model.group.rank() != 1).then_some(own);
        assert_eq!(Written::on_all_ranks(late, &model).unwrap(), None);
        (own, Written::on_all_ranks(Some(own), &model).unwrap().unwrap())
    })) {
        let (own, all): (Written, Vec<Written>) = found;
        assert_eq!((all.len(), all[rank]), (3, own));
    }
}

#[test]
fn a_batch_that_cannot_be_trained_on_is_refused_and_changes_nothing() {
    type Change = fn(&mut Batch);
    let cases: [(Change, &str); 7] = [
        (|b| b.rows[4].reward = f32::NAN, "reward"),
        (|b| b.rows[4].tokens[2] = 64, "vocabulary"),
        (|b| b.rows[4].tokens.push(1), "length"),
        (|b| b.rows[4].mask.truncate(3), "length"),
        (|b| b.rows[4].logprobs[5] = f32::NAN, "logprob"),
        (|b| b.rows[4].temperature = 0.0, "temperature"),
        (|b| b.rows[4].weights.clear(), "span"),
    ];
    let mut model = alone();
    steps(&mut model, 1..=1);
    let before = (flat(&model.weights().unwrap()), model.updates);
    for (change, word) in cases {
        let mut batch = batch(2);
        change(&mut batch);
        let error = grpo::step(&mut model, &batch, "batches/step-2.json", &algorithm(), 0).unwrap_err();
        let message = error.to_string();
        assert!(error.is_refusal(), "{message}");
        for part in [word, "i1__g1__i1", "batches/step-2.json"] {
            assert!(message.contains(part), "{part}: {message}");
        }
        assert_eq!((flat(&model.weights().unwrap()), model.updates), before);
    }
    let gradients: Vec<_> = model.shards.iter().map(|shard| &shard.values * f64::NAN).collect();
    assert!(
        model
            .update(&gradients, 1e-3, &grpo::optimizer(&algorithm()))
            .unwrap()
            .is_nan()
    );
    assert_eq!((flat(&model.weights().unwrap()), model.updates), before);
}

#[test]
fn a_batch_that_the_store_does_not_return_now_is_not_refused_and_one_without_its_files_is() {
    let folder = tempfile::tempdir().unwrap();
    let store = TrainerStore::existing(folder.path()).unwrap();
    let mut batch = batch(1);
    fixture::write_batch(folder.path(), &mut batch);
    let read = || grpo::read(&store, 1, &paths::batch(1), None);
    let rows = batch.rows[0].stored.rows.file.clone();
    for file in [&paths::batch(1), &rows] {
        let error = silenced(&folder.path().join(file), || read().unwrap_err());
        let message = error.to_string();
        assert!(error.is_unread() && !error.is_refusal(), "{message}");
        assert!(message.contains(file.as_str()), "{message}");
    }
    assert_eq!(read().unwrap(), batch);
    std::fs::remove_file(folder.path().join(rows)).unwrap();
    assert!(read().unwrap_err().is_refusal());
}

#[test]
fn no_rank_refuses_a_batch_if_the_store_does_not_answer_one_of_them() {
    let (path, message) = ("batch".to_owned(), "its sha256 differs".to_owned());
    let said = ranks(3, |group| {
        let (path, message) = (path.clone(), message.clone());
        let own: Result<(), TrainError> = match group.rank() {
            0 => Ok(()),
            1 => Err(TrainError::Batch { path, message }),
            _ => Err(TrainError::Unread { path, message }),
        };
        agreed(&model(group), own, "batch").unwrap_err()
    });
    assert!(said.iter().all(TrainError::is_unread), "{said:?}");
}

#[test]
fn a_published_name_means_its_weights_for_good() {
    let folder = tempfile::tempdir().unwrap();
    let store = TrainerStore::existing(folder.path()).unwrap();
    let mut model = alone();
    let weights = model.weights().unwrap();
    let again = |weights: &Weights| publish(&store, weights, folder.path(), 1, Some("l1-s0".to_owned()));
    let first = again(&weights).unwrap();
    assert_eq!(again(&weights).unwrap(), first);
    assert_eq!(first.0.tensors_sha256, checksum(&weights));

    steps(&mut model, 1..=1);
    assert!(
        again(&model.weights().unwrap())
            .unwrap_err()
            .to_string()
            .contains("other weights")
    );
    assert_eq!(store.versions().unwrap(), [first.0]);
}

#[test]
fn a_model_computed_in_bf16_is_published_in_bf16_in_the_order_of_its_layers_and_named_by_what_is_read_of_it() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("config.json"), config_json().to_string()).unwrap();
    let store = TrainerStore::existing(folder.path()).unwrap();
    let mut model = alone().compute_in(Precision::Bf16);
    steps(&mut model, 1..=1);
    let (tensors, precision) = (model.published_tensors(false), model.published_precision(false));
    let form = Form::Model(folder.path());
    let mut publication = store.begin_version(form, &tensors, precision, "l1", 1, None).unwrap();
    model
        .each_published(false, "publishing weights", |name, shape, values| {
            publication.tensor(name, shape, values)
        })
        .unwrap();
    let (manifest, _) = publication.finish().unwrap();
    assert_eq!(
        model.published_checksum(false).unwrap(),
        Some(manifest.tensors_sha256.clone())
    );

    let version = folder.path().join(paths::weights("l1-v1"));
    let read = grpo_model::weights::read(&version, &config()).unwrap();
    assert_eq!(checksum(&read), manifest.tensors_sha256);
    for (name, array) in model.weights().unwrap() {
        let (ours, read) = (&array.values, &read[&name].values);
        assert_eq!(precision.encoded(ours), precision.encoded(read), "{name}");
    }
    let bytes = std::fs::read(version.join("model.safetensors")).unwrap();
    let (_, header) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
    let mut places: Vec<_> = header
        .tensors()
        .into_iter()
        .map(|(name, info)| (info.data_offsets, name))
        .collect();
    places.sort();
    assert!(
        places
            .iter()
            .map(|(_, name)| name)
            .eq(tensors.iter().map(|(name, _)| name))
    );
}

/// A tensor of these bf16 values in a version of lineage `l1`.
fn publish_values(
    store: &TrainerStore,
    folder: &std::path::Path,
    values: &[f32],
    step: u32,
    parent: Option<&str>,
) -> WeightsManifest {
    let tensors = [("a".to_owned(), vec![values.len()])];
    let (form, parent) = (Form::Model(folder), parent.map(str::to_owned));
    let mut publication = store
        .begin_version(form, &tensors, Precision::Bf16, "l1", step, parent)
        .unwrap();
    publication.tensor("a", &[values.len()], values).unwrap();
    publication.finish().unwrap().0
}

#[test]
fn a_version_in_bf16_has_a_delta_that_makes_it_from_its_parent() {
    let folder = tempfile::tempdir().unwrap();
    let store = TrainerStore::existing(folder.path()).unwrap();
    let old: Vec<f32> = (0..6 << 20).map(|at| 0.02 + (at % 1000) as f32 * 1e-5).collect();
    let new: Vec<f32> = old.iter().map(|value| value + 1e-6).collect();
    let first = publish_values(&store, folder.path(), &old, 1, None);
    let second = publish_values(&store, folder.path(), &new, 2, Some("l1-v1"));
    assert_eq!(first.deltas, []);
    let [delta] = &second.deltas[..] else {
        panic!("{:?}", second.deltas)
    };
    assert_eq!(
        (delta.of.as_str(), delta.base.as_str(), &delta.base_sha256),
        ("model.safetensors", "l1-v1", &first.files[0].sha256)
    );
    let read =
        |version: &str, name: &str| std::fs::read(folder.path().join(paths::weights_file(version, name))).unwrap();
    let bytes = read("l1-v2", &delta.file.name);
    assert_eq!(
        (delta.file.bytes, &delta.file.sha256),
        (bytes.len() as u64, &sha256(&bytes))
    );
    assert!(bytes.len() as u64 <= second.files[0].bytes / 30, "{}", bytes.len());
    let mut made = Vec::new();
    grpo_weights_delta::apply(&read("l1-v1", &delta.of)[..], &bytes[..], &mut made).unwrap();
    assert_eq!(sha256(&made), second.files[0].sha256);

    // Published again, it is the same version, delta included.
    assert_eq!(publish_values(&store, folder.path(), &new, 2, Some("l1-v1")), second);
}

#[test]
fn a_version_without_a_base_of_its_form_and_one_that_differs_in_most_values_have_no_delta() {
    let folder = tempfile::tempdir().unwrap();
    let store = TrainerStore::existing(folder.path()).unwrap();
    let old = vec![0.5; 2 << 20];
    let other: Vec<f32> = (0..2 << 20).map(|at| at as f32).collect();
    publish_values(&store, folder.path(), &old, 1, None);
    for (step, values, parent) in [
        (2, &old, "l1-v9"),
        (3, &old[..2].to_vec(), "l1-v1"),
        (4, &other, "l1-v1"),
    ] {
        let manifest = publish_values(&store, folder.path(), values, step, Some(parent));
        assert_eq!(manifest.deltas, [], "{parent}");
        let delta = paths::weights_file(&manifest.version, "model.safetensors.delta");
        assert!(!folder.path().join(delta).exists());
    }
    // The base's file is gone, its manifest is not.
    std::fs::remove_file(folder.path().join(paths::weights_file("l1-v1", "model.safetensors"))).unwrap();
    let manifest = publish_values(&store, folder.path(), &old, 5, Some("l1-v1"));
    assert_eq!(manifest.deltas, []);
    assert!(manifest.files[0].bytes > 2 * (2 << 20));
}

#[test]
fn a_version_that_lacks_a_tensor_is_not_published() {
    let folder = tempfile::tempdir().unwrap();
    let store = TrainerStore::existing(folder.path()).unwrap();
    let tensors = [("a".to_owned(), vec![1]), ("b".to_owned(), vec![1])];
    let begin = || {
        let form = Form::Model(folder.path());
        store
            .begin_version(form, &tensors, Precision::F32, "l1", 1, None)
            .unwrap()
    };
    let mut publication = begin();
    publication.tensor("a", &[1], &[0.5]).unwrap();
    let missing = publication.finish().unwrap_err().to_string();
    let other = begin().tensor("b", &[1], &[0.5]).unwrap_err().to_string();
    assert!(
        missing.contains("tensor b is missing") && other.contains("out of order"),
        "{missing} {other}"
    );
    assert_eq!(store.versions().unwrap(), []);
}

#[test]
fn a_full_disk_is_said_and_leaves_what_was_there() {
    let folder = tempfile::tempdir().unwrap();
    let (records, faults) = Volume::of(folder.path());
    let store = TrainerStore::new(records);
    let mut model = alone();
    steps(&mut model, 1..=1);
    save(&store, &model, 1);
    let (published, _) = publish(&store, &model.weights().unwrap(), folder.path(), 1, None).unwrap();
    steps(&mut model, 2..=2);

    faults.full.store(true, Ordering::Relaxed);
    let weights = model.weights().unwrap();
    for error in [
        store.write_shards(&model, "l1", 2).unwrap_err(),
        publish(&store, &weights, folder.path(), 2, None).unwrap_err(),
    ] {
        let message = error.to_string();
        assert!(matches!(error, TrainError::Store(_)), "{message}");
        for part in [
            "safetensors",
            "no storage space",
            "enlarge its volume claim",
            "nothing published before",
        ] {
            assert!(message.contains(part), "{part}: {message}");
        }
    }
    assert_eq!(store.newest_checkpoint().unwrap().unwrap().step, 1);
    assert_eq!(store.versions().unwrap(), [published]);

    // Space again: the next attempt sweeps, and both succeed.
    faults.full.store(false, Ordering::Relaxed);
    store.sweep().unwrap();
    save(&store, &model, 2);
    publish(&store, &weights, folder.path(), 2, None).unwrap();
    assert_eq!(
        (
            store.newest_checkpoint().unwrap().unwrap().step,
            store.versions().unwrap().len()
        ),
        (2, 2)
    );
}

#[test]
fn a_version_counts_when_its_manifest_is_there_and_what_has_none_is_tidied_up() {
    let folder = tempfile::tempdir().unwrap();
    let store = TrainerStore::existing(folder.path()).unwrap();
    let model = alone();
    let weights = model.weights().unwrap();
    let whole = || publish(&store, &weights, folder.path(), 1, None).unwrap();
    let (first, _) = whole();
    // The state after a process that ended before the manifest.
    std::fs::remove_file(folder.path().join(paths::weights_manifest("l1-v1"))).unwrap();
    assert_eq!(store.versions().unwrap(), []);
    store.sweep().unwrap();
    assert!(!folder.path().join(paths::weights("l1-v1")).exists());
    assert_eq!(whole().0, first);
}

#[test]
fn the_last_two_steps_of_a_lineage_stay_until_a_new_one_has_passed_them() {
    let folder = tempfile::tempdir().unwrap();
    let store = TrainerStore::existing(folder.path()).unwrap();
    let publish = |lineage: &str, steps: std::ops::RangeInclusive<u32>| {
        for step in steps {
            let version = paths::weights_version(lineage, step);
            let path = paths::weights_manifest(&version);
            let manifest = WeightsManifest {
                version,
                lineage: lineage.to_owned(),
                step,
                parent: None,
                files: Vec::new(),
                deltas: Vec::new(),
                chat_templates: Vec::new(),
                tensors_sha256: String::new(),
                canary: None,
            };
            store.create(&path, json(&manifest).unwrap()).unwrap();
        }
        store.prune_versions().unwrap();
        let kept = store.versions().unwrap().into_iter().map(|version| version.version);
        kept.collect::<BTreeSet<String>>()
    };
    let named = |older: &[&str], steps: std::ops::RangeInclusive<u32>| {
        let newer = steps.map(|step| paths::weights_version("l2", step));
        let older = older.iter().map(|version| (*version).to_owned());
        older.chain(newer).collect::<BTreeSet<String>>()
    };
    publish("l1", 0..=20);
    assert_eq!(publish("l2", 5..=14), named(&["l1-v0", "l1-v19", "l1-v20"], 7..=14));
    // Engines serve the older lineage until the driver knows of the new one.
    assert_eq!(publish("l2", 15..=20), named(&["l1-v0", "l1-v19", "l1-v20"], 13..=20));
    assert_eq!(publish("l2", 21..=21), named(&["l1-v0", "l1-v20"], 14..=21));
    assert_eq!(publish("l2", 22..=22), named(&["l1-v0"], 15..=22));
}
