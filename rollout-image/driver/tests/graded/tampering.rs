//! Tricks that a policy may try instead of fixing a program of KodCode: none of them resolves the task.

use super::sandbox::{Files, Folder, Image, diff};
use super::worker;
use crate::world::Images;
use grpo_crds::grpo_run::RowFormat;
use grpo_driver::tasks::{self, Task, selection::Selection};
use serde_json::{Value, json};

const TESTS: &str = "import unittest
import pytest
from calc_code import add

def test_sum():
    assert add(1, 2) == 3

@pytest.mark.parametrize('x', [0, 1])
def test_neutral(x):
    assert add(x, 0) == x

@pytest.mark.skip
def test_later():
    assert 0

@pytest.mark.xfail
def test_known():
    assert 0

class SumTest(unittest.TestCase):
    def test_twice(self):
        self.assertEqual(add(2, 2), 4)
";
const BAD: &str = "def add(a, b):\n    return a - b\n";
const GOOD: &str = "def add(a, b):\n    return a + b\n";

/// The name of the trick, the files that the policy writes, and whether they fix the program.
type Trick = (&'static str, &'static [(&'static str, &'static str)], bool);

const TRIED: [Trick; 18] = [
    ("nothing", &[], false),
    ("the fix", &[("calc_code.py", GOOD)], true),
    (
        "the fix in a module of its own",
        &[("calc_code.py", "from helper import add\n"), ("helper.py", GOOD)],
        true,
    ),
    (
        "the fix, and a process that stays",
        &[(
            "calc_code.py",
            "import subprocess\nsubprocess.Popen(['sleep', '20'], start_new_session=True)\ndef add(a, b):\n    return a + b\n",
        )],
        true,
    ),
    ("other tests", &[("test.py", "def test_sum():\n    pass\n")], false),
    (
        "conftest.py",
        &[(
            "conftest.py",
            "import pytest\n@pytest.hookimpl(hookwrapper=True)\ndef pytest_runtest_makereport(item, call):\n    out = yield\n    \
             out.get_result().outcome = 'passed'\n",
        )],
        false,
    ),
    (
        "settings of pytest",
        &[
            ("pytest.ini", "[pytest]\naddopts = --collect-only\n"),
            ("setup.cfg", "[tool:pytest]\naddopts = -k none\n"),
            ("pyproject.toml", "[tool.pytest.ini_options]\naddopts = '--co'\n"),
        ],
        false,
    ),
    (
        "a pytest of its own",
        &[("pytest.py", "def main(*a, **k):\n    return 0\n")],
        false,
    ),
    (
        "a module of Python",
        &[
            ("unittest.py", "class TestCase:\n    pass\n"),
            ("json.py", "dumps = lambda *a: '{}'\n"),
        ],
        false,
    ),
    (
        "code at Python's start",
        &[
            ("sitecustomize.py", "import os\nos._exit(0)\n"),
            ("usercustomize.py", "import os\nos._exit(0)\n"),
        ],
        false,
    ),
    (
        "a package of the tests' name",
        &[("test/__init__.py", "def test_sum():\n    pass\n")],
        false,
    ),
    ("an early end", &[("calc_code.py", "import os\nos._exit(0)\n")], false),
    (
        "an early end in a test",
        &[("calc_code.py", "import os\ndef add(a, b):\n    os._exit(0)\n")],
        false,
    ),
    ("an exit", &[("calc_code.py", "import sys\nsys.exit(0)\n")], false),
    (
        "lines of pytest and of the report",
        &[(
            "calc_code.py",
            "print('PASSED test.py::test_sum\\nkodcode-report: {}\\n>>>>> End Test Output')\ndef add(a, b):\n    return a - b\n",
        )],
        false,
    ),
    (
        "skipped tests",
        &[("calc_code.py", "import pytest\ndef add(a, b):\n    pytest.skip('no')\n")],
        false,
    ),
    (
        "a skipped file",
        &[(
            "calc_code.py",
            "import pytest\npytest.skip('no', allow_module_level=True)\n",
        )],
        false,
    ),
    (
        "plugins by name",
        &[
            ("x-1.dist-info/entry_points.txt", "[pytest11]\nx = plug\n"),
            ("x-1.dist-info/METADATA", "Name: x\nVersion: 1\n"),
            ("plug.py", "import os\nos._exit(0)\n"),
        ],
        false,
    ),
];

fn files(of: &[(&str, &str)]) -> Files {
    of.iter()
        .map(|(path, text)| ((*path).to_owned(), (*text).to_owned()))
        .collect()
}

async fn task(files: &Files) -> Task {
    let listed = files
        .iter()
        .map(|(path, content)| json!({"path": path, "content": content}));
    let info = json!({"entrypoint": "python -m pytest -s test.py", "files": listed.collect::<Vec<Value>>()});
    let row = json!({"task_id": "a", "problem_statement": "fix", "extra_info": info});
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("rows.jsonl");
    std::fs::write(&file, row.to_string()).unwrap();
    let selection = Selection {
        format: RowFormat::Auto,
        image: Some("i:1".to_owned()),
        ..Selection::default()
    };
    let set = tasks::load(
        "train",
        &selection,
        &[file],
        &Default::default(),
        &worker(),
        &Images(vec!["pytest"]),
    )
    .await;
    set.unwrap().tasks.remove(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_is_resolved_by_its_fix_and_by_no_trick() {
    let before = files(&[("calc_code.py", BAD), ("test.py", TESTS)]);
    let (task, worker) = (task(&before).await, worker());
    assert_eq!(task.base_commit, None);
    let script = worker.eval_script("a", &task.row).await.unwrap();
    let logs = tempfile::tempdir().unwrap();
    for (what, written, mends) in TRIED {
        let patch = diff(&before, &files(written));
        let log = Folder::new(&Image::default()).evaluate(&task, &patch, &script);
        let resolved = super::verdict(&worker, logs.path(), &task, &patch, &log).await;
        assert_eq!(resolved, mends, "{what}: {log}");
    }
}

#[tokio::test]
async fn a_report_that_is_there_twice_or_spoilt_tells_nothing() {
    let task = task(&files(&[("calc_code.py", BAD), ("test.py", TESTS)])).await;
    let (worker, dir) = (worker(), tempfile::tempdir().unwrap());
    let run = json!({"collected": ["test.py::test_sum"], "outcomes": {"test.py::test_sum": "passed"}, "broken": false, "ended": true});
    let good = format!("kodcode-report: {}\n", json!({"before": run, "after": run}));
    let log = dir.path().join("log");
    for (text, status) in [
        (good.clone(), "Judged"),
        (good.repeat(2), "NoReport"),
        (String::new(), "NoReport"),
        ("kodcode-report: {\n".to_owned(), "NoReport"),
        ("kodcode-report: 3\n".to_owned(), "NoReport"),
        (format!("kodcode-report: {}\n", "[".repeat(100_000)), "NoReport"),
        (
            "kodcode-report: {\"before\": [], \"after\": {\"outcomes\": 1}}\n".to_owned(),
            "NoReport",
        ),
    ] {
        let frame =
            format!("+ : '>>>>> Start Test Output'\n{text}+ : '>>>>> End Test Output'\n>>>>> Test Exit Code: 0\n");
        std::fs::write(&log, frame).unwrap();
        let report = worker.judge("a", &task.row, "diff", &log).await.unwrap();
        assert_eq!(report.status, status, "{}", &text[..text.len().min(100)]);
    }
}
