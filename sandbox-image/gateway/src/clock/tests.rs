use super::*;
use std::time::Duration;

#[test]
fn deadlines_follow_what_has_passed_and_not_the_time_of_day() {
    let began = Beginning {
        time_of_day: 1_000_000,
        instant: Instant::now(),
    };
    assert_eq!(began.at(began.instant + Duration::from_secs(5)), 1_005_000);
    assert_eq!(began.at(began.instant), 1_000_000);
    assert!((now() - time_of_day()).abs() < 60_000, "people can read it");
}
