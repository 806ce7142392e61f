use super::selection::{Selection, Slice, for_iteration};
use super::source::Source;
use super::*;
use grpo_crds::grpo_run::TaskOrder;

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
        source: Source::File(path),
        ..Selection::default()
    };
    (dir, selection)
}

/// A worker that completes a row by `completed`, and refuses one whose parser is `unknown`.
const WORKER: &str = r#"
import json, sys
print('{"ready": true}', flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    row, answer = asked["row"], {"id": asked["id"], "ok": True}
    if asked["op"] == "prepare" and row["log_parser"] == "unknown":
        answer |= {"ok": False, "field": "log_parser", "error": "no log parser 'unknown'"}
    elif asked["op"] == "prepare":
        answer |= {"evalScript": "x"}
    else:
        added = {"eval_script": "x", "log_parser": "p", "eval_type": "pass_and_fail", "image": asked["format"]}
        defaults = {"repo": "r", "version": "1", "problem_statement": "fix", "FAIL_TO_PASS": ["a"], "PASS_TO_PASS": []}
        answer |= {"row": {**defaults, **row, **added}}
    print(json.dumps(answer), flush=True)
"#;

fn set_of(selection: &Selection, files: &[PathBuf]) -> Result<TaskSet, TerminalFault> {
    let dir = tempfile::tempdir().unwrap();
    let script = dir.path().join("worker.py");
    std::fs::write(&script, WORKER).unwrap();
    let worker = GraderWorker::new(script, dir.path());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let mut statements = Statements::default();
    if let Some(Source::File(file)) = &selection.overrides {
        statements.read(file)?;
    }
    match runtime.block_on(load(
        "train",
        selection,
        files,
        &statements,
        &worker,
        &imports::NoImages,
    )) {
        Ok(set) => Ok(set),
        Err(DriverError::Terminal(fault)) => Err(fault),
        Err(error) => panic!("{error}"),
    }
}

fn loaded_set(selection: &Selection) -> Result<TaskSet, TerminalFault> {
    let Source::File(file) = &selection.source else {
        panic!("{:?} is not a file", selection.source)
    };
    set_of(selection, std::slice::from_ref(file))
}

fn loaded(selection: &Selection) -> Result<Vec<Task>, TerminalFault> {
    loaded_set(selection).map(|set| set.tasks)
}

#[test]
fn a_row_becomes_a_task_and_the_policy_never_sees_the_gold_patch() {
    let (_dir, selection) = file(&[row("a__b-1").to_string()]);
    let tasks = loaded(&selection).unwrap();
    assert_eq!((tasks[0].instance.as_str(), tasks[0].image.as_str()), ("a__b-1", "i:1"));
    assert_eq!(tasks[0].environment.variables["F"], "a.py");
    assert!(!format!("{:?}", tasks[0].variables()).contains("gold"));
}

#[test]
fn a_prompt_shows_another_statement_and_a_hidden_field_only_where_the_set_asks_for_them() {
    let (dir, plain) = file(&[row("a__b-1").to_string(), row("a__b-2").to_string()]);
    let overrides = dir.path().join("statements.json");
    std::fs::write(&overrides, r#"{"a__b-2": "another", "a__b-3": "of no row"}"#).unwrap();
    let asking = Selection {
        overrides: Some(Source::File(overrides)),
        revealed: vec![HiddenField::Patch],
        ..plain.clone()
    };
    let shown = |set: &TaskSet, field: &str| -> Vec<Value> {
        let of = |task: &Task| task.variables().get(field).cloned().unwrap_or_default();
        set.tasks.iter().map(of).collect()
    };
    let [plain, asking] = [plain, asking].map(|selection| loaded_set(&selection).unwrap());
    assert_eq!(shown(&plain, "patch"), [Value::Null, Value::Null]);
    assert_eq!(shown(&asking, "patch"), ["gold", "gold"]);
    assert_eq!(shown(&asking, "FAIL_TO_PASS"), [Value::Null, Value::Null]);
    assert_eq!(shown(&asking, "problem_statement"), ["fix", "another"]);
    assert_eq!((asking.report.statements, asking.report.overridden), (2, 1));
    let message = report::message(&asking.report, true).unwrap();
    assert!(
        message.contains("1 of 2 statements of promptOverrides are for rows"),
        "{message}"
    );
    assert_eq!(plain.tasks[0].sha256, asking.tasks[0].sha256);
    assert_ne!(checksum(&[plain]), checksum(&[asking]));
}

#[test]
fn rows_that_install_packages_are_tasks_and_are_named_where_graders_reach_no_index() {
    let installing = |name: &str| {
        let mut row = row(name);
        row["eval_script"] = "cd /testbed\npip install -e .\npytest".into();
        row.to_string()
    };
    let (_dir, selection) = file(&[installing("a__b-1"), row("a__b-2").to_string(), installing("a__b-3")]);
    let set = loaded_set(&selection).unwrap();
    assert_eq!((set.tasks.len(), set.report.installing.count), (3, 2));
    let message = report::message(&set.report, true).unwrap();
    let named = "tasks.train: 2 rows install packages in their grading scripts, for example a__b-1 (pip install -e .)";
    assert!(message.starts_with(named), "{message}");
    assert_eq!(report::message(&set.report, false), None);
}

#[test]
fn bytes_that_are_no_row_and_an_instance_that_is_there_twice_end_the_run_and_name_file_line_and_field() {
    for (rows, wanted) in [
        (
            [row("a").to_string(), "{\"instance_id\":".into()],
            "train.jsonl line 2, field (row)",
        ),
        ([row("a").to_string(), "[1]".into()], "train.jsonl line 2, field (row)"),
        (
            [row("a").to_string(), row("a").to_string()],
            "train.jsonl line 2, field instance_id: a is there twice",
        ),
    ] {
        let (_dir, selection) = file(&rows);
        let fault = loaded(&selection).unwrap_err();
        assert_eq!(fault.reason, "TaskRowInvalid");
        assert!(fault.message.contains(wanted), "{fault}");
    }
}

#[test]
fn a_row_that_cannot_be_graded_is_skipped_and_named_with_its_cause() {
    let without = |field: &str| {
        let mut row = row("b");
        row.as_object_mut().unwrap().remove(field);
        row
    };
    let with = |field: &str, value: Value| {
        let mut row = row("b");
        row[field] = value;
        row
    };
    let mut untested = with("FAIL_TO_PASS", "[]".into());
    untested["PASS_TO_PASS"] = Value::Array(Vec::new());
    for (bad, instance, cause) in [
        (untested, Some("b"), "field FAIL_TO_PASS: neither it nor PASS_TO_PASS"),
        (without("log_parser"), Some("b"), "field log_parser: missing"),
        (without("FAIL_TO_PASS"), Some("b"), "field FAIL_TO_PASS: missing"),
        (without("instance_id"), None, "field instance_id: missing"),
        (
            with("FAIL_TO_PASS", "not json".into()),
            Some("b"),
            "field FAIL_TO_PASS: not a list of test names",
        ),
        (
            with("image", 3.into()),
            Some("b"),
            "field image: not the name of an image",
        ),
        (
            with("eval_script", Value::Null),
            Some("b"),
            "field eval_script: missing",
        ),
        (
            with("log_parser", "unknown".into()),
            Some("b"),
            "field log_parser: no log parser 'unknown'",
        ),
        // It would climb out of the store.
        (
            with("instance_id", "../../etc".into()),
            Some("../../etc"),
            "field instance_id: \"../../etc\" may only",
        ),
    ] {
        let (_dir, selection) = file(&[row("a"), bad, row("c")].map(|row| row.to_string()));
        let set = loaded_set(&selection).unwrap();
        let names: Vec<_> = set
            .tasks
            .iter()
            .map(|task| (task.index, task.instance.as_str()))
            .collect();
        assert_eq!(names, [(0, "a"), (1, "c")], "{cause}");
        let [skipped] = set.report.skipped.as_slice() else {
            panic!("{:?}", set.report)
        };
        assert_eq!(
            (skipped.instance.as_deref(), skipped.place.as_str()),
            (instance, "train.jsonl line 2")
        );
        assert!(skipped.cause.starts_with(cause), "{cause}: {skipped:?}");
        // So a run can resume a store that was begun without the row.
        let (_dir, kept) = file(&[row("a"), row("c")].map(|row| row.to_string()));
        assert_eq!(checksum(&[set]), checksum(&[loaded_set(&kept).unwrap()]));
    }
}

#[test]
fn a_set_without_a_row_that_can_be_graded_is_refused_with_the_first_names_and_causes() {
    let rows = ["a", "b", "c", "d", "e"].map(|id| {
        let mut row = row(id);
        row["log_parser"] = Value::Null;
        row.to_string()
    });
    let (_dir, selection) = file(&rows);
    let fault = loaded(&selection).unwrap_err();
    assert_eq!(fault.reason, "NoTasks");
    let wanted = "5 skipped: a (field log_parser: missing), b (field log_parser: missing), \
                  c (field log_parser: missing) and 2 more";
    assert!(fault.message.contains(wanted), "{fault}");
}

#[test]
fn a_limit_counts_rows_that_can_be_graded_and_rows_that_are_not_selected_are_not_skipped() {
    let mut broken = row("b");
    broken["log_parser"] = Value::Null;
    let (_dir, mut selection) = file(&[row("a"), broken, row("c"), row("d")].map(|row| row.to_string()));
    selection.limit = Some(2);
    let names: Vec<_> = loaded(&selection)
        .unwrap()
        .into_iter()
        .map(|task| task.instance)
        .collect();
    assert_eq!(names, ["a", "c"]);
    selection.exclude = vec!["b".into()];
    assert_eq!(loaded_set(&selection).unwrap().report.skipped, []);
    (selection.exclude, selection.limit) = (Vec::new(), None);
    selection.instances = vec!["a".into(), "b".into()];
    let set = loaded_set(&selection).unwrap();
    assert_eq!((set.tasks.len(), set.report.skipped.len()), (1, 1));
    selection.slice = Some(Slice { index: 1, of: 2 });
    let fault = loaded(&selection).unwrap_err();
    assert!(fault.message.contains("no row that the selection asks for"), "{fault}");
}

#[test]
fn a_row_without_an_image_gets_the_swebench_name() {
    let mut one = row("django__django-11099");
    one.as_object_mut().unwrap().remove("image");
    let (_dir, selection) = file(&[one.to_string()]);
    let task = &loaded(&selection).unwrap()[0];
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
        loaded(&selection).map(|tasks| tasks[0].environment.activation.clone())
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
    let message = wrong.unwrap_err().message;
    assert!(message.contains("field activate: not a shell script"), "{message}");
}

#[test]
fn a_selection_by_name_misses_nobody_silently() {
    let (_dir, mut selection) = file(&[row("a").to_string(), row("b").to_string()]);
    selection.instances = vec!["b".into()];
    assert_eq!(loaded(&selection).unwrap()[0].index, 0);
    selection.instances.push("z".into());
    assert_eq!(loaded(&selection).unwrap_err().reason, "TaskNotFound");
}

#[test]
fn filters_come_before_the_shuffle_then_the_slice_then_the_limit() {
    let rows: Vec<String> = (0..20)
        .map(|n| {
            let mut row = row(&format!("{}-{n}", if n % 2 == 0 { "even" } else { "odd" }));
            row["repo"] = format!("r/{}", n % 4).into();
            row.to_string()
        })
        .collect();
    let (_dir, all) = file(&rows);
    let names = |change: &dyn Fn(&mut Selection)| -> Vec<String> {
        let mut selection = all.clone();
        change(&mut selection);
        let tasks = loaded(&selection).unwrap();
        assert!(tasks.iter().enumerate().all(|(at, task)| task.index == at as u32));
        tasks.into_iter().map(|task| task.instance).collect()
    };
    let pattern = |text: &str| Some(super::selection::pattern(text).unwrap());
    assert_eq!(
        names(&|s| s.pattern = pattern("even-1.")),
        ["even-10", "even-12", "even-14", "even-16", "even-18"]
    );
    // The whole name, alternatives included.
    assert_eq!(names(&|s| s.pattern = pattern("odd-1|even-1")), ["odd-1"]);
    assert_eq!(
        names(&|s| {
            s.repos = vec!["r/1".into(), "r/3".into()];
            s.exclude = vec!["odd-1".into()];
            s.limit = Some(2);
        }),
        ["odd-3", "odd-5"]
    );
    let slices = (0..3).flat_map(|index| names(&|s| s.slice = Some(Slice { index, of: 3 })));
    let mut slices: Vec<String> = slices.collect();
    assert_eq!(&slices[..2], ["even-0", "odd-3"]);
    slices.sort();
    let mut whole = names(&|_| {});
    let in_order = whole.clone();
    whole.sort();
    assert_eq!(slices, whole, "slices share the rows without overlap");
    let limited = |s: &mut Selection| (s.slice, s.limit) = (Some(Slice { index: 2, of: 3 }), Some(2));
    assert_eq!(names(&limited), ["even-2", "odd-5"]);
    let shuffled = |seed| names(&move |s: &mut Selection| (s.shuffle, s.limit) = (Some(seed), Some(5)));
    assert_eq!(shuffled(1), shuffled(1));
    assert_ne!(shuffled(1), shuffled(2));
    assert_ne!(shuffled(1), in_order[..5], "the limit takes from the shuffled rows");
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

/// The rows as parquet: texts, and `PASS_TO_PASS` as a list.
fn as_parquet(path: &std::path::Path, rows: &[Value], compression: parquet::basic::Compression) {
    use parquet::data_type::{ByteArray, ByteArrayType};
    use parquet::file::{properties::WriterProperties, writer::SerializedFileWriter};
    let texts = [
        "instance_id",
        "repo",
        "version",
        "problem_statement",
        "FAIL_TO_PASS",
        "eval_script",
        "log_parser",
    ];
    let texts = texts.into_iter().chain(["eval_type", "image", "base_commit"]);
    let texts: Vec<&str> = texts.collect();
    let columns: String = texts
        .iter()
        .map(|name| format!("REQUIRED BYTE_ARRAY {name} (STRING); "))
        .collect();
    let list = "REQUIRED GROUP PASS_TO_PASS (LIST) { REPEATED GROUP list { REQUIRED BYTE_ARRAY element (STRING); } }";
    let schema = parquet::schema::parser::parse_message_type(&format!("message rows {{ {columns} {list} }}"));
    let properties = WriterProperties::builder().set_compression(compression).build();
    let file = std::fs::File::create(path).unwrap();
    let mut writer = SerializedFileWriter::new(file, schema.unwrap().into(), properties.into()).unwrap();
    let mut group = writer.next_row_group().unwrap();
    let bytes = |value: &Value| ByteArray::from(value.as_str().unwrap());
    for name in texts {
        let values: Vec<ByteArray> = rows.iter().map(|row| bytes(&row[name])).collect();
        let mut column = group.next_column().unwrap().unwrap();
        column
            .typed::<ByteArrayType>()
            .write_batch(&values, None, None)
            .unwrap();
        column.close().unwrap();
    }
    let lists = rows.iter().map(|row| row["PASS_TO_PASS"].as_array().unwrap());
    let values: Vec<ByteArray> = lists.clone().flatten().map(bytes).collect();
    let repeated: Vec<i16> = lists
        .flat_map(|list| (0..list.len()).map(|at| i16::from(at > 0)))
        .collect();
    let mut column = group.next_column().unwrap().unwrap();
    let defined = vec![1; repeated.len()];
    let written = column
        .typed::<ByteArrayType>()
        .write_batch(&values, Some(&defined), Some(&repeated));
    written.unwrap();
    column.close().unwrap();
    group.close().unwrap();
    writer.close().unwrap();
}

#[test]
fn rows_are_the_same_from_json_lines_from_a_json_array_and_from_parquet() {
    use parquet::basic::{Compression, GzipLevel, ZstdLevel};
    let rows: Vec<Value> = ["a", "b", "c"]
        .map(|id| {
            let mut row = row(id);
            row["PASS_TO_PASS"] = serde_json::json!([format!("{id}1"), "same", "täst"]);
            for field in ["env", "patch"] {
                row.as_object_mut().unwrap().remove(field);
            }
            row
        })
        .into();
    let dir = tempfile::tempdir().unwrap();
    let fields = |path: std::path::PathBuf| -> Vec<Value> {
        let tasks = set_of(&Selection::default(), &[path]).unwrap().tasks;
        tasks.iter().map(|task| (*task.row).clone()).collect()
    };
    let path = |name: &str| dir.path().join(name);
    let lines: Vec<String> = rows.iter().map(Value::to_string).collect();
    std::fs::write(path("rows.jsonl"), format!("\u{feff}{}", lines.join("\n\n"))).unwrap();
    std::fs::write(path("rows.json"), format!("\n [{}]", lines.join(","))).unwrap();
    assert_eq!(fields(path("rows.jsonl")), rows);
    assert_eq!(fields(path("rows.json")), rows);
    let compressions = [
        Compression::UNCOMPRESSED,
        Compression::SNAPPY,
        Compression::LZ4_RAW,
        Compression::ZSTD(ZstdLevel::default()),
        Compression::GZIP(GzipLevel::default()),
    ];
    for (n, compression) in compressions.into_iter().enumerate() {
        let path = path(&format!("{n}.parquet"));
        as_parquet(&path, &rows, compression);
        assert_eq!(fields(path), rows, "{compression}");
    }
}

#[test]
fn a_row_that_cannot_be_read_names_its_number_in_an_array_or_in_parquet() {
    let dir = tempfile::tempdir().unwrap();
    let message = |name: &str| {
        set_of(&Selection::default(), &[dir.path().join(name)])
            .unwrap_err()
            .message
    };
    std::fs::write(dir.path().join("rows.json"), format!("[{}, 3]", row("a"))).unwrap();
    assert!(message("rows.json").contains("rows.json row 2, field (row)"));
    let file = dir.path().join("rows.parquet");
    as_parquet(&file, &[row("a"), row("a")], parquet::basic::Compression::SNAPPY);
    assert!(message("rows.parquet").contains("rows.parquet row 2, field instance_id"));
    let whole = std::fs::read(&file).unwrap();
    std::fs::write(&file, &whole[..whole.len() - 20]).unwrap();
    assert!(message("rows.parquet").starts_with("reading the dataset"));
}

#[test]
fn a_line_longer_than_a_row_may_be_is_refused_without_reading_on() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rows.jsonl");
    std::fs::write(&path, vec![b'x'; (16 << 20) + 100]).unwrap();
    let message = set_of(&Selection::default(), &[path]).unwrap_err().message;
    assert!(message.contains("line 1, field (row): longer than"), "{message}");
}
