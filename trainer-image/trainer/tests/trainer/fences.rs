//! Attempts that a later one has followed: they write nothing any more.

use crate::common::{alone, steps};
use crate::store::{publish, save};
use grpo_records::RunStore;
use grpo_trainer::TrainError;
use grpo_trainer::state::{Epoch, TrainerStore, Written};

fn rank(root: &std::path::Path, run: &str, attempt: u32) -> TrainerStore {
    let epoch = Epoch {
        run: run.to_owned(),
        attempt,
        rank: 0,
    };
    TrainerStore::of_attempt(RunStore::existing(root).unwrap(), epoch)
}

fn started(root: &std::path::Path, run: &str, attempt: u32) -> TrainerStore {
    let store = rank(root, run, attempt);
    store.fence().unwrap();
    store.begin().unwrap();
    store
}

#[test]
fn whatever_an_attempt_does_after_it_was_followed_by_another_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let old = started(root, "uid-1", 1);
    let mut model = alone();
    let weights = model.weights().unwrap();
    publish(&old, &weights, root, 0, None).unwrap();
    steps(&mut model, 1..=1);
    save(&old, &model, 1);

    let new = started(root, "uid-1", 2);
    steps(&mut model, 2..=2);
    let other = model.weights().unwrap();
    let refused = [
        publish(&old, &other, root, 2, None).map(|_| ()),
        old.write_shards(&model, "l1", 2).map(|_| ()),
        // Also files that have their names already.
        old.write_shards(&model, "l1", 1).map(|_| ()),
        old.seal(&model, "l1", 1, &[Written::default()], 1),
        old.create("metrics/trainer/000002.json", &b"{}"[..]).map(|_| ()),
        old.prune_versions(),
        old.sweep(),
    ];
    for refused in refused {
        let error = refused.unwrap_err();
        assert!(matches!(error, TrainError::Fenced { attempt: 1, .. }), "{error}");
    }
    assert_eq!(new.versions().unwrap().len(), 1);
    assert_eq!(new.newest_checkpoint().unwrap().unwrap().step, 1);

    publish(&new, &other, root, 2, None).unwrap();
    save(&new, &model, 2);
    assert_eq!(new.newest_checkpoint().unwrap().unwrap().step, 2);
}

#[test]
fn an_earlier_attempt_of_the_same_run_does_not_begin_and_a_run_made_again_does() {
    let folder = tempfile::tempdir().unwrap();
    let newer = started(folder.path(), "uid-1", 12);
    assert!(matches!(
        rank(folder.path(), "uid-1", 9).fence(),
        Err(TrainError::Fenced { attempt: 9, .. })
    ));
    newer.create("still", &b"ours"[..]).unwrap();

    let again = started(folder.path(), "uid-2", 1);
    again.create("now", &b"ours"[..]).unwrap();
    assert!(newer.create("late", &b""[..]).is_err());
}

#[test]
fn of_two_attempts_that_start_at_one_time_only_the_later_one_writes() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    // The earlier one is so slow that the later one has its claim first.
    let old = rank(root, "uid-1", 1);
    old.fence().unwrap();
    let _new = started(root, "uid-1", 2);
    assert!(matches!(old.begin(), Err(TrainError::Fenced { attempt: 1, .. })));

    // The earlier one takes its claim after the later one has looked for it.
    let (old, new) = (rank(root, "uid-1", 3), rank(root, "uid-1", 4));
    old.fence().unwrap();
    new.fence().unwrap();
    old.begin().unwrap();
    new.begin().unwrap();
    new.fence_again().unwrap();
    let late = old.create("late", &b""[..]);
    assert!(matches!(late, Err(TrainError::Fenced { attempt: 3, .. })), "{late:?}");
    new.create("ours", &b""[..]).unwrap();
}
