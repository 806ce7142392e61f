use super::*;

#[test]
fn all_metrics_of_a_query_are_found() {
    let query =
        r#"sum by (run) (rate(a_total{run=~"$run"}[$__rate_interval])) / on () (b or {__name__="c:d"} offset 2h)"#;
    assert_eq!(Vec::from_iter(metrics(query).unwrap()), ["a_total", "b", "c:d"]);
}

#[test]
fn a_query_that_does_not_parse_is_named() {
    let error = metrics("sum by (run) rate(a[").unwrap_err().to_string();
    assert!(error.starts_with("\"sum by (run) rate(a[\" is no PromQL"), "{error}");
}

#[test]
fn windows_and_offsets_become_short() {
    let query = "increase(a[30m]) > 5 and b offset 2h";
    assert_eq!(with_window(query, "20s"), "increase(a[20s]) > 5 and b offset 20s");
}
