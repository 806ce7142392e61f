use super::*;
use crate::parent::Controlled;

fn owner() -> Parent {
    Parent {
        kind: Controlled::Run,
        namespace: "default".into(),
        name: "demo".into(),
    }
}

fn key() -> Key {
    Key::of("Service", "default", "demo-driver")
}

#[test]
fn what_was_applied_is_not_applied_again_until_somebody_changes_it() {
    let applied = Applied::default();
    assert!(!applied.is_current(&key(), 1));
    applied.record(key(), 1, Some("7".into()), Some(owner()));
    assert!(applied.is_current(&key(), 1));
    assert!(!applied.is_current(&key(), 2));
    assert!(!applied.seen(&key(), Sighting::At(Some("7"))));
    assert!(applied.seen(&key(), Sighting::At(Some("8"))));
    assert!(!applied.is_current(&key(), 1));
}

#[test]
fn a_child_that_a_fresh_list_lacks_is_made_again() {
    let applied = Applied::default();
    applied.record(key(), 1, Some("7".into()), Some(owner()));
    assert!(
        applied.missed("ConfigMap", &HashSet::new()).is_empty(),
        "another kind's list"
    );
    assert!(applied.missed("Service", &HashSet::from([key()])).is_empty());
    assert!(applied.is_current(&key(), 1));
    assert_eq!(applied.missed("Service", &HashSet::new()), HashSet::from([owner()]));
    assert!(!applied.is_current(&key(), 1));
}

#[test]
fn an_owner_is_known_while_it_has_a_child() {
    let applied = Applied::default();
    let other = Key::of("Service", "default", "demo-trainer");
    for key in [key(), other] {
        applied.record(key, 1, None, Some(owner()));
    }
    assert_eq!(applied.locked().owners.len(), 1);
    applied.forget(&key());
    assert_eq!(applied.locked().owners.len(), 1);
    applied.forget(&other);
    assert!(applied.locked().owners.is_empty());
}

#[test]
fn a_deleted_child_is_made_again() {
    let applied = Applied::default();
    applied.record(key(), 1, Some("7".into()), Some(owner()));
    assert!(applied.seen(&key(), Sighting::Deleted));
    assert!(!applied.is_current(&key(), 1));
}

#[test]
fn what_is_absent_stays_so_until_a_watch_shows_it() {
    let applied = Applied::default();
    assert!(!applied.is_absent(&key()), "not looked yet");
    applied.record_absent(key());
    assert!(applied.is_absent(&key()));
    assert!(
        applied.missed("Service", &HashSet::new()).is_empty(),
        "it is not missed"
    );
    applied.record_absent(key());
    assert!(applied.seen(&key(), Sighting::At(Some("7"))));
    assert!(!applied.is_absent(&key()));
}

#[test]
fn a_pool_of_a_run_is_made_again_when_somebody_changes_its_spec_and_not_when_its_status_is_written() {
    let pool = |version: &str, generation: i64| ObjectMeta {
        resource_version: Some(version.to_owned()),
        generation: Some(generation),
        ..ObjectMeta::default()
    };
    for kind in ["InferencePool", "SandboxPool"] {
        let (applied, key) = (Applied::default(), Key::of(kind, "default", "demo"));
        applied.record(key, 1, version(kind, &pool("7", 1)), Some(owner()));
        assert!(!applied.seen(&key, Sighting::At(version(kind, &pool("8", 1)).as_deref())));
        assert!(applied.seen(&key, Sighting::At(version(kind, &pool("9", 2)).as_deref())));
        assert!(!applied.is_current(&key, 1));
    }
    assert_eq!(version("Service", &pool("7", 1)).as_deref(), Some("7"));
}

#[test]
fn a_ledger_is_looked_at_again_when_it_is_another_object_and_not_when_a_gateway_writes_leases() {
    let ledger = |uid: &str, version: &str| ObjectMeta {
        uid: Some(uid.to_owned()),
        resource_version: Some(version.to_owned()),
        labels: Some([(names::ROLE.to_owned(), role::LEDGER.to_owned())].into()),
        ..ObjectMeta::default()
    };
    let seen = |uid: &str, resource_version: &str| version("ConfigMap", &ledger(uid, resource_version));
    let (applied, key) = (Applied::default(), Key::of("ConfigMap", "default", "demo-ledger-0"));
    applied.record(key, 1, seen("a", "7"), Some(owner()));
    assert!(!applied.seen(&key, Sighting::At(seen("a", "8").as_deref())));
    assert!(applied.is_current(&key, 1));
    assert!(applied.seen(&key, Sighting::At(seen("b", "9").as_deref())));
    assert!(!applied.is_current(&key, 1));
}
