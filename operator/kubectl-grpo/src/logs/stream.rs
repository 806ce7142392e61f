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
mod tests;
