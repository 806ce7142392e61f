//! Queries: the metrics that they name, and the same queries with short windows for tests.

use promql_parser::label::METRIC_NAME;
use promql_parser::parser::{self, Expr, VectorSelector};
use promql_parser::util::{ExprVisitor, walk_expr};
use regex::Regex;
use std::collections::BTreeSet;

#[derive(Debug, thiserror::Error)]
#[error("{query:?} is no PromQL: {what}")]
pub struct PromqlError {
    query: String,
    what: String,
}

/// Grafana's variables, as a query without Grafana has them.
const GRAFANA: [(&str, &str); 3] = [("$__rate_interval", "1m"), ("$__interval", "15s"), ("$__range", "1h")];

struct Names(BTreeSet<String>);

impl Names {
    fn take(&mut self, selector: &VectorSelector) {
        let named = selector
            .matchers
            .matchers
            .iter()
            .find(|matcher| matcher.name == METRIC_NAME);
        self.0
            .extend(selector.name.clone().or(named.map(|matcher| matcher.value.clone())));
    }
}

impl ExprVisitor for Names {
    type Error = PromqlError;

    fn pre_visit(&mut self, expression: &Expr) -> Result<bool, PromqlError> {
        match expression {
            Expr::VectorSelector(selector) => self.take(selector),
            Expr::MatrixSelector(selector) => self.take(&selector.vs),
            _ => {}
        }
        Ok(true)
    }
}

/// The names of the metrics of a query. Grafana's variables may be in it.
pub fn metrics(query: &str) -> Result<BTreeSet<String>, PromqlError> {
    let plain = without_grafana(query);
    let expression = parser::parse(&plain).map_err(|what| PromqlError {
        query: query.to_owned(),
        what,
    })?;
    let mut names = Names(BTreeSet::new());
    walk_expr(&mut names, &expression)?;
    Ok(names.0)
}

/// A query with values in place of Grafana's own variables. The variables of a dashboard stay: they are in strings.
pub fn without_grafana(query: &str) -> String {
    let replaced = |text: String, (name, value): &(&str, &str)| text.replace(name, value);
    GRAFANA.iter().fold(query.to_owned(), replaced)
}

/// The query with every range and offset replaced: `[30m]` and `offset 2h` by `[window]` and `offset window`.
pub fn with_window(query: &str, window: &str) -> String {
    let pattern = Regex::new(r"\[[0-9]+[smhd]\]|offset [0-9]+[smhd]");
    let replacement = |found: &regex::Captures<'_>| match found[0].starts_with('[') {
        true => format!("[{window}]"),
        false => format!("offset {window}"),
    };
    match pattern {
        Ok(pattern) => pattern.replace_all(query, replacement).into_owned(),
        Err(_) => query.to_owned(),
    }
}

#[cfg(test)]
mod tests;
