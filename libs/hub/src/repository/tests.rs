use super::*;

fn entry(json: &str) -> Result<Option<RemoteFile>, String> {
    serde_json::from_str::<TreeEntry>(json).unwrap().file()
}

#[test]
fn a_large_file_has_the_size_and_digest_of_its_content_and_not_of_its_pointer() {
    let oid = "a".repeat(64);
    let large = format!(
        r#"{{"type": "file", "path": "m.safetensors", "size": 134, "oid": "{}", "lfs": {{"oid": "{oid}", "size": 9, "pointerSize": 134}}}}"#,
        "b".repeat(40)
    );
    let file = entry(&large).unwrap().unwrap();
    assert_eq!((file.size, file.digest), (9, Digest::Sha256(oid)));
}

#[test]
fn a_listing_cannot_name_a_file_outside_of_its_repository() {
    for path in [
        "../x",
        "/etc/passwd",
        "a/../../b",
        "",
        "a/./../..",
        "a\\\\b",
        "a\\u0000b",
    ] {
        let json = format!(
            r#"{{"type": "file", "path": "{path}", "size": 1, "oid": "{}"}}"#,
            "0".repeat(40)
        );
        assert!(entry(&json).is_err(), "{path}");
    }
    let json = format!(
        r#"{{"type": "file", "path": "a/b.txt", "size": 1, "oid": "{}"}}"#,
        "0".repeat(40)
    );
    assert!(entry(&json).unwrap().is_some());
    assert!(entry(r#"{"type": "file", "path": "a", "size": 1, "oid": "0"}"#).is_err());
    assert_eq!(entry(r#"{"type": "directory", "path": "a", "oid": "0"}"#), Ok(None));
}

#[test]
fn a_small_file_has_the_digest_that_git_gives_it() {
    let file = RemoteFile {
        path: "x".into(),
        size: 6,
        digest: Digest::GitBlob(String::new()),
    };
    let mut hasher = Hasher::new(&file);
    hasher.update(b"hel");
    hasher.update(b"lo\n");
    // echo hello | git hash-object --stdin
    assert_eq!(hasher.hex(), "ce013625030ba8dba906f756967f9e9ca394464a");
}

#[test]
fn a_commit_is_forty_digits() {
    assert!(Commit::parse(&"0a".repeat(20)).is_some());
    for text in ["main", "", &"0A".repeat(20), &"0a".repeat(32)] {
        assert_eq!(Commit::parse(text), None, "{text}");
    }
}
