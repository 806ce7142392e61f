use super::*;

#[test]
fn documents_lists_and_empty_documents_are_unfolded() {
    let text = "---\nkind: A\n---\n---\nkind: List\nitems: [{kind: B}, {kind: C}]\n";
    let documents = parse(text, Path::new("f.yaml")).unwrap();
    let kinds: Vec<&str> = documents.iter().map(Document::kind).collect();
    assert_eq!(kinds, ["A", "B", "C"]);
}

#[test]
fn a_folder_is_its_manifests_in_order() {
    let folder = tempfile::tempdir().unwrap();
    for (name, kind) in [("b.yml", "B"), ("a.yaml", "A"), ("c.json", "C"), ("notes.txt", "D")] {
        std::fs::write(folder.path().join(name), format!("{{\"kind\": \"{kind}\"}}")).unwrap();
    }
    let documents = read(&[folder.path().to_owned()]).unwrap();
    let kinds: Vec<&str> = documents.iter().map(Document::kind).collect();
    assert_eq!(kinds, ["A", "B", "C"]);
}

#[test]
fn what_cannot_be_read_is_named_with_the_file() {
    let missing = read(&[PathBuf::from("missing.yaml")]).unwrap_err();
    assert!(missing.to_string().contains("missing.yaml"), "{missing}");
    let broken = parse("a: [", Path::new("broken.yaml")).unwrap_err();
    assert!(broken.to_string().contains("broken.yaml is no YAML"), "{broken}");
}
