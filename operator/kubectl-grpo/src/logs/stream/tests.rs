use super::*;

const LOG: &str = "2026-01-01T00:00:01.000000001Z one\n2026-01-01T00:00:02Z \n2026-01-01T00:00:03Z\nrest of it\n2026-01-01T00:00:04Z two words\n";

async fn all(after: Option<&str>) -> Vec<(String, String)> {
    let after = after.map(|text| text.parse().unwrap());
    let read: Vec<_> = lines(LOG.as_bytes(), after).collect().await;
    read.into_iter()
        .map(|line| line.map(|line| (line.at.to_string(), line.text)).unwrap())
        .collect()
}

#[tokio::test]
async fn every_line_has_its_time_and_a_bare_one_that_of_the_line_before() {
    let of = |text: &str, at: &str| (at.to_owned(), text.to_owned());
    assert_eq!(
        all(None).await,
        [
            of("one", "2026-01-01T00:00:01.000000001Z"),
            of("", "2026-01-01T00:00:02Z"),
            of("", "2026-01-01T00:00:03Z"),
            of("rest of it", "2026-01-01T00:00:03Z"),
            of("two words", "2026-01-01T00:00:04Z"),
        ]
    );
}

#[tokio::test]
async fn what_was_read_before_a_connection_broke_is_not_told_twice() {
    let texts: Vec<String> = all(Some("2026-01-01T00:00:03Z"))
        .await
        .into_iter()
        .map(|(_, text)| text)
        .collect();
    assert_eq!(texts, ["two words"]);
}

#[tokio::test]
async fn a_connection_that_breaks_is_told_behind_the_lines_it_brought() {
    let broken = futures::stream::iter([
        Ok("2026-01-01T00:00:01Z one\n"),
        Err(std::io::ErrorKind::ConnectionReset.into()),
    ]);
    let read: Vec<_> = lines(futures::TryStreamExt::into_async_read(broken), None)
        .collect()
        .await;
    assert_eq!(read[0].as_ref().unwrap().text, "one");
    assert!(read[1].is_err());
}
