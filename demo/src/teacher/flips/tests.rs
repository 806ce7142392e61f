use super::*;

fn texts(lines: &[&str]) -> Vec<(&'static str, &'static str)> {
    possible(lines).into_iter().map(|flip| (flip.old, flip.new)).collect()
}

#[test]
fn a_flip_stands_on_one_line_once_and_is_not_a_part_of_a_longer_text() {
    let cases: [(&[&str], &[(&str, &str)]); 15] = [
        (&["a == b"], &[(" == ", " != ")]),
        (&["a == b", "c == d"], &[]),
        (&["a == b == c"], &[]),
        (&["x = 1.5"], &[]),
        (&["x = 1"], &[(" 1", " 0")]),
        (&["x[0]"], &[("0]", "1]")]),
        (&["x[10]"], &[]),
        (&["f(x.0)"], &[]),
        (&["a is None"], &[(" is None", " is not None")]),
        (&["a is not None"], &[(" is not None", " is None")]),
        (&["a is not b"], &[(" is not ", " is ")]),
        (&["a if not b"], &[(" if not ", " if ")]),
        (&["a not in b"], &[(" not in ", " in ")]),
        (&["    for a in b:"], &[]),
        (&["# a == b"], &[]),
    ];
    for (lines, flips) in cases {
        assert_eq!(texts(lines), flips, "{lines:?}");
    }
}

#[test]
fn a_flip_is_undone_by_its_opposite() {
    let lines = ["    while i < n and not done:", "        i += 1"];
    for flip in possible(&lines) {
        let mut flipped = lines.map(str::to_owned);
        flipped[flip.line] = flip.applied(lines[flip.line]);
        let shown: Vec<&str> = flipped.iter().map(String::as_str).collect();
        let back = possible(&shown)
            .into_iter()
            .find(|back| (back.old, back.new, back.line) == (flip.new, flip.old, flip.line));
        let back = back.unwrap_or_else(|| panic!("{flip:?} has no opposite"));
        assert_eq!(back.applied(&flipped[flip.line]), lines[flip.line]);
    }
    assert_eq!(possible(&lines).len(), 5);
}
