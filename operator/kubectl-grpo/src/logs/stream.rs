//! One container's log as lines with their times.

use futures::{AsyncBufRead, AsyncBufReadExt, Stream, StreamExt};
use jiff::Timestamp;

/// What a reader of a log is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stamped {
    pub at: Timestamp,
    pub text: String,
}

/// Lines that the kubelet put times before, until the log ends or its connection breaks. Lines that are not newer than
/// `after` were taken before an earlier connection broke, and are passed over.
pub fn lines(log: impl AsyncBufRead, after: Option<Timestamp>) -> impl Stream<Item = std::io::Result<Stamped>> {
    let mut repeated = after;
    let mut last = after;
    log.lines().filter_map(move |line| {
        let line = line.map(|line| {
            let (at, text) = stamped(&line);
            // A line without a time of its own is the rest of the one before it.
            let at = at.or(last).unwrap_or(Timestamp::UNIX_EPOCH);
            if repeated.is_some_and(|before| at <= before) {
                return None;
            }
            repeated = None;
            last = Some(at);
            Some(Stamped {
                at,
                text: text.to_owned(),
            })
        });
        std::future::ready(line.transpose())
    })
}

/// The time the kubelet put before a line, and the line.
fn stamped(line: &str) -> (Option<Timestamp>, &str) {
    match line.split_once(' ').map(|(time, rest)| (time.parse().ok(), rest)) {
        Some((Some(at), rest)) => (Some(at), rest),
        _ => match line.parse() {
            Ok(at) => (Some(at), ""),
            Err(_) => (None, line),
        },
    }
}

#[cfg(test)]
mod tests {
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
}
