use super::*;

#[test]
fn names_that_lead_elsewhere_are_refused() {
    for name in ["", "..", "../x", "a/b", "/etc", ".hidden", "a b", "x.partial"] {
        assert!(checked_name(name).is_err(), "{name:?} was let through");
    }
    assert!(checked_name("a-v12").is_ok());
    assert!(checked_name("model-00001-of-00002.safetensors").is_ok());
}

#[test]
fn what_serves_what_comes_and_what_is_sampled_from_stays_and_nothing_else() {
    let root = tempfile::tempdir().unwrap();
    let cache = Cache::new(root.path().to_owned());
    for version in ["a-v1", "a-v2", "a-v3"] {
        std::fs::create_dir(cache.folder(version).unwrap()).unwrap();
    }
    let kept = ["a-v2", "a-v3", "a-v4"].map(str::to_owned);
    cache.keep_only(&kept.into()).unwrap();
    let entries = std::fs::read_dir(root.path()).unwrap();
    let mut left: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["a-v2", "a-v3"]);
}
