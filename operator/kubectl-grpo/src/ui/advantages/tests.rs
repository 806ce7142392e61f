use super::*;

fn folder(name: &str) -> String {
    format!("rollouts/iter-000003/{name}")
}

fn joined(rows: &[&str], lists: &[&[f64]]) -> Vec<(String, f64)> {
    let rows: Vec<String> = rows.iter().map(|name| folder(name)).collect();
    let lists: Vec<Vec<f64>> = lists.iter().map(|list| list.to_vec()).collect();
    let name = |path: String| path.rsplit('/').next().unwrap().to_owned();
    let found = by_episode(&rows, &lists).into_iter();
    found.map(|(path, advantage)| (name(path), advantage)).collect()
}

#[test]
fn an_advantage_belongs_to_the_episode_that_the_rows_name() {
    // Group 1 was dropped, sample 1 of group 0 is void, and sample 2 was judged in its second attempt. An episode of
    // several rows counts once.
    let rows = ["a__g0__i0", "a__g0__i0", "a__g0__i2__t2", "b__g2__i1", "b__g2__i0"];
    let found = joined(&rows, &[&[0.5, -0.5], &[1.0, -1.0]]);
    let wanted = [
        ("a__g0__i0", 0.5),
        ("a__g0__i2__t2", -0.5),
        ("b__g2__i0", -1.0),
        ("b__g2__i1", 1.0),
    ];
    assert_eq!(found, wanted.map(|(name, advantage)| (name.to_owned(), advantage)));
}

#[test]
fn a_group_that_the_trainer_dropped_has_no_advantages_and_shifts_no_other() {
    let found = joined(&["a__g0__i0", "b__g1__i0", "b__g1__i1"], &[&[], &[0.5, -0.5]]);
    assert_eq!(found, [("b__g1__i0".to_owned(), 0.5), ("b__g1__i1".to_owned(), -0.5)]);
}

#[test]
fn lists_that_do_not_fit_the_rows_give_no_advantages() {
    // A list less, a list that is too short, lists of single turns, and a row of no episode.
    assert!(joined(&["a__g0__i0", "b__g1__i0"], &[&[0.5]]).is_empty());
    assert!(joined(&["a__g0__i0", "a__g0__i1"], &[&[0.5]]).is_empty());
    assert!(joined(&["a__g0__i0", "a__g0__i1"], &[&[0.5, -0.5], &[0.5, -0.5]]).is_empty());
    assert!(by_episode(&["conversations".to_owned()], &[vec![0.5]]).is_empty());
}
