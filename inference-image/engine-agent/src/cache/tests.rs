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
fn the_current_version_the_newest_other_and_those_in_use_stay() {
    let root = tempfile::tempdir().unwrap();
    let cache = Cache::new(root.path().to_owned());
    for (age, version) in ["a-v4", "a-v3", "a-v2", "a-v1"].iter().enumerate() {
        let folder = cache.folder(version).unwrap();
        std::fs::create_dir(&folder).unwrap();
        let past = SystemTime::now() - std::time::Duration::from_secs(60 * age as u64);
        std::fs::File::open(&folder).unwrap().set_modified(past).unwrap();
    }
    let left = |in_use: &[&str]| {
        let in_use = in_use.iter().map(|version| (*version).to_owned()).collect();
        cache.keep_newest_and("a-v1", &in_use).unwrap();
        let entries = std::fs::read_dir(root.path()).unwrap();
        let mut left: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        left
    };
    assert_eq!(left(&["a-v2"]), ["a-v1", "a-v2", "a-v4"]);
    assert_eq!(left(&[]), ["a-v1", "a-v4"]);
}
