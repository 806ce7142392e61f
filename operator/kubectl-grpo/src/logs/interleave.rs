//! Merges lines of many sources into one order, by their times.
//!
//! Pure: lines go in as they arrive, and come out oldest first. A line comes out when every open source has shown a
//! later one, so complete logs come out in exact order. While following, a source may be silent for hours: a line then
//! comes out after `patience`, and an older one that arrives later comes out late rather than never.

use jiff::Timestamp;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::{Duration, Instant};

/// Identifies a source: a container of a pod in one of its lives.
pub type SourceId = u64;

/// One line of one source.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Line {
    pub at: Timestamp,
    /// The order of arrival, which decides between lines of one time and one source.
    arrived: u64,
    pub source: SourceId,
    pub text: String,
    since: Instant,
}

/// Lines that wait for output.
pub struct Interleaver {
    /// `None`: until every open source has shown a later line.
    patience: Option<Duration>,
    /// Open sources, and the time of their newest line.
    open: BTreeMap<SourceId, Option<Timestamp>>,
    waiting: BinaryHeap<Reverse<Line>>,
    arrivals: u64,
}

impl Interleaver {
    pub fn new(patience: Option<Duration>) -> Self {
        Self {
            patience,
            open: BTreeMap::new(),
            waiting: BinaryHeap::new(),
            arrivals: 0,
        }
    }

    /// From now on, lines wait for this source.
    pub fn open(&mut self, source: SourceId) {
        self.open.entry(source).or_default();
    }

    /// Ends a source: it has no more lines.
    pub fn close(&mut self, source: SourceId) {
        self.open.remove(&source);
    }

    pub fn is_idle(&self) -> bool {
        self.open.is_empty() && self.waiting.is_empty()
    }

    /// Adds a line. A source's own lines never swap: a line that is older than its predecessor gets the predecessor's
    /// time.
    pub fn push(&mut self, source: SourceId, at: Timestamp, text: String, now: Instant) {
        let newest = self.open.entry(source).or_default();
        let at = newest.map_or(at, |before| before.max(at));
        *newest = Some(at);
        self.arrivals += 1;
        self.waiting.push(Reverse(Line {
            at,
            arrived: self.arrivals,
            source,
            text,
            since: now,
        }));
    }

    /// Lines that are ready for output.
    pub fn ready(&mut self, now: Instant) -> Vec<Line> {
        let seen_by_all = self.seen_by_all();
        let mut ready = Vec::new();
        while let Some(Reverse(first)) = self.waiting.peek() {
            let overtaken = seen_by_all.is_none_or(|bound| bound.is_some_and(|bound| first.at <= bound));
            let tired = self
                .patience
                .is_some_and(|patience| now.duration_since(first.since) >= patience);
            if !overtaken && !tired {
                break;
            }
            if let Some(Reverse(line)) = self.waiting.pop() {
                ready.push(line);
            }
        }
        ready
    }

    /// The end of the oldest line's patience.
    pub fn next_turn(&self) -> Option<Instant> {
        let first = &self.waiting.peek()?.0;
        Some(first.since + self.patience?)
    }

    /// The time up to which every open source has shown a line: `None` without open sources, `Some(None)` if one has
    /// shown none.
    fn seen_by_all(&self) -> Option<Option<Timestamp>> {
        self.open.values().copied().min()
    }
}

#[cfg(test)]
mod tests;
