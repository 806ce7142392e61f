use super::*;

#[test]
fn all_metrics_of_a_query_are_found() {
    let query = r#"sum by (run) (rate(grpo_a_total{run=~"$run"}[5m])) / on () (up{job=~".*grpo.*"} or {ON,__name__="vllm:b"} or run:c:d offset 2h or namespace:grpo_e:max)"#;
    assert_eq!(
        Vec::from_iter(metrics(query).unwrap()),
        ["grpo_a_total", "namespace:grpo_e:max", "run:c:d", "up", "vllm:b"]
    );
}

#[test]
fn windows_and_offsets_become_short() {
    let query = "increase(a[30m]) > 5 and b offset 2h";
    assert_eq!(with_window(query, "20s"), "increase(a[20s]) > 5 and b offset 20s");
}
