use super::*;

fn vocabulary() -> Vocabulary {
    let json = serde_json::json!({
        "decoder": {"type": "ByteLevel"},
        "model": {"vocab": {"a": 0, "Ġb": 1, "Ċ": 2, "âĤ": 3, "¬": 4}},
        "added_tokens": [{"id": 5, "content": "<|im_end|>"}],
    });
    Vocabulary::of(json.to_string().as_bytes()).unwrap()
}

#[test]
fn tokens_have_the_text_of_their_bytes_and_halves_of_characters_show_theirs() {
    assert_eq!(vocabulary().texts(&[0, 1, 2, 5]), ["a", " b", "\n", "<|im_end|>"]);
    assert_eq!(vocabulary().texts(&[3, 4]), ["⟨e2⟩⟨82⟩", "⟨ac⟩"]);
    assert_eq!(vocabulary().texts(&[9]), ["⟨9⟩"]);
}

#[test]
fn a_file_without_byte_level_tokens_or_with_holes_has_no_texts() {
    for json in [
        r#"{"decoder": {"type": "Metaspace"}, "model": {"vocab": {"a": 0}}}"#,
        r#"{"decoder": {"type": "ByteLevel"}, "model": {"vocab": {"a": 4000000000}}}"#,
        "no JSON",
    ] {
        assert!(Vocabulary::of(json.as_bytes()).is_none(), "{json}");
    }
}
