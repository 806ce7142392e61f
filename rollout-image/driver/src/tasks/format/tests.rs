use super::*;
use crate::tasks::reader;
use serde_json::json;

/// The publishers' columns, without those that distinguish no format.
fn swe_bench() -> Value {
    json!({
        "instance_id": "django__django-11099", "repo": "django/django", "version": "3.0", "base_commit": "abc",
        "patch": "gold", "test_patch": "diff", "problem_statement": "fix", "hints_text": "", "created_at": "2019",
        "FAIL_TO_PASS": "[\"a\"]", "PASS_TO_PASS": "[]", "environment_setup_commit": "def",
    })
}

fn with(mut row: Value, added: Value) -> Value {
    let added = added.as_object().unwrap().clone();
    row.as_object_mut().unwrap().extend(added);
    row
}

fn r2e() -> Value {
    json!({
        "repo_name": "sympy", "docker_image": "namanjain12/sympy_final:abc", "commit_hash": "abc", "prompt": "p",
        "parsed_commit_content": "{}", "expected_output_json": "{}", "problem_statement": "fix", "modified_files": [],
    })
}

fn kod_code() -> Value {
    json!({
        "task_id": "kod/1", "problem_statement": "fix", "prompt": "[]",
        "extra_info": {"task_name": "task_1", "entrypoint": "", "files": [{"path": "a.py", "content": ""}]},
    })
}

fn candidate(format: RowFormat, row: Value) -> Result<Candidate, Ungradable> {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("rows.jsonl");
    std::fs::write(&file, row.to_string()).unwrap();
    let row = reader::rows(&file).next().unwrap().unwrap();
    Candidate::of(format, row)
}

#[test]
fn auto_tells_the_format_from_the_columns_of_a_row() {
    let compiled = with(
        swe_bench(),
        json!({"image": "i", "eval_script": "x", "log_parser": "p", "eval_type": "pass_and_fail"}),
    );
    let smith = json!({
        "instance_id": "oauthlib__oauthlib.1fd52536.lm_rewrite__1", "repo": "swesmith/oauthlib__oauthlib.1fd52536",
        "patch": "bug", "FAIL_TO_PASS": ["a"], "PASS_TO_PASS": [], "image_name": "swebench/swesmith.x86_64.oauthlib",
        "problem_statement": "fix",
    });
    let rebench = with(
        swe_bench(),
        json!({"docker_image": "swerebench/x", "install_config": {"test_cmd": "pytest"}}),
    );
    let rebench_v2 = with(
        swe_bench(),
        json!({"language": "go", "image_name": "swerebenchv2/x", "install_config": {"test_cmd": ["go test -v ./..."]}}),
    );
    let rebench_v2_of_python = with(
        swe_bench(),
        json!({"image_name": "swerebenchv2/x", "install_config": {"test_cmd": "pytest -rA"}}),
    );
    let live = with(
        swe_bench(),
        json!({"test_cmds": ["pytest -rA"], "log_parser": "pytest"}),
    );
    // Parquet files have every column in every row.
    let empty = with(
        swe_bench(),
        json!({"image": null, "eval_script": "", "log_parser": null, "eval_type": null}),
    );
    for (row, kind, repo) in [
        (swe_bench(), RowKind::SweBench, "django/django"),
        (empty, RowKind::SweBench, "django/django"),
        (compiled, RowKind::Compiled, "django/django"),
        (
            with(swe_bench(), json!({"eval_script": "x"})),
            RowKind::SweGym,
            "django/django",
        ),
        (
            with(swe_bench(), json!({"eval_script": "x", "image": "i"})),
            RowKind::Compiled,
            "django/django",
        ),
        (r2e(), RowKind::R2E, "sympy"),
        (rebench, RowKind::SweRebench, "django/django"),
        (rebench_v2, RowKind::SweRebenchV2, "django/django"),
        (rebench_v2_of_python, RowKind::SweRebenchV2, "django/django"),
        (live.clone(), RowKind::SweBenchLive, "django/django"),
        (
            with(live, json!({"eval_script": "x"})),
            RowKind::Compiled,
            "django/django",
        ),
        (smith, RowKind::SweSmith, "swesmith/oauthlib__oauthlib.1fd52536"),
        (json!({"instance_id": "a"}), RowKind::Compiled, ""),
        (kod_code(), RowKind::KodCode, ""),
        (
            with(kod_code(), json!({"extra_info": kod_code()["extra_info"].to_string()})),
            RowKind::KodCode,
            "",
        ),
    ] {
        let found = candidate(RowFormat::Auto, row).unwrap();
        assert_eq!((found.kind, found.repo.as_str()), (kind, repo), "{found:?}");
    }
}

#[test]
fn a_format_in_the_spec_wins_and_swe_bench_is_either_form() {
    let complete = || with(swe_bench(), json!({"eval_script": "x", "log_parser": "p"}));
    for (format, row, kind) in [
        (RowFormat::Compiled, swe_bench(), RowKind::Compiled),
        (RowFormat::SweBench, complete(), RowKind::Compiled),
        (RowFormat::SweBench, swe_bench(), RowKind::SweBench),
        (RowFormat::SweGym, complete(), RowKind::SweGym),
        (RowFormat::SweSmith, swe_bench(), RowKind::SweSmith),
        (RowFormat::SweRebench, swe_bench(), RowKind::SweRebench),
        (RowFormat::SweRebenchV2, swe_bench(), RowKind::SweRebenchV2),
        (RowFormat::SweBenchLive, complete(), RowKind::SweBenchLive),
    ] {
        assert_eq!(candidate(format, row).unwrap().kind, kind, "{format:?}");
    }
}

