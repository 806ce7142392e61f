use super::*;
use proptest::prelude::*;

fn at(file: &str, line: i64) -> Breakpoint {
    Breakpoint {
        file: file.into(),
        line,
        condition: None,
    }
}

#[test]
fn the_list_of_pdb_is_read_with_its_conditions() {
    let output = "Num Type         Disp Enb   Where\n1   breakpoint   keep yes   at /testbed/a b.py:6\n\tbreakpoint already \
                  hit 1 time\n2   breakpoint   keep yes   at /testbed/c.py:10\n\tstop only if x > 1\n3   breakpoint   del  \
                  yes   at /testbed/c.py:11\n-> x = 1";
    let listed = Breakpoints::listed(output);
    let second = Breakpoint {
        condition: Some("x > 1".into()),
        ..at("/testbed/c.py", 10)
    };
    assert_eq!(listed.0, [at("/testbed/a b.py", 6), second.clone()]);
    assert_eq!(second.command(), "b /testbed/c.py:10, x > 1");
    assert_eq!(listed.text(), "line 6 in /testbed/a b.py\nline 10 in /testbed/c.py");
    assert_eq!(Breakpoints::default().text(), "No breakpoints are set.");
}

#[test]
fn a_rewrite_removes_those_inside_and_moves_those_below() {
    let mut all = Breakpoints(vec![at("a", 2), at("a", 5), at("a", 9), at("b", 9)]);
    all.shift("a", Some((4, 6)), 5);
    assert_eq!(all.0, [at("a", 2), at("a", 11), at("b", 9)]);
    all.shift("a", None, 1);
    assert_eq!(all.0, [at("b", 9)]);
    // A list that the policy forged.
    all.0.push(at("b", i64::MAX));
    all.shift("b", Some((1, 2)), 5);
    assert_eq!(all.0, [at("b", 12), at("b", i64::MAX)]);
}

#[test]
fn a_place_that_nothing_reaches_is_refused_with_a_better_one() {
    let text = "def a(x):\n    # Why.\n\n    return x\nclass B(C):\n    pass\n";
    let refusal = refusal(text, 1).unwrap();
    assert_eq!(
        refused("m.py", 1, &refusal),
        "❌ BREAKPOINT SETTING FAILED:\nLine 1 is a function definition line: 'def a(x):'\nBreakpoints on function \
         definition lines will NEVER be hit because Python doesn't execute the 'def' statement itself, only the function \
         body. Try line 4 instead (first executable line inside the function).\n\n**Suggested fix:**\n  ❌ Wrong: b \
         m.py:1  (function definition line)\n  ✅ Correct: b m.py:4  (first executable line inside function)"
    );
    for (line, says) in [
        (2, "Line 2 is a blank line or comment: '# Why.'"),
        (3, "Line 3 is a blank line or comment: ''"),
        (5, "Line 5 is a class definition line: 'class B(C):'"),
        (0, "Line 0 is out of range (file has 6 lines)."),
        (7, "Line 7 is out of range (file has 6 lines)."),
    ] {
        assert!(super::refusal(text, line).unwrap().starts_with(says), "{line}");
    }
    assert_eq!(super::refusal(text, 4), None);
    for number in [i64::MIN, i64::MIN + 1, i64::MAX] {
        let why = super::refusal(text, number);
        assert!(why.unwrap().contains("out of range"), "{number}");
    }
}

proptest! {
    #[test]
    fn a_breakpoint_stays_on_its_line_of_text(
        lines in 1..40i64, first in 1..40i64, length in 0..10i64, new in 1..10i64, line in 1..40i64,
    ) {
        let (first, line) = (first.min(lines), line.min(lines));
        let last = (first + length).min(lines);
        let text = (1..=lines).map(|number| number.to_string()).collect::<Vec<_>>().join("\n");
        let code = vec!["new"; new as usize].join("\n");
        let range = crate::agent::tools::rewrite::Range::Lines { start: first, end: last };
        let after = range.replaced(&text, &code);
        let mut all = Breakpoints(vec![at("a", line)]);
        all.shift("a", Some((first, last)), new);
        match all.0.first() {
            Some(one) => prop_assert_eq!(after.split('\n').nth(one.line as usize - 1).unwrap(), line.to_string()),
            None => prop_assert!((first..=last).contains(&line)),
        }
    }
}
