use super::*;

fn tasks(lines: &[&str]) -> Tasks {
    let mut tasks = Tasks::default();
    tasks
        .rows
        .take(std::path::Path::new("rows.jsonl"), &lines.join("\n"))
        .unwrap();
    tasks
}

#[test]
fn the_best_constant_edit_is_the_repair_that_most_tasks_share() {
    let tasks = tasks(&[
        r#"{"instance_id":"a","repair":["<","<="]}"#,
        r#"{"instance_id":"b","repair":["<","<="]}"#,
        r#"{"instance_id":"c","repair":["and","or"]}"#,
        r#"{"instance_id":"d","repair":["==","!="]}"#,
    ]);
    assert_eq!(
        tasks.best_constant_edit(["a", "b", "c", "d"].into_iter()),
        Some(("< -> <=".into(), 0.5))
    );
}

#[test]
fn a_task_whose_row_is_unknown_is_a_cluster_of_its_own() {
    let tasks = tasks(&[r#"{"instance_id":"a","function":"pkg:f"}"#]);
    assert_eq!((tasks.function("a"), tasks.function("x")), ("pkg:f", "x"));
}
