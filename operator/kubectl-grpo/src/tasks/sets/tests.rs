use super::*;

pub fn sets() -> Vec<TaskSet> {
    let report = json!({"set": "train", "format": "Auto", "rows": {"SweBench": 2}, "tasks": 2, "skipped": [
        {"instance": "django__django-1", "place": "test.jsonl line 3", "cause": "field version: swebench 4 has no test command for version 9.9 of django/django"},
        {"place": "test.jsonl line 7", "cause": "field instance_id: missing"},
    ]});
    let row = |id: &str, image: &str| json!({"instance_id": id, "image": image, "patch": "p"});
    let heldout =
        json!({"set": "evaluate.heldout", "format": "SweBench", "rows": {"SweBench": 1}, "tasks": 1, "skipped": []});
    vec![
        TaskSet {
            report: serde_json::from_value(report).unwrap(),
            rows: Some(vec![row("a__a-1", "swebench/a:1"), row("a__a-2", "swebench/a:1")]),
        },
        TaskSet {
            report: serde_json::from_value(heldout).unwrap(),
            rows: Some(vec![row("a__a-2", "swebench/b:1")]),
        },
    ]
}

pub fn mirror() -> SandboxPoolSpec {
    let rewrites = json!([{"from": "docker.io/", "to": "mirror.example.com/"}]);
    serde_json::from_value(json!({"max": 4, "imageRewrites": rewrites})).unwrap()
}

#[test]
fn images_are_listed_once_as_nodes_pull_them() {
    assert_eq!(shown(&sets(), Form::Images, None), "swebench/a:1\nswebench/b:1\n");
    let rewritten = "mirror.example.com/swebench/a:1\nmirror.example.com/swebench/b:1\n";
    assert_eq!(shown(&sets(), Form::Images, Some(&mirror())), rewritten);
}

#[test]
fn ids_are_listed_once_and_rows_as_they_are() {
    assert_eq!(shown(&sets(), Form::Ids, None), "a__a-1\na__a-2\n");
    let rows = shown(&sets(), Form::Rows, Some(&mirror()));
    let rows: Vec<Value> = rows.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(
        (rows.len(), &rows[0]["image"], &rows[0]["patch"]),
        (3, &json!("swebench/a:1"), &json!("p"))
    );
}

#[test]
fn json_has_reports_tasks_and_images() {
    let text = shown(&sets(), Form::Json, Some(&mirror()));
    let value: Value = serde_json::from_str(&text).unwrap();
    let first = json!({"id": "a__a-1", "image": "mirror.example.com/swebench/a:1"});
    assert_eq!(value["sets"][0]["tasks"][0], first);
    assert_eq!(value["sets"][0]["report"]["skipped"][1]["place"], "test.jsonl line 7");
    assert_eq!(value["images"].as_array().unwrap().len(), 2);
}

#[test]
fn a_table_without_rows_leaves_the_images_open() {
    let mut sets = sets();
    sets[1].rows = None;
    let text = shown(&sets, Form::Table, None);
    let line = text.lines().find(|line| line.starts_with("evaluate.heldout")).unwrap();
    assert_eq!(
        line.split_whitespace().collect::<Vec<_>>(),
        ["evaluate.heldout", "1", "SweBench", "1", "-", "0"]
    );
}

#[test]
fn rows_that_install_packages_are_named_where_the_pool_has_no_index() {
    let mut sets = sets();
    sets[0].report.installing.add("a__a-1", "pip install -e .");
    let table = |pool: Option<&SandboxPoolSpec>| shown(&sets, Form::Table, pool);
    let without = table(Some(&mirror()));
    assert!(
        without.contains("Packages in train:\n  1 row installs packages"),
        "{without}"
    );
    assert!(without.contains("a__a-1 (pip install -e .)"), "{without}");
    assert!(!without.contains("Packages in evaluate"), "{without}");
    let index = json!({"url": "http://pypi/simple", "cidr": "10.1.2.3/32"});
    let pool: SandboxPoolSpec = serde_json::from_value(json!({"max": 4, "packageIndex": index})).unwrap();
    assert!(!table(Some(&pool)).contains("Packages"));
    assert!(!table(None).contains("Packages"), "the pool is not known");
}
