use super::*;

fn replaced(start: Option<i64>, end: Option<i64>, code: &str) -> String {
    Range::of(start, end).unwrap().replaced("a\nb\nc\n", code)
}

#[test]
fn lines_are_replaced_as_the_call_says() {
    assert_eq!(replaced(Some(2), None, "x"), "a\nx\nc\n");
    assert_eq!(replaced(Some(2), Some(0), "x"), "a\nx\nc\n");
    assert_eq!(replaced(Some(1), Some(2), "x\ny\nz"), "x\ny\nz\nc\n");
    assert_eq!(replaced(None, Some(2), "x"), "x");
    assert_eq!(replaced(Some(2), Some(99), "x"), "a\nx");
    assert_eq!(replaced(Some(9), None, "x"), "a\nb\nc\n\nx");
    assert_eq!(replaced(Some(i64::MAX), Some(i64::MAX), "x"), "a\nb\nc\n\nx");
}

#[test]
fn a_range_that_is_none_is_refused_in_the_originals_words() {
    assert_eq!(
        Range::of(Some(3), Some(2)),
        Err("Invalid line number range, start should be less than or equal to end.")
    );
    assert_eq!(
        Range::of(Some(0), None),
        Err("Invalid line number, line numbers are 1-based.")
    );
    assert_eq!(
        Range::of(Some(-2), Some(-1)),
        Err("Invalid line number, line numbers are 1-based.")
    );
}
