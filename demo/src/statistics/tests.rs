use super::*;

#[test]
fn tasks_that_all_agree_leave_no_doubt() {
    let values: Clustered = vec![("f", 0.5), ("g", 0.5), ("h", 0.5)];
    let e = estimate(&values).unwrap();
    assert_eq!((e.value, e.low, e.high), (0.5, 0.5, 0.5));
}

#[test]
fn the_interval_of_independent_tasks_is_the_textbook_one() {
    let names: Vec<String> = (0..100).map(|i| format!("f{i}")).collect();
    let values: Clustered = names
        .iter()
        .enumerate()
        .map(|(i, n)| (n.as_str(), f64::from(i % 2 == 0)))
        .collect();
    let e = estimate(&values).unwrap();
    // 1.96 * sqrt(0.25 / 100) = 0.098
    assert!((e.high - e.low - 0.196).abs() < 0.02, "{e:?}");
    assert_eq!(e.value, 0.5);
}

#[test]
fn tasks_of_one_function_count_as_little_more_than_one() {
    let names: Vec<String> = (0..10).map(|i| format!("f{i}")).collect();
    let alone: Clustered = names
        .iter()
        .enumerate()
        .map(|(i, n)| (n.as_str(), f64::from(i < 5)))
        .collect();
    let tenfold: Clustered = alone.iter().flat_map(|one| std::iter::repeat_n(*one, 10)).collect();
    assert_eq!(estimate(&alone).unwrap(), estimate(&tenfold).unwrap());
}

#[test]
fn the_same_values_give_the_same_interval() {
    let values: Clustered = vec![("f", 0.1), ("g", 0.7), ("h", 0.4)];
    assert_eq!(estimate(&values), estimate(&values));
}

#[test]
fn pass_at_k_counts_the_draws_that_miss() {
    let t = Tally { resolved: 1, valid: 4 };
    assert_eq!(t.pass_at(1), Some(0.25));
    assert_eq!(t.pass_at(2), Some(0.5));
    assert_eq!(t.pass_at(4), Some(1.0));
    assert_eq!(t.pass_at(5), None);
    assert_eq!(Tally { resolved: 0, valid: 8 }.pass_at(8), Some(0.0));
}

#[test]
fn a_task_without_a_verdict_has_no_rate() {
    assert_eq!(Tally::default().rate(), None);
}
