use super::selection::{Selection, for_iteration};
use super::*;
use grpo_crds::grpo_run::{RowFormat, TaskOrder};

fn row(id: &str) -> Value {
    serde_json::json!({
        "instance_id": id, "repo": "r/r", "version": "1", "problem_statement": "fix", "patch": "gold",
        "FAIL_TO_PASS": "[\"a\"]", "PASS_TO_PASS": ["b"], "eval_script": "x", "log_parser": "p", "eval_type": "pass_and_fail",
        "image": "i:1", "base_commit": "abc", "env": {"F": "a.py"},
    })
}

fn file(rows: &[String]) -> (tempfile::TempDir, Selection) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("train.jsonl");
    std::fs::write(&path, rows.join("\n")).unwrap();
    let selection = Selection {
        file: path,
        ..Selection::default()
    };
    (dir, selection)
}

#[test]
fn a_row_becomes_a_task_and_the_policy_never_sees_the_gold_patch() {
    let (_dir, selection) = file(&[row("a__b-1").to_string()]);
    let tasks = load(&selection).unwrap();
    assert_eq!((tasks[0].instance.as_str(), tasks[0].image.as_str()), ("a__b-1", "i:1"));
    assert_eq!(tasks[0].environment.variables["F"], "a.py");
    assert!(!format!("{:?}", tasks[0].variables()).contains("gold"));
}

#[test]
fn an_unreadable_row_names_file_line_and_field() {
    let mut second = row("b");
    second["FAIL_TO_PASS"] = Value::String("not json".into());
    let (_dir, selection) = file(&[row("a").to_string(), second.to_string()]);
    let fault = load(&selection).unwrap_err();
    assert_eq!(fault.reason, "TaskRowInvalid");
    assert!(
        fault.message.contains("train.jsonl line 2, field FAIL_TO_PASS"),
        "{fault}"
    );

    let (_dir, selection) = file(&["{\"instance_id\":".to_owned()]);
    assert!(load(&selection).unwrap_err().message.contains("line 1, field (row)"));
    let mut no_parser = row("c");
    no_parser.as_object_mut().unwrap().remove("log_parser");
    let (_dir, selection) = file(&[no_parser.to_string()]);
    assert!(
        load(&selection)
            .unwrap_err()
            .message
            .contains("line 1, field log_parser: missing")
    );
}

#[test]
fn an_instance_that_would_climb_out_of_the_store_is_refused() {
    let (_dir, selection) = file(&[row("../../etc").to_string()]);
    assert!(load(&selection).unwrap_err().message.contains("field instance_id"));
}

#[test]
fn a_row_without_an_image_gets_the_swebench_name() {
    let mut one = row("django__django-11099");
    one.as_object_mut().unwrap().remove("image");
    let (_dir, selection) = file(&[one.to_string()]);
    let task = &load(&selection).unwrap()[0];
    assert_eq!(
        task.image,
        "docker.io/swebench/sweb.eval.x86_64.django_1776_django-11099:latest"
    );
    assert_eq!(task.row["image"], Value::String(task.image.clone()));
}

#[test]
fn the_agent_has_the_environment_in_which_the_tests_run() {
    let activation = |change: &dyn Fn(&mut Map<String, Value>)| {
        let mut one = row("django__django-11099");
        change(one.as_object_mut().unwrap());
        let (_dir, selection) = file(&[one.to_string()]);
        load(&selection).map(|tasks| tasks[0].environment.activation.clone())
    };
    let own = |script: &str| Value::String(script.to_owned());
    assert_eq!(activation(&|_| {}).unwrap(), None);
    let of_swe_bench = activation(&|row| drop(row.remove("image"))).unwrap().unwrap();
    assert!(of_swe_bench.ends_with("conda activate testbed"), "{of_swe_bench}");
    let mirrored = |row: &mut Map<String, Value>| {
        row.insert(
            "image".into(),
            own("mirror.example/swebench/sweb.eval.x86_64.a_1776_b-1:v2"),
        );
    };
    assert_eq!(activation(&mirrored).unwrap(), Some(of_swe_bench));
    let given = activation(&|row| {
        row.remove("image");
        row.insert("activate".into(), own(". /opt/venv/bin/activate"));
    });
    assert_eq!(given.unwrap().as_deref(), Some(". /opt/venv/bin/activate"));
    let none = activation(&|row| {
        row.remove("image");
        row.insert("activate".into(), own(""));
    });
    assert_eq!(none.unwrap(), None);
    let wrong = activation(&|row| drop(row.insert("activate".into(), Value::Bool(true))));
    assert!(
        wrong
            .unwrap_err()
            .message
            .contains("field activate: not a shell script")
    );
}

#[test]
fn a_selection_by_name_misses_nobody_silently() {
    let (_dir, mut selection) = file(&[row("a").to_string(), row("b").to_string()]);
    selection.instances = vec!["b".into()];
    assert_eq!(load(&selection).unwrap()[0].index, 0);
    selection.instances.push("z".into());
    assert_eq!(load(&selection).unwrap_err().reason, "TaskNotFound");
}

#[test]
fn every_pass_takes_every_task_once_and_iterations_follow_each_other() {
    let taken: Vec<u32> = (1..=5)
        .flat_map(|k| for_iteration(TaskOrder::Shuffled, 7, 10, 4, k))
        .collect();
    let (mut first, mut second) = (taken[..10].to_vec(), taken[10..].to_vec());
    assert_ne!(first, second);
    first.sort_unstable();
    second.sort_unstable();
    assert_eq!(first, (0..10).collect::<Vec<u32>>());
    assert_eq!(first, second);
    assert_eq!(for_iteration(TaskOrder::InOrder, 7, 3, 2, 2), [2, 0]);
}

#[test]
fn the_selection_says_what_the_rows_are() {
    let (_dir, mut selection) = file(&[row("a").to_string()]);
    for format in [RowFormat::Auto, RowFormat::Compiled] {
        selection.format = format;
        assert_eq!(load(&selection).unwrap().len(), 1, "{format:?}");
    }
    selection.format = RowFormat::SweGym;
    let fault = load(&selection).unwrap_err();
    assert!(
        fault.message.contains("line 1, field (format): rows of SweGym"),
        "{fault}"
    );
}
