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
        // Arrivals in any order, then the rest.
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
