use super::*;
use crate::teacher::flips::possible;

/// As `view` shows it.
const SHOWN: &str = "Viewing `a/b.py`, lines 99-101 of 240 total lines. B indicates breakpoint before a certain line \
                     of code.\n\n```\n    99 def f(a, b):\nB  100     if a == b:\n   101         return a + b\n```\n\n";

fn function() -> Function {
    Function {
        file: "a/b.py".into(),
        repair: Repair {
            first: 99,
            last: 101,
            old: " == ".into(),
            new: " != ".into(),
        },
    }
}

#[test]
fn lines_of_view_are_read_without_numbers_and_marks() {
    let function = function();
    let excerpt = Excerpt::of(&function, SHOWN, code_of).unwrap();
    assert_eq!(
        excerpt.lines,
        ["def f(a, b):", "    if a == b:", "        return a + b"]
    );
    let mut longer = function.clone();
    longer.repair.last = 102;
    assert!(Excerpt::of(&longer, SHOWN, code_of).is_none());
    // Eight digits, and a line without code.
    assert_eq!(code_of("     10203 ", 10203), Some(""));
}

#[test]
fn an_attempt_restores_the_line_of_the_last_one_first() {
    let function = function();
    let excerpt = Excerpt::of(&function, SHOWN, code_of).unwrap();
    let flip = |old: &str| {
        possible(&excerpt.lines)
            .into_iter()
            .find(|flip| flip.old == old)
            .unwrap()
    };
    let (equal, plus, condition) = (flip(" == "), flip(" + "), flip(" if "));
    let rewrite = |number: u64, code: &str| {
        let arguments = json!({"path": "a/b.py", "start": number, "new_code": code});
        ("rewrite", arguments)
    };
    let eval = ("eval", json!({}));
    let wrong = rewrite(100, "    if a != b:");
    assert_eq!(
        attempt(&excerpt, &equal, None),
        Answer::calls("Edit.", vec![wrong, eval.clone()])
    );
    assert_eq!(
        attempt(&excerpt, &plus, Some(&equal)).calls,
        [
            rewrite(100, "    if a == b:"),
            rewrite(101, "        return a - b"),
            eval.clone()
        ]
    );
    assert_eq!(
        attempt(&excerpt, &condition, Some(&equal)).calls,
        [rewrite(100, "    if not a == b:"), eval]
    );
}

#[test]
fn the_problem_names_the_file() {
    assert_eq!(
        problem("The bug is in f, $F lines 99-101.", &function()),
        "The bug is in f, a/b.py lines 99-101."
    );
}
