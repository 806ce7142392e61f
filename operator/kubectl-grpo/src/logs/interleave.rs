//! Lines of many sources in one order, by their times.
//!
//! Pure: lines go in as they arrive, and come out oldest first. A line is let out when every open source has shown a
//! later one, so what is read whole comes out in exact order. While following, a source may be silent for hours: then a
//! line is let out when it has waited for `patience`, and a still older one that arrives later comes out late rather
//! than never.

use jiff::Timestamp;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::{Duration, Instant};

/// Names a source: a container of a pod in one of its lives.
pub type SourceId = u64;

/// One line of one source.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Line {
    pub at: Timestamp,
    /// In which order lines arrived: lines of one time and one source stay in it.
    arrived: u64,
    pub source: SourceId,
    pub text: String,
    since: Instant,
}

/// Lines that wait for their turn.
pub struct Interleaver {
    /// None: until every open source has shown a later line.
    patience: Option<Duration>,
    /// Open sources and the time of their newest line.
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

    /// From now on lines of this source are waited for.
    pub fn open(&mut self, source: SourceId) {
        self.open.entry(source).or_default();
    }

    /// No more lines of this source.
    pub fn close(&mut self, source: SourceId) {
        self.open.remove(&source);
    }

    pub fn is_idle(&self) -> bool {
        self.open.is_empty() && self.waiting.is_empty()
    }

    /// A line has arrived. A source's own lines never change places: one that is older than its predecessor takes the
    /// predecessor's time.
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

    /// Lines whose turn it is.
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

    /// When the oldest line's patience ends.
    pub fn next_turn(&self) -> Option<Instant> {
        let first = &self.waiting.peek()?.0;
        Some(first.since + self.patience?)
    }

    /// Up to when every open source has spoken: None when none is open, Some(None) when one has not spoken at all.
    fn seen_by_all(&self) -> Option<Option<Timestamp>> {
        self.open.values().copied().min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn second(n: i64) -> Timestamp {
        Timestamp::from_second(n).unwrap()
    }

    fn texts(lines: Vec<Line>) -> Vec<String> {
        lines.into_iter().map(|line| line.text).collect()
    }

    #[test]
    fn a_line_waits_until_every_source_has_shown_a_later_one() {
        let mut lines = Interleaver::new(None);
        let now = Instant::now();
        lines.open(1);
        lines.open(2);
        lines.push(1, second(5), "b".into(), now);
        assert_eq!(lines.ready(now), []);
        lines.push(2, second(3), "a".into(), now);
        assert_eq!(texts(lines.ready(now)), ["a"]);
        lines.push(2, second(9), "c".into(), now);
        assert_eq!(texts(lines.ready(now)), ["b"]);
        lines.close(1);
        lines.close(2);
        assert_eq!(texts(lines.ready(now)), ["c"]);
        assert!(lines.is_idle());
    }

    #[test]
    fn a_silent_source_holds_the_others_up_no_longer_than_patience() {
        let patience = Duration::from_millis(500);
        let mut lines = Interleaver::new(Some(patience));
        let now = Instant::now();
        lines.open(1);
        lines.open(2);
        lines.push(1, second(5), "a".into(), now);
        assert_eq!(lines.ready(now + patience / 2), []);
        assert_eq!(lines.next_turn(), Some(now + patience));
        assert_eq!(texts(lines.ready(now + patience)), ["a"]);
    }

    #[test]
    fn lines_of_one_source_never_change_places_even_when_its_clock_goes_back() {
        let mut lines = Interleaver::new(None);
        let now = Instant::now();
        lines.push(1, second(5), "a".into(), now);
        lines.push(1, second(4), "b".into(), now);
        lines.push(1, second(5), "c".into(), now);
        lines.close(1);
        assert_eq!(texts(lines.ready(now)), ["a", "b", "c"]);
    }

    proptest! {
        #[test]
        fn sources_read_whole_come_out_sorted_and_complete(
            sources in prop::collection::vec(prop::collection::vec(0i64..50, 0..20), 1..6),
            order in prop::collection::vec(0usize..6, 0..200),
        ) {
            let mut lines = Interleaver::new(None);
            let now = Instant::now();
            let mut sources: Vec<std::collections::VecDeque<i64>> = sources
                .into_iter()
                .map(|mut times| { times.sort_unstable(); times.into() })
                .collect();
            let total: usize = sources.iter().map(|source| source.len()).sum();
            (0..).zip(&sources).for_each(|(id, _)| lines.open(id));
            let mut out = Vec::new();
            // Arrivals in any order, then whatever is left.
            let rest = (0..sources.len()).flat_map(|source| std::iter::repeat_n(source, 20));
            for source in order.into_iter().chain(rest) {
                if let Some(time) = sources.get_mut(source).and_then(|times| times.pop_front()) {
                    lines.push(source as u64, second(time), String::new(), now);
                    out.extend(lines.ready(now));
                }
            }
            (0..).zip(&sources).for_each(|(id, _)| lines.close(id));
            out.extend(lines.ready(now));
            prop_assert_eq!(out.len(), total);
            prop_assert!(out.is_sorted_by_key(|line| line.at));
        }
    }
}
