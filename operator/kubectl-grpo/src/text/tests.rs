use super::*;
use proptest::prelude::*;

#[test]
fn a_bar_fills_by_eighths() {
    assert_eq!(bar(0, 10, 4), "····");
    assert_eq!(bar(5, 10, 4), "██··");
    assert_eq!(bar(1, 8, 4), "▌···");
    assert_eq!(bar(10, 10, 4), "████");
    assert_eq!(bar(3, 0, 4), "····");
}

#[test]
fn durations_have_two_units_at_most() {
    let said = |seconds| span(SignedDuration::from_secs(seconds));
    assert_eq!(
        [said(-5), said(59), said(252), said(7200), said(93_600)],
        ["0s", "59s", "4m12s", "2h", "1d2h"]
    );
}

#[test]
fn columns_are_as_wide_as_their_widest_cell() {
    let rows = [
        vec!["a".into(), "long one".into(), "x".into()],
        vec!["bcd".into(), String::new(), "y".into()],
    ];
    assert_eq!(
        table(&["A", "B", "C"], &rows),
        "A     B          C\na     long one   x\nbcd              y\n"
    );
}

#[test]
fn a_word_longer_than_the_line_is_kept_whole() {
    assert_eq!(
        paragraph("to example.com/a/long/name now", "  ", 12),
        "  to\n  example.com/a/long/name\n  now\n"
    );
}

proptest! {
    #[test]
    fn a_bar_is_always_as_wide_as_asked_and_never_shrinks(done in 0u64.., total in 0u64.., width in 1usize..60) {
        let one = bar(done, total, width);
        prop_assert_eq!(one.chars().count(), width);
        let full = |bar: &str| bar.chars().filter(|c| *c == '█').count();
        prop_assert!(full(&bar(done.saturating_add(1), total, width)) >= full(&one));
    }

    #[test]
    fn wrapping_loses_no_word(text in "[a-z]{1,12}( [a-z]{1,12}){0,20}", width in 4usize..60) {
        let wrapped = paragraph(&text, "  ", width);
        prop_assert_eq!(wrapped.split_whitespace().collect::<Vec<_>>(), text.split_whitespace().collect::<Vec<_>>());
    }
}
