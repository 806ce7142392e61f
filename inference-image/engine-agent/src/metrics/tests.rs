use super::*;
use std::collections::BTreeSet;

/// Name and type of each served metric, as in the book.
fn served(text: &str) -> BTreeSet<(String, String)> {
    let types = text
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    let named = |(name, kind): (&str, &str)| match kind {
        "counter" => (format!("{name}_total"), kind.to_owned()),
        _ => (name.to_owned(), kind.to_owned()),
    };
    types.map(named).collect()
}

#[test]
fn the_book_lists_exactly_the_metrics_that_an_agent_serves() {
    let page = include_str!("../../../../docs/src/metrics.md");
    let (_, own) = page.split_once("\n## An engine agent's\n").unwrap();
    let (own, _) = own.split_once("\n## ").unwrap();
    let rows = own.lines().filter_map(|line| {
        let mut cells = line.strip_prefix("| `")?.split(" | ");
        let (name, kind) = (cells.next()?.trim_end_matches('`'), cells.next()?);
        Some((name.to_owned(), kind.to_owned()))
    });
    let metrics = Metrics::default();
    metrics.count(Some(&ErrorBody::wrong_weights(None, "0001-a")));
    let text = metrics
        .text(&serde_json::from_str(r#"{"instance": "a", "state": "Failed"}"#).unwrap())
        .unwrap();
    assert_eq!(rows.collect::<BTreeSet<_>>(), served(&text), "{text}");
}

#[test]
fn an_engine_that_sleeps_is_not_behind() {
    let behind = |state: &str| {
        let status = format!(r#"{{"instance": "a", "state": "{state}", "wanted": "a-v1"}}"#);
        let text = Metrics::default()
            .text(&serde_json::from_str(&status).unwrap())
            .unwrap();
        text.lines().any(|line| line == "grpo_agent_behind 1")
    };
    assert!(behind("Loading"));
    assert!(!behind("Asleep"));
}
