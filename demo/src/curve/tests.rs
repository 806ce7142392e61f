use super::*;

#[test]
fn a_bar_is_as_long_as_its_share() {
    assert_eq!(bar(0.0), "");
    assert_eq!(bar(1.0), "█".repeat(50));
    assert_eq!(bar(0.5), "█".repeat(25));
    assert_eq!(bar(0.01), "▌");
}

#[test]
fn lines_are_aligned_whatever_the_share() {
    let drawn = draw(&[("1".into(), 0.1), ("10".into(), 1.0)]);
    let lengths: Vec<usize> = drawn.lines().map(|l| l.chars().count()).collect();
    assert_eq!(lengths[0], lengths[1]);
}
