use super::*;
use crate::store::READ_AT_ONCE;
use crate::store::counted::counted;

fn promoted(step: u32) -> Event {
    Event::Promoted {
        weights: format!("a-v{step}"),
        manifest_sha256: "00".into(),
        step,
    }
}

#[tokio::test]
async fn the_state_after_a_restart_is_the_state_before_it() {
    let mount = tempfile::tempdir().unwrap();
    let store = RunStore::open(mount.path(), "ns/run").unwrap();
    let (mut journal, mut state) = Journal::open(store.clone(), Writer::driver(1)).await.unwrap();
    for step in 0..3 {
        journal.append(promoted(step), &mut state).await.unwrap();
    }
    let (_, again) = Journal::open(store, Writer::driver(2)).await.unwrap();
    assert_eq!(again, state);
    assert_eq!(again.promoted.unwrap().weights, "a-v2");
}

#[tokio::test]
async fn a_long_journal_is_read_in_bounded_waves_and_folded_in_its_order() {
    let mount = tempfile::tempdir().unwrap();
    let store = RunStore::open(mount.path(), "ns/run").unwrap();
    let (mut journal, mut state) = Journal::open(store.clone(), Writer::driver(1)).await.unwrap();
    for step in 0..200 {
        journal.append(promoted(step), &mut state).await.unwrap();
    }
    let (store, reads) = counted(&store);
    let (_, again) = Journal::open(store, Writer::driver(2)).await.unwrap();
    assert_eq!(again, state, "the last promotion counts");
    assert_eq!((reads.all(), reads.most()), (200, READ_AT_ONCE));
}

#[tokio::test]
async fn a_second_driver_fences_the_first() {
    let mount = tempfile::tempdir().unwrap();
    let store = RunStore::open(mount.path(), "ns/run").unwrap();
    let (mut old, mut old_state) = Journal::open(store.clone(), Writer::driver(1)).await.unwrap();
    let (mut new, mut new_state) = Journal::open(store, Writer::driver(2)).await.unwrap();
    new.append(promoted(0), &mut new_state).await.unwrap();
    let refused = old.append(promoted(7), &mut old_state).await;
    assert!(matches!(refused, Err(JournalError::Fenced { sequence: 1, epoch: 1 })));
    assert_eq!(old_state.promoted, None);
}

#[tokio::test]
async fn a_fenced_journal_stays_fenced_when_the_other_entry_goes_away() {
    let mount = tempfile::tempdir().unwrap();
    let store = RunStore::open(mount.path(), "ns/run").unwrap();
    let (mut old, mut state) = Journal::open(store.clone(), Writer::driver(1)).await.unwrap();
    let other = mount.path().join("ns/run/journal/0000000001.json");
    std::fs::create_dir_all(other.parent().unwrap()).unwrap();
    std::fs::write(&other, "another driver's").unwrap();
    for _ in 0..2 {
        let refused = old.append(promoted(7), &mut state).await;
        assert!(matches!(refused, Err(JournalError::Fenced { sequence: 1, epoch: 1 })));
        std::fs::remove_file(&other).ok();
    }
    assert!(!other.exists());
}

#[tokio::test]
async fn a_torn_tail_is_passed_over_and_the_journal_goes_on_behind_it() {
    let mount = tempfile::tempdir().unwrap();
    let store = RunStore::open(mount.path(), "ns/run").unwrap();
    let (mut journal, mut state) = Journal::open(store.clone(), Writer::driver(1)).await.unwrap();
    journal.append(promoted(0), &mut state).await.unwrap();
    std::fs::write(
        mount.path().join("ns/run/journal/0000000002.json"),
        "{\"schema\":2,\"wri",
    )
    .unwrap();
    let (mut journal, mut state) = Journal::open(store.clone(), Writer::driver(2)).await.unwrap();
    assert_eq!((state.torn, state.promoted.clone().unwrap().step), (1, 0));
    journal.append(promoted(1), &mut state).await.unwrap();
    let (_, state) = Journal::open(store, Writer::driver(3)).await.unwrap();
    assert_eq!(state.promoted.unwrap().step, 1);
}

#[tokio::test]
async fn a_missing_entry_in_the_middle_is_an_error() {
    let mount = tempfile::tempdir().unwrap();
    let store = RunStore::open(mount.path(), "ns/run").unwrap();
    let (mut journal, mut state) = Journal::open(store.clone(), Writer::driver(1)).await.unwrap();
    for step in 0..3 {
        journal.append(promoted(step), &mut state).await.unwrap();
    }
    std::fs::remove_file(mount.path().join("ns/run/journal/0000000002.json")).unwrap();
    let refused = Journal::open(store, Writer::driver(2)).await;
    assert!(matches!(refused, Err(JournalError::Gap { sequence: 2, newest: 3 })));
}
