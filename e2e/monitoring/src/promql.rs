//! Queries: the metrics that they name, and the same queries with short windows for tests.
//!
//! Names are found by their beginnings, which all our metrics and recorded series have. Whether a query parses is for
//! promtool to say (`make check-monitoring`).

use regex::Regex;
use std::collections::BTreeSet;

/// How the names of metrics begin: ours, those that rules record, those of engines, and the few of Prometheus' clients.
const NAMES: &str = r"\b(grpo_|process_|up\b|run:|namespace:|sandbox_pool:|vllm:|sglang:)[a-zA-Z0-9_:]*";
/// Ranges and offsets.
const WINDOWS: &str = r"\[[0-9]+[smhd]\]|offset [0-9]+[smhd]";

/// Grafana's variables, as a query without Grafana has them.
const GRAFANA: [(&str, &str); 3] = [("$__rate_interval", "1m"), ("$__interval", "15s"), ("$__range", "1h")];

/// The names of the metrics of a query.
pub fn metrics(query: &str) -> Result<BTreeSet<String>, regex::Error> {
    let names = Regex::new(NAMES)?;
    // A value in quotes may look like a name: job=~".*grpo.*". A name in quotes is that of an engine.
    let quoted = Regex::new("=~?\"[^\"]*grpo[^\"]*\"")?;
    let query = quoted.replace_all(query, "");
    Ok(names.find_iter(&query).map(|found| found.as_str().to_owned()).collect())
}

/// A query with values in place of Grafana's own variables. The variables of a dashboard stay: they are in strings.
pub fn without_grafana(query: &str) -> String {
    let replaced = |text: String, (name, value): &(&str, &str)| text.replace(name, value);
    GRAFANA.iter().fold(query.to_owned(), replaced)
}

/// The query with every range and offset replaced: `[30m]` and `offset 2h` by `[window]` and `offset window`.
pub fn with_window(query: &str, window: &str) -> String {
    let replacement = |found: &regex::Captures<'_>| match found[0].starts_with('[') {
        true => format!("[{window}]"),
        false => format!("offset {window}"),
    };
    match Regex::new(WINDOWS) {
        Ok(pattern) => pattern.replace_all(query, replacement).into_owned(),
        Err(_) => query.to_owned(),
    }
}

#[cfg(test)]
mod tests;
