//! Rows with their publishers' columns.

use serde_json::{Value, json};

pub const TEST_PATCH: &str = "diff --git a/tests/test_a.py b/tests/test_a.py\n--- a/tests/test_a.py\n\
    +++ b/tests/test_a.py\n@@ -1 +1 @@\n-a\n+b\n";

pub fn with(row: &Value, added: Value) -> Value {
    let mut row = row.clone();
    row.as_object_mut().unwrap().extend(added.as_object().unwrap().clone());
    row
}

/// The columns of SWE-bench before its version 5.
pub fn classic(repo: &str, version: &str) -> Value {
    json!({
        "instance_id": "Owner__name-1", "repo": repo, "version": version, "base_commit": "abc", "patch": "gold",
        "test_patch": TEST_PATCH, "problem_statement": "fix", "FAIL_TO_PASS": "[\"t.py::a\"]", "PASS_TO_PASS": "[]",
    })
}

pub fn gym() -> Value {
    let script = format!(
        "#!/bin/bash\nset -exo pipefail\nsource /opt/miniconda3/bin/activate\nconda activate testbed\ncd /testbed\n\
         make init\ngit checkout abc tests/test_a.py\ngit apply -v - <<'EOF_114329324912'\n{TEST_PATCH}\n\
         EOF_114329324912\npytest -n0 -rA tests/test_a.py\ngit checkout abc tests/test_a.py\n"
    );
    with(
        &classic("getmoto/moto", "4.1"),
        json!({"eval_script": script, "FAIL_TO_PASS": ["t.py::a"], "PASS_TO_PASS": []}),
    )
}

pub fn r2e(expected: Value) -> Value {
    json!({
        "instance_id": "sympy__abc", "repo_name": "sympy", "docker_image": "namanjain12/sympy_final:abc",
        "commit_hash": "abc", "problem_statement": "Look.\n[ISSUE]\nfix\n[/ISSUE]\n",
        "expected_output_json": expected.to_string(), "parsed_commit_content": "the answer",
    })
}

/// Rows of parquet files have their files in a list of objects.
pub fn kod_code() -> Value {
    let file = |path: &str, content: &str| json!({"path": path, "content": content});
    let files = [
        file("solution.py", "import json\n\n\ndef f():\n    return 1\n"),
        file(
            "test.py",
            "from solution import f\n\n\ndef test_f():\n    assert f() == 2\n",
        ),
    ];
    json!({
        "task_id": "kod/1", "problem_statement": "fix", "prompt": "[]", "image": "i:1",
        "extra_info": {"entrypoint": "python -m pytest --tb=no -s test.py", "files": files, "task_name": "t"},
    })
}

pub const SMITH: &str = "swesmith/oauthlib__oauthlib.1fd52536";

pub fn smith(patch: &str) -> Value {
    json!({
        "instance_id": "oauthlib__oauthlib.1fd52536.lm_rewrite__1", "repo": SMITH, "patch": patch,
        "FAIL_TO_PASS": ["tests/t.py::a"], "PASS_TO_PASS": ["tests/t.py::b"], "problem_statement": "fix",
        "image_name": "swebench/swesmith.x86_64.oauthlib_1776_oauthlib.1fd52536",
    })
}

pub fn rebench() -> Value {
    with(
        &classic("owner/name", "1.2"),
        json!({
            "docker_image": "swerebench/sweb.eval.x86_64.owner_1776_name-1",
            "install_config": {
                "test_cmd": "pytest -rA", "install": "pip install -e .", "log_parser": "parse_log_pytest",
            },
        }),
    )
}

/// `test_cmd` is a list or a text.
pub fn rebench_v2(parser: &str) -> Value {
    json!({
        "instance_id": "owner__name-1", "repo": "owner/name", "base_commit": "abc", "patch": "gold",
        "test_patch": TEST_PATCH, "problem_statement": "fix", "pr_description": "the answer", "language": "go",
        "interface": "none", "image_name": "docker.io/swerebenchv2/owner-name:1-abc",
        "FAIL_TO_PASS": ["TestA"], "PASS_TO_PASS": ["TestB"],
        "install_config": {
            "base_image_name": "go_1.21", "install": ["go mod download"], "log_parser": parser,
            "test_cmd": ["go test -v ./..."],
        },
    })
}

pub fn live() -> Value {
    json!({
        "instance_id": "Owner__name-1", "repo": "owner/name", "base_commit": "abc", "patch": "gold",
        "test_patch": TEST_PATCH, "problem_statement": "fix", "hints_text": "", "all_hints_text": "the answer",
        "FAIL_TO_PASS": ["t.py::a"], "PASS_TO_PASS": ["t.py::b"], "test_cmds": ["pytest -rA"], "log_parser": "pytest",
    })
}
