//! A store that does not answer for a while: the trainer's own work is repeated, and nothing is there twice.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::common::volume::Volume;
use crate::common::{alone, steps};
use crate::store::{publish, save};
use grpo_records::paths;
use grpo_trainer::outage::{Patience, StoreWaits};
use grpo_trainer::state::{Epoch, TrainerStore};

/// More failures in a row than one operation has requests.
const FAILURES: u32 = 9;

fn patient() -> Patience {
    Patience::new(Duration::from_secs(3600), Duration::ZERO, StoreWaits::default())
}

#[test]
fn a_start_and_a_checkpoint_outlast_an_outage_and_give_the_same_files() {
    let folder = tempfile::tempdir().unwrap();
    let (records, faults) = Volume::of(folder.path());
    let epoch = Epoch {
        run: "uid-1".to_owned(),
        attempt: 2,
        rank: 0,
    };
    let store = TrainerStore::of_attempt(records, epoch).with_patience(patient());
    let silent = || faults.silent.store(FAILURES, Ordering::Relaxed);
    let heard = || {
        assert_eq!(
            faults.silent.load(Ordering::Relaxed),
            0,
            "nothing was tried during the outage"
        )
    };
    silent();
    store.fence().unwrap();
    heard();
    silent();
    store.begin().unwrap();
    heard();

    let mut model = alone();
    steps(&mut model, 1..=1);
    let straight = store.write_shards(&model, "l1", 1).unwrap();
    silent();
    faults.cut.store(3, Ordering::Relaxed);
    assert_eq!(store.write_shards(&model, "l1", 1).unwrap(), straight);
    heard();
    assert_eq!(faults.cut.load(Ordering::Relaxed), 0);
    silent();
    save(&store, &model, 1);
    heard();
    silent();
    assert_eq!(store.newest_checkpoint().unwrap().unwrap().step, 1);
    heard();
    silent();
    store.sweep().unwrap();
    heard();
}

#[test]
fn a_version_whose_upload_was_cut_is_published_by_the_next_try_once_and_with_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    let (records, faults) = Volume::of(folder.path());
    let store = TrainerStore::new(records).with_patience(patient());
    let weights = alone().weights().unwrap();
    let tried = || publish(&store, &weights, folder.path(), 1, None);
    // Its bytes came from all ranks, so the caller has to gather them again.
    faults.cut.store(1, Ordering::Relaxed);
    let error = tried().unwrap_err();
    assert!(error.is_outage(), "{error}");
    assert_eq!(store.versions().unwrap(), []);

    let first = tried().unwrap();
    // The answer to the last request of a try may be lost: its repetition finds the version.
    faults.silent.store(FAILURES, Ordering::Relaxed);
    assert_eq!(tried().unwrap(), first);
    assert_eq!(store.versions().unwrap(), [first.0]);
    let manifest = store.read(&paths::weights_manifest("l1-v1")).unwrap();
    assert_eq!(grpo_trainer::state::sha256(&manifest), first.1);
}
