use super::*;

#[test]
fn memory_is_written_as_manifests_write_it() {
    let cases = [
        (64 << 20, "64Mi"),
        (3 << 30, "3Gi"),
        (1536 << 20, "1536Mi"),
        (1000, "1000"),
        (0, "0"),
    ];
    for (bytes, words) in cases {
        assert_eq!(memory_of(bytes), words);
    }
    assert_eq!((cpus(2000), cpus(20)), ("2".to_owned(), "20m".to_owned()));
}

#[test]
fn an_empty_section_is_left_out() {
    let text = text(&Report::default());
    assert!(
        !text.contains("Downloads") && text.contains("Nodes\n  Not looked at"),
        "{text}"
    );
}