#[test]
fn a_row_of_r2e_is_named_by_its_repository_and_commit() {
    assert_eq!(candidate(RowFormat::Auto, r2e()).unwrap().instance, "sympy__abc");
    let named = with(r2e(), json!({"instance_id": "mine"}));
    assert_eq!(candidate(RowFormat::Auto, named).unwrap().instance, "mine");
}

#[test]
fn a_row_of_kod_code_is_named_by_its_task() {
    for (added, name) in [
        (json!({}), "kod-1"),
        (json!({"task_id": 7}), "7"),
        (json!({"task_id": "a b/c:d.e_f"}), "a-b-c-d.e_f"),
        (json!({"task_id": null}), "task_1"),
        (json!({"instance_id": "mine"}), "mine"),
    ] {
        let found = candidate(RowFormat::KodCode, with(kod_code(), added)).unwrap();
        assert_eq!((found.instance.as_str(), found.kind), (name, RowKind::KodCode));
    }
    let wrapped = json!({"text": "fix", "metadata": {"instance": kod_code(), "data_source": "kodcode"}});
    assert_eq!(candidate(RowFormat::Auto, wrapped).unwrap().instance, "kod-1");
    let unnamed = with(kod_code(), json!({"task_id": "", "extra_info": {"files": []}}));
    let refused = candidate(RowFormat::KodCode, unnamed).unwrap_err();
    assert_eq!(refused.field, "task_id");
}

#[test]
fn the_image_of_a_set_is_for_rows_that_name_none() {
    for (row, image) in [
        (kod_code(), json!("of/the-set:1")),
        (with(kod_code(), json!({"image": "own"})), json!("own")),
        (with(kod_code(), json!({"image": ""})), json!("of/the-set:1")),
        (r2e(), Value::Null),
    ] {
        let mut found = candidate(RowFormat::Auto, row).unwrap();
        found.fill_image(Some("of/the-set:1"));
        assert_eq!(found.fields.get("image").cloned().unwrap_or_default(), image);
    }
}

#[test]
fn a_row_names_the_folder_of_its_repository_or_has_that_of_swe_bench() {
    let complete = with(
        swe_bench(),
        json!({"image": "i", "eval_script": "x", "log_parser": "p", "eval_type": "pass_and_fail"}),
    );
    let made = |workdir: Value| {
        let row = with(complete.clone(), json!({"workdir": workdir}));
        let Value::Object(fields) = row else {
            panic!("no object")
        };
        task(fields, String::new()).map(|task| task.environment.directory)
    };
    for (workdir, directory) in [
        (json!("/revive"), "/revive"),
        (json!("/home/my.repo_1-a"), "/home/my.repo_1-a"),
        (json!(""), "/testbed"),
        (Value::Null, "/testbed"),
    ] {
        assert_eq!(made(workdir).unwrap(), directory);
    }
    for workdir in ["revive", "/", "/a/", "/a//b", "/a/../b", "/a b", "/$HOME", "/a\nb"] {
        let refused = made(json!(workdir)).unwrap_err();
        assert_eq!(refused.field, "workdir", "{workdir}");
    }
    assert_eq!(made(json!(1)).unwrap_err().field, "workdir");
}

#[test]
fn a_row_of_slime_is_the_row_inside_of_it() {
    let mut bare = swe_bench();
    bare.as_object_mut().unwrap().remove("problem_statement");
    let wrapped = |name: &str, metadata: Value| json!({name: "from outside", "metadata": metadata});
    let inside = |source: &str| json!({"instance": swe_bench(), "data_source": source});
    for (row, kind, statement) in [
        (
            wrapped("text", inside("princeton-nlp/SWE-bench_Verified")),
            RowKind::SweBench,
            "fix",
        ),
        (wrapped("input", inside("SWE-Gym/SWE-Gym")), RowKind::SweGym, "fix"),
        (
            wrapped("text", json!({"instance": r2e(), "data_source": "R2E"})),
            RowKind::R2E,
            "fix",
        ),
        (
            wrapped("text", json!({"instance": bare})),
            RowKind::SweBench,
            "from outside",
        ),
        (
            wrapped("text", inside("x").to_string().into()),
            RowKind::SweBench,
            "fix",
        ),
        (
            json!({"prompt": "p", "instance": swe_bench()}),
            RowKind::SweBench,
            "fix",
        ),
    ] {
        let found = candidate(RowFormat::Auto, row).unwrap();
        assert_eq!(
            (found.kind, &found.fields["problem_statement"]),
            (kind, &statement.into())
        );
    }
    for (metadata, field) in [
        (json!({"data_source": "x"}), "metadata.instance"),
        (json!("no JSON"), "metadata"),
        (json!({"instance": [1]}), "metadata.instance"),
    ] {
        let refused = candidate(RowFormat::Auto, wrapped("text", metadata)).unwrap_err();
        assert_eq!(refused.field, field, "{refused}");
    }
}
