use super::selection::{Selection, Slice, for_iteration};
use super::source::Source;
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
        source: Source::File(path),
        ..Selection::default()
    };
    (dir, selection)
}

fn loaded(selection: &Selection) -> Result<Vec<Task>, TerminalFault> {
    let Source::File(file) = &selection.source else {
        panic!("{:?} is not a file", selection.source)
    };
    load(selection, std::slice::from_ref(file))
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
fn an_unreadable_row_names_file_line_and_field() {
    let mut second = row("b");
    second["FAIL_TO_PASS"] = Value::String("not json".into());
    let (_dir, selection) = file(&[row("a").to_string(), second.to_string()]);
    let fault = loaded(&selection).unwrap_err();
    assert_eq!(fault.reason, "TaskRowInvalid");
    assert!(
        fault.message.contains("train.jsonl line 2, field FAIL_TO_PASS"),
        "{fault}"
    );

    let (_dir, selection) = file(&["{\"instance_id\":".to_owned()]);
    assert!(loaded(&selection).unwrap_err().message.contains("line 1, field (row)"));
    let mut no_parser = row("c");
    no_parser.as_object_mut().unwrap().remove("log_parser");
    let (_dir, selection) = file(&[no_parser.to_string()]);
    assert!(
        loaded(&selection)
            .unwrap_err()
            .message
            .contains("line 1, field log_parser: missing")
    );
}

#[test]
fn an_instance_that_would_climb_out_of_the_store_is_refused() {
    let (_dir, selection) = file(&[row("../../etc").to_string()]);
    assert!(loaded(&selection).unwrap_err().message.contains("field instance_id"));
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

#[test]
fn the_selection_says_what_the_rows_are() {
    let (_dir, mut selection) = file(&[row("a").to_string()]);
    for format in [RowFormat::Auto, RowFormat::Compiled] {
        selection.format = format;
        assert_eq!(loaded(&selection).unwrap().len(), 1, "{format:?}");
    }
    selection.format = RowFormat::SweGym;
    let fault = loaded(&selection).unwrap_err();
    assert!(
        fault.message.contains("line 1, field (format): rows of SweGym"),
        "{fault}"
    );
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
        let tasks = load(&Selection::default(), &[path]).unwrap();
        tasks.iter().map(|task| (*task.row).clone()).collect()
    };
    let path = |name: &str| dir.path().join(name);
    let lines: Vec<String> = rows.iter().map(Value::to_string).collect();
    std::fs::write(path("rows.jsonl"), lines.join("\n\n")).unwrap();
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
        load(&Selection::default(), &[dir.path().join(name)])
            .unwrap_err()
            .message
    };
    std::fs::write(dir.path().join("rows.json"), format!("[{}, 3]", row("a"))).unwrap();
    assert!(message("rows.json").contains("rows.json row 2, field (row)"));
    let mut second = row("b");
    second["FAIL_TO_PASS"] = "no list".into();
    let file = dir.path().join("rows.parquet");
    as_parquet(&file, &[row("a"), second], parquet::basic::Compression::SNAPPY);
    assert!(message("rows.parquet").contains("rows.parquet row 2, field FAIL_TO_PASS"));
    let whole = std::fs::read(&file).unwrap();
    std::fs::write(&file, &whole[..whole.len() - 20]).unwrap();
    assert!(message("rows.parquet").starts_with("reading the dataset"));
}

#[test]
fn a_line_longer_than_a_row_may_be_is_refused_without_reading_on() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rows.jsonl");
    std::fs::write(&path, vec![b'x'; (16 << 20) + 100]).unwrap();
    let message = load(&Selection::default(), &[path]).unwrap_err().message;
    assert!(message.contains("line 1, field (row): longer than"), "{message}");
}
