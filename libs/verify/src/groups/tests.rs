use super::*;

#[test]
fn advantages_of_a_group_are_what_the_textbook_says() {
    let a = advantages(&[1.0, 0.0, 0.0, 0.0], Divisor::Population);
    assert!(
        (a[0] - 3f64.sqrt()).abs() < 1e-12 && (a[1] + 1.0 / 3f64.sqrt()).abs() < 1e-12,
        "{a:?}"
    );
    let a = advantages(&[1.0, 0.0], Divisor::Unbiased);
    assert!((a[0] - 0.5f64.sqrt()).abs() < 1e-12, "{a:?}");
}

#[test]
fn a_group_that_agrees_teaches_nothing() {
    for divisor in [Divisor::One, Divisor::Population, Divisor::Unbiased] {
        assert_eq!(advantages(&[1.0, 1.0], divisor), [0.0, 0.0]);
    }
}
