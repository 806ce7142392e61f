//! One container's log as lines with times.

use futures::{AsyncBufRead, AsyncBufReadExt, Stream, StreamExt};
use jiff::Timestamp;

/// A line with its time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stamped {
    pub at: Timestamp,
    pub text: String,
}

/// Lines with the kubelet's times, until the log ends or its connection breaks. Skips lines that are not newer than
/// `after`: they arrived before an earlier connection broke.
pub fn lines(log: impl AsyncBufRead, after: Option<Timestamp>) -> impl Stream<Item = std::io::Result<Stamped>> {
    let mut repeated = after;
    let mut last = after;
    log.lines().filter_map(move |line| {
        let line = line.map(|line| {
            let (at, text) = stamped(&line);
            // A line without a time continues the line before it.
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

/// The kubelet's time in front of a line, and the line.
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
