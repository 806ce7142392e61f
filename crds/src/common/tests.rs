use super::*;

#[test]
fn periods_are_read_as_people_write_them_and_written_as_they_are_read() {
    for (text, seconds) in [("90s", 90), ("30m", 1800), ("1h30m", 5400), ("2h", 7200), ("0s", 0)] {
        let period: Period = text.parse().unwrap();
        assert_eq!(period.as_secs(), seconds, "{text}");
        assert_eq!(period.to_string().parse::<Period>().unwrap(), period);
    }
    assert_eq!(
        "500ms".parse::<Period>().unwrap().duration(),
        Duration::from_millis(500)
    );
    assert_eq!("90s".parse::<Period>().unwrap().to_string(), "1m30s");
}

#[test]
fn what_is_no_period_is_refused_with_an_example_of_one() {
    for text in ["", "30", "-5s", "five minutes", "1d"] {
        let error = text.parse::<Period>().unwrap_err().to_string();
        assert!(error.contains("write it like 90s"), "{text}: {error}");
    }
}
