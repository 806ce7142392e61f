use super::*;

#[test]
fn attempts_counted_here_are_newer_than_those_a_cache_shows() {
    let counts = AttemptCounts::default();
    let mut counted = Attempts::default();
    counted.driver.current = 2;
    counts.count("uid", counted.clone());
    assert_eq!(counts.attempts("uid", Some(&Attempts::default())), counted);
    counts.forget("uid");
    assert_eq!(counts.attempts("uid", Some(&Attempts::default())), Attempts::default());
}
