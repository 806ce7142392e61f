use super::*;

#[test]
fn of_five_the_third_is_in_the_middle_and_99_of_100_are_below_the_last() {
    assert_eq!(median(vec![5.0, 1.0, 2.0, 9.0, 3.0]), Some(3.0));
    assert_eq!(median(Vec::new()), None);
    let mut waits: Vec<Duration> = (1..=101).rev().map(Duration::from_millis).collect();
    assert_eq!(percentile(&mut waits, 50.0), Some(51.0));
    assert_eq!(percentile(&mut waits, 99.0), Some(100.0));
    assert_eq!(percentile(&mut [], 50.0), None);
}
