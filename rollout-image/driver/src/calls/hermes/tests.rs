use super::*;

fn why(inside: &str) -> String {
    read(&format!("<tool_call>{inside}")).unwrap_err()
}

#[test]
fn arguments_keep_their_order_and_spelling() {
    let said = "Look.\n<tool_call>\n{\"name\": \"view\", \"arguments\": {\"b\":1.0,  \"a\": \"\\u00e4</tool_call>\"}}\n</tool_call>";
    let read = read(said).unwrap();
    assert_eq!(read.content, "Look.");
    assert_eq!(read.calls[0].name, "view");
    assert_eq!(read.calls[0].arguments, "{\"b\":1.0,  \"a\": \"\\u00e4</tool_call>\"}");
}

#[test]
fn a_call_that_cannot_be_read_says_why() {
    let cases = [
        ("", "empty and not closed"),
        ("{\"name\": \"a\", \"arguments\": {", "EOF"),
        ("{\"name\": \"a\", \"arguments\": {}}", "no </tool_call>"),
        ("{\"name\": \"a\", \"arguments\": {}} x</tool_call>", "no </tool_call>"),
        ("{'name': 'a'}</tool_call>", "its JSON"),
        ("[]</tool_call>", "its JSON"),
        ("[\"a\", {}]</tool_call>", "its JSON: a list"),
        ("{\"arguments\": {}}</tool_call>", "no name"),
        ("{\"name\": \"\", \"arguments\": {}}</tool_call>", "no name"),
        ("{\"name\": 1, \"arguments\": {}}</tool_call>", "its JSON"),
        ("{\"name\": \"a\"}</tool_call>", "no arguments"),
        ("{\"name\": \"a\", \"arguments\": null}</tool_call>", "no arguments"),
        ("{\"name\": \"a\", \"arguments\": []}</tool_call>", "no JSON object"),
        ("{\"name\": \"a\", \"arguments\": \"{}\"}</tool_call>", "no JSON object"),
        (
            "{\"name\": \"a\", \"arguments\": {\"x\": \"\\ud800\"}}</tool_call>",
            "no JSON object",
        ),
        (
            "{\"name\": \"a\", \"arguments\": {\"x\": 1e999}}</tool_call>",
            "no JSON object",
        ),
    ];
    for (inside, expected) in cases {
        let why = why(inside);
        assert!(why.starts_with("call 1: ") && why.contains(expected), "{inside}: {why}");
    }
    let deep = format!("{{\"name\": \"a\", \"arguments\": {{\"x\": {}", "[".repeat(100_000));
    assert!(why(&deep).contains("its JSON"));
}
