use super::*;
use crate::agent::tools::breakpoints::Breakpoint;

const PLAIN: Wanted = Wanted {
    start: None,
    end: None,
    numbered: true,
};

#[test]
fn lines_are_numbered_and_breakpoints_marked() {
    let breakpoints = Breakpoints(vec![Breakpoint {
        file: "/testbed/a.py".into(),
        line: 2,
        condition: None,
    }]);
    assert_eq!(
        shown("a.py", "/testbed/a.py", "x\ny\n", PLAIN, &breakpoints),
        "Viewing `a.py`, lines 1-2 of 2 total lines. B indicates breakpoint before a certain line of \
         code.\n\n```\n     1 x\nB    2 y\n```\n\n"
    );
}

#[test]
fn more_than_110_lines_are_cut_with_a_note() {
    let text = "l\n".repeat(300);
    let answer = shown(
        "a",
        "/a",
        &text,
        Wanted {
            start: Some(5),
            ..PLAIN
        },
        &Breakpoints::default(),
    );
    assert!(
        answer.starts_with("Viewing `a`, lines 5-114 of 300 total lines.\n\n```\n     5 l\n"),
        "{answer}"
    );
    assert!(
        answer.ends_with("```\n\n\n... (truncated, showing first 110 lines of the selected range)\n"),
        "{answer}"
    );
}

#[test]
fn numbers_above_9999_have_wider_columns() {
    let text = "l\n".repeat(10_000);
    let wanted = Wanted {
        start: Some(9_998),
        ..PLAIN
    };
    let answer = shown("a", "/a", &text, wanted, &Breakpoints::default());
    assert!(answer.contains("\n      9998 l\n"), "{answer}");
}

#[test]
fn form_feeds_end_no_line() {
    assert_eq!(lines("a\x0cb\r\nc\u{2028}d\n"), ["a\x0cb", "c\u{2028}d"]);
}
