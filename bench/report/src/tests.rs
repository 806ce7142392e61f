use super::*;

#[test]
fn a_bar_is_a_sign_and_a_number_and_a_missing_value_misses_it() {
    let row = |value, bar| Row::new("f", value, "u", bar);
    assert!(row(Some(20.0), Some(">= 20")).meets_its_bar());
    assert!(!row(Some(0.0), Some("> 0")).meets_its_bar());
    assert!(row(Some(-1.0), Some("<= 0")).meets_its_bar());
    assert!(!row(Some(1.0), Some("= 0")).meets_its_bar());
    assert!(!row(None, Some("= 0")).meets_its_bar());
    assert!(row(None, None).meets_its_bar());
}

#[test]
fn values_are_rounded_by_places_or_by_digits() {
    assert_eq!(Row::new("f", Some(0.000_04), "", None).value, Some(0.0));
    let row = Row::significant("f", 0.000_012_346, "", None).beside("peer", 123_456.0);
    assert_eq!((row.value, row.peer_value), (Some(0.000_012_35), Some(123_500.0)));
}

#[test]
fn rows_are_merged_by_the_number_of_their_figure() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("results.json");
    let bench = |commit: &str, rows: Vec<Row>| Bench {
        commit: commit.to_owned(),
        machine: format!("machine of {commit}"),
        versions: vec![format!("rustc {commit}"), format!("peer-{commit} 1")],
        rows,
    };
    let row = |figure: &str, value| Row::significant(figure, value, "s", None);
    let first = bench("a", vec![row("1: x", 1.0), row("1: y", 2.0), row("2: z", 3.0)]);
    first.write(&path).unwrap();
    let second = bench("b", vec![row("1: x", 4.0)]).merged_with(&path);
    let rows: Vec<_> = second
        .rows
        .iter()
        .map(|row| (&*row.figure, row.value, &*row.commit, &*row.machine))
        .collect();
    assert_eq!(
        rows,
        [
            ("1: x", Some(4.0), "b", "machine of b"),
            ("2: z", Some(3.0), "", "machine of a")
        ]
    );
    assert_eq!(second.versions, ["rustc b", "peer-b 1", "peer-a 1"]);
    second.write(&path).unwrap();
    assert_eq!(
        serde_json::from_slice::<Bench>(&std::fs::read(&path).unwrap()).unwrap(),
        second
    );
}

#[test]
fn a_file_of_several_runs_keeps_its_rows_and_their_commits() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../results/trainer.json");
    let file: Bench = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let merged = Bench::of_this_machine(&[Row::significant("0: nothing", 0.0, "", None)]).merged_with(&path);
    assert!(merged.rows.len() == file.rows.len() + 1 && file.rows.iter().all(|row| merged.rows.contains(row)));
}
