use super::*;
use grpo_records::{SCHEMA, Vote, Writer, fixture};
use std::collections::BTreeSet;

/// At least one value of every metric: a family without members is not served.
fn filled() -> Metrics {
    let metrics = Metrics::default();
    metrics.verdict(&fixture::episode("a", 0, Outcome::Resolved).meta);
    metrics.void(VoidReason::SandboxLost);
    metrics.dropped(DropReason::NoSignal);
    metrics.vote(VoteEnd::Counted);
    metrics
}

/// Name, kind and labels of each served metric, as in Prometheus.
fn served(text: &str) -> BTreeSet<(String, String, String)> {
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let of = |line: &str| {
        let (name, kind) = line.split_once(' ')?;
        let name = match kind {
            "counter" => format!("{name}_total"),
            _ => name.to_owned(),
        };
        let is_value = |line: &&str| {
            line.strip_prefix(&name)
                .is_some_and(|rest| rest.starts_with(['{', ' ']))
        };
        let value = text.lines().find(is_value);
        let inside = value.and_then(|value| value.split_once('{')?.1.split_once('}'));
        let labels = inside.map_or("", |(labels, _)| labels).split(',');
        let labels: Vec<&str> = labels.filter_map(|label| Some(label.split_once('=')?.0)).collect();
        assert!(value.is_some(), "{name} has no member: touch it in `filled`");
        Some((name, kind.to_owned(), labels.join(", ")))
    };
    types.filter_map(of).collect()
}

/// The rows of the page's table.
fn documented(page: &str) -> BTreeSet<(String, String, String)> {
    let cells = |line: &str| {
        let mut cells = line.strip_prefix("| `")?.split(" | ");
        let name = cells.next()?.trim_end_matches('`').to_owned();
        let (kind, labels) = (cells.next()?.to_owned(), cells.next()?.replace('`', ""));
        Some((name, kind, labels.trim().to_owned()))
    };
    page.lines().filter_map(cells).collect()
}

#[test]
fn the_book_lists_exactly_the_metrics_that_a_driver_serves() {
    let page = include_str!("../../../../docs/src/metrics.md");
    let (_, own) = page.split_once("\n## A driver's\n").unwrap();
    let (own, _) = own.split_once("\n## ").unwrap();
    assert_eq!(documented(own), served(&filled().text()));
}

#[test]
fn counters_with_known_labels_begin_at_zero() {
    let text = Metrics::default().text();
    for reason in VoidReason::ALL {
        let line = format!("grpo_driver_voids_total{{reason=\"{reason:?}\"}} 0\n");
        assert!(text.contains(&line), "{line:?} is not in:\n{text}");
    }
    assert!(
        text.contains("grpo_driver_episodes_total{outcome=\"Resolved\"} 0\n"),
        "{text}"
    );
}

#[test]
fn votes_are_counted_by_what_became_of_them() {
    let metrics = Metrics::default();
    let vote = |vote: Option<i8>, lost: bool, refused: bool| Vote {
        vote,
        lost: lost.then(|| "503".to_owned()),
        refused: refused.then(|| "413".to_owned()),
        ..Vote::default()
    };
    let judged = JudgedTurn {
        schema: SCHEMA,
        writer: Writer::driver(1),
        episode: "a__g0__i0".into(),
        turn: 0,
        prompt_sha256: String::new(),
        votes: vec![
            vote(Some(1), false, false),
            vote(Some(-1), false, false),
            vote(None, false, false),
            vote(None, true, false),
            vote(None, false, true),
        ],
        score: Some(0.0),
        at: 0,
    };
    metrics.judged(&judged);
    let text = metrics.text();
    for (end, count) in VoteEnd::ALL.into_iter().zip([2, 1, 1, 1]) {
        let line = format!("grpo_driver_judge_votes_total{{outcome=\"{end:?}\"}} {count}\n");
        assert!(text.contains(&line), "{line:?} is not in:\n{text}");
    }
}
