//! The bars of benchmark figures, for the short variants of the benchmarks that run as tests.

use grpo_bench_report::Row;

/// Prints every figure and fails on one that misses its bar. Only units that `counts` accepts are judged: times on a
/// busy machine mean nothing, so only the benchmark itself has bars for them.
pub fn judge<E>(rows: std::result::Result<Vec<Row>, E>, counts: impl Fn(&str) -> bool) -> std::result::Result<(), E> {
    let rows = rows?;
    for row in &rows {
        let (bar, value) = (row.bar.as_deref().unwrap_or(""), row.value.unwrap_or(f64::NAN));
        eprintln!("{:<110} {value:>9.2} {} {bar}", row.figure, row.unit);
    }
    let missed: Vec<&Row> = rows
        .iter()
        .filter(|row| counts(&row.unit) && !row.meets_its_bar())
        .collect();
    assert!(missed.is_empty(), "{missed:?}");
    Ok(())
}
