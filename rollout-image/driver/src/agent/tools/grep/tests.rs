use super::*;

#[test]
fn matches_are_grouped_by_file() {
    let output = "./a.py:3:def a():\n./a.py:14:    a()\n./b.py:1:a: int\n";
    assert_eq!(
        shown(output, "a", None, 100, true),
        "Found 3 matches:\n\n=== ./a.py ===\n   3: def a():\n  14:     a()\n\n=== ./b.py ===\n   1: a: int"
    );
    assert!(shown(output, "a", None, 3, true).starts_with("Showing first 3 matches (search limit reached):\n\n==="));
}

#[test]
fn long_lines_are_cut_at_300_characters() {
    let line = "ä".repeat(300);
    let answer = shown(&format!("a:1:{line}"), "a", None, 9, false);
    assert!(answer.ends_with(&format!("\n{line}...")), "{answer}");
    let shorter = "ä".repeat(299);
    assert!(shown(&format!("a:1:{shorter}"), "a", None, 9, false).ends_with(&shorter));
}

#[test]
fn nothing_and_errors_are_said() {
    assert_eq!(
        shown(" \n", "x", None, 9, true),
        "No matches found for pattern 'x' in repository."
    );
    assert_eq!(
        shown("", "x", Some("a.py"), 9, true),
        "No matches found for pattern 'x' in a.py."
    );
    assert_eq!(
        shown("grep: Unmatched ( or \\(\n", "(", None, 9, true),
        "Grep error: Unmatched ( or \\("
    );
}
