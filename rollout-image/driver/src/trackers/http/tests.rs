use super::*;

#[test]
fn a_wait_is_read_from_seconds_and_from_dates() {
    let now = jiff::Timestamp::from_second(784_111_777).unwrap();
    for (header, seconds) in [
        ("7", Some(7)),
        (" 0 ", Some(0)),
        ("0.2", Some(1)),
        ("100000", Some(300)),
        ("Sun, 06 Nov 1994 08:50:39 GMT", Some(62)),
        // In the past.
        ("Sun, 06 Nov 1994 08:49:30 GMT", Some(0)),
        ("-1", None),
        ("nan", None),
        ("soon", None),
        ("", None),
    ] {
        let headers = HeaderMap::from_iter([(RETRY_AFTER, header.parse().unwrap())]);
        let wait = wait_asked(&headers, now);
        assert_eq!(wait.map(|wait| wait.as_secs()), seconds, "{header:?}");
    }
    assert_eq!(wait_asked(&HeaderMap::new(), now), None);
}
