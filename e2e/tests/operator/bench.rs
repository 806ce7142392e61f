//! The operator on a control plane without nodes: what it costs, what outages do to it, whether it places runs whole.
//! The short variants of `make bench-operator`.
//!
//! Needs the programs that `make setup` builds and the operator's binary: `make test-operator`.

use grpo_bench::operator_bench::{RigError, capacity, outages, rest};
use grpo_bench_report::Row;

/// Memory and requests mean the same on a busy machine; milliseconds do not, so of those the bench alone has bars.
fn judge(rows: Result<Vec<Row>, RigError>) -> Result<(), RigError> {
    let rows = rows?;
    for row in &rows {
        eprintln!(
            "{:<95} {:>9.2} {} {}",
            row.figure,
            row.value.unwrap_or(f64::NAN),
            row.unit,
            row.bar.as_deref().unwrap_or("")
        );
    }
    let timed = |row: &&Row| matches!(row.unit.as_str(), "ms" | "events/s");
    let missed: Vec<&Row> = rows
        .iter()
        .filter(|row| !row.meets_its_bar())
        .filter(|row| !timed(row))
        .collect();
    assert!(missed.is_empty(), "{missed:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "starts a control plane: make test-operator"]
async fn an_operator_at_rest_asks_for_nothing_and_answers_each_event() -> Result<(), RigError> {
    judge(rest::measure(rest::Scale::SHORT).await)
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "starts a control plane: make test-operator"]
async fn outages_kills_and_a_second_operator_make_nothing_anew_and_lose_nothing() -> Result<(), RigError> {
    judge(outages::measure(outages::Scale::SHORT).await)
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "starts a control plane: make test-operator"]
async fn runs_that_do_not_fit_together_are_placed_whole_one_after_the_other() -> Result<(), RigError> {
    judge(capacity::measure(capacity::Scale::SHORT).await)
}
