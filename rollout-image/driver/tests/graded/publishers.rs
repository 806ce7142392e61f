//! Twenty rows of each publisher, by its own field definitions, with the image and the gold patch of each.

use super::projects::{Project, Style};
use super::sandbox::{Files, Folder, Image, diff};
use grpo_crds::grpo_run::RowFormat;
use serde_json::{Value, json};

pub const ROWS: usize = 20;
const DELIMITER: &str = "EOF_114329324912";

/// A row and its publisher's knowledge of it.
pub struct Case {
    pub row: Value,
    pub image: Image,
    pub gold: String,
}

/// A kind of rows.
pub struct Publisher {
    pub name: &'static str,
    pub format: RowFormat,
    pub case: fn(usize) -> Case,
    /// Spoilt rows: the change, and the field that the fault must name.
    pub spoilt: fn() -> Vec<(Value, &'static str)>,
}

pub fn all() -> Vec<Publisher> {
    let publisher = |name, format, case, spoilt| Publisher {
        name,
        format,
        case,
        spoilt,
    };
    vec![
        publisher("SWE-bench 5", RowFormat::SweBench, compiled, spoilt_compiled),
        publisher("SWE-bench before 5", RowFormat::SweBench, classic, spoilt_classic),
        publisher("SWE-Gym", RowFormat::SweGym, gym, spoilt_gym),
        publisher("SWE-smith", RowFormat::SweSmith, smith, spoilt_smith),
        publisher("SWE-rebench", RowFormat::SweRebench, rebench, spoilt_rebench),
        publisher("R2E-Gym", RowFormat::R2E, r2e, spoilt_r2e),
        publisher("KodCode", RowFormat::KodCode, kod_code, spoilt_kod_code),
    ]
}

fn merged(files: &Files, more: &Files) -> Files {
    files
        .iter()
        .chain(more)
        .map(|(path, text)| (path.clone(), text.clone()))
        .collect()
}

fn one(path: &str, text: impl Into<String>) -> Files {
    [(path.to_owned(), text.into())].into()
}

/// A repository with a bug, the columns common to SWE-bench's relatives, and the patches.
pub fn issue(project: &Project, added: &Files) -> (Value, Image, String, String) {
    let n = project.number;
    let tests = "tests/test_bug.py";
    // Lets the tests of a subfolder find the module.
    let root = one("conftest.py", "");
    let mut repository = merged(&merged(&project.bad(), &root), added);
    repository.insert("tests/test_other.py".into(), "def test_other():\n    pass\n".into());
    if n.is_multiple_of(2) {
        repository.insert(tests.into(), project.tests(true));
    }
    let gold = diff(&repository, &project.good());
    let test_patch = diff(&repository, &one(tests, project.tests(false)));
    let image = Image {
        repository,
        ..Image::default()
    };
    let base = Folder::new(&image).head();
    let (finding, kept) = project.names();
    let finding: Vec<String> = finding.iter().map(|name| format!("{tests}::{name}")).collect();
    let row = json!({
        "instance_id": format!("owner__name-{n}"), "repo": "owner/name", "version": "1.0", "base_commit": base,
        "patch": gold, "test_patch": test_patch, "problem_statement": format!("Fix project {n}."), "hints_text": "",
        "created_at": "2024-01-01", "environment_setup_commit": base,
        "FAIL_TO_PASS": finding, "PASS_TO_PASS": [format!("{tests}::{kept}")],
    });
    (row, image, gold, test_patch)
}

/// The lists as JSON texts, as in the older datasets.
fn as_texts(row: &mut Value) {
    for field in ["FAIL_TO_PASS", "PASS_TO_PASS"] {
        row[field] = row[field].to_string().into();
    }
}

fn compiled(n: usize) -> Case {
    let (mut row, image, gold, test_patch) = issue(&Project::new(n), &Files::new());
    row["image"] = json!(format!(
        "docker.io/swebench/sweb.eval.x86_64.owner_1776_name-{n}:latest"
    ));
    row["log_parser"] = json!(["parse_log_pytest", "parse_log_pytest_v2", "parse_log_pytest_options"][n % 3]);
    row["eval_type"] = json!("pass_and_fail");
    row["eval_script"] = json!(format!(
        "#!/bin/bash\nset -uxo pipefail\nsource /opt/miniconda3/bin/activate\nconda activate testbed\ncd /testbed\n\
         git apply -v - <<'{DELIMITER}'\n{test_patch}\n{DELIMITER}\n: '>>>>> Start Test Output'\n\
         pytest -rA tests/test_bug.py\n: '>>>>> End Test Output'\n"
    ));
    if n % 2 == 1 {
        as_texts(&mut row);
    }
    Case { row, image, gold }
}

/// Repositories with different test commands and log parsers.
const REPOSITORIES: [(&str, &str); ROWS] = [
    ("astropy/astropy", "3.0"),
    ("astropy/astropy", "4.3"),
    ("django/django", "4.0"),
    ("django/django", "4.2"),
    ("matplotlib/matplotlib", "3.5"),
    ("matplotlib/matplotlib", "3.8"),
    ("mwaskom/seaborn", "0.11"),
    ("mwaskom/seaborn", "0.12"),
    ("pallets/flask", "2.0"),
    ("psf/requests", "2.27"),
    ("pydata/xarray", "0.12"),
    ("pylint-dev/pylint", "2.10"),
    ("pytest-dev/pytest", "4.4"),
    ("scikit-learn/scikit-learn", "0.20"),
    ("sphinx-doc/sphinx", "3.5"),
    ("sympy/sympy", "1.4"),
    ("sympy/sympy", "1.9"),
    ("sqlfluff/sqlfluff", "0.10"),
    ("pydicom/pydicom", "1.0"),
    ("pvlib/pvlib-python", "0.1"),
];

/// Simulates Django's: `./tests/runtests.py --verbosity 2 --settings=test_sqlite --parallel 1 test_bug`.
const DJANGO: &str = "#!/usr/bin/env python3
import sys, unittest
sys.path[:0] = ['.', 'tests']
good = True
for case in (c for s in unittest.defaultTestLoader.loadTestsFromName(sys.argv[-1]) for c in s):
    result = case.run()
    good = good and result.wasSuccessful()
    name = f'{case._testMethodName} ({type(case).__module__}.{type(case).__qualname__})'
    print(name, '...', 'ok' if result.wasSuccessful() else 'ERROR' if result.errors else 'FAIL')
sys.exit(not good)
";
/// Simulates SymPy's: `bin/test -C --verbose tests/test_bug.py`.
const SYMPY: &str = "#!/usr/bin/env python3
import runpy, sys
sys.path[:0] = ['.']
good = True
for name, test in runpy.run_path(sys.argv[-1]).items():
    if name.startswith('test_'):
        try:
            test()
            said = 'ok'
        except AssertionError:
            said = 'F'
        except Exception:
            said = 'E'
        good = good and said == 'ok'
        print(name, said)
sys.exit(not good)
";

fn classic(n: usize) -> Case {
    let (repo, version) = REPOSITORIES[n];
    let project = Project::new(n);
    let (project, added) = match repo {
        "django/django" => (project.with_style(Style::UnitTest), one("tests/runtests.py", DJANGO)),
        "sympy/sympy" => (project.with_style(Style::Functions), one("bin/test", SYMPY)),
        _ => (project, Files::new()),
    };
    let (mut row, image, gold, _) = issue(&project, &added);
    let renamed = |rule: fn(&str) -> String| {
        let (finding, kept) = project.names();
        let finding: Vec<String> = finding.iter().map(|name| rule(name)).collect();
        (json!(finding), json!([rule(&kept)]))
    };
    let names = match repo {
        "django/django" => Some(renamed(|name| {
            format!("{} (test_bug.BugTest)", name.trim_start_matches("BugTest::"))
        })),
        "sympy/sympy" => Some(renamed(str::to_owned)),
        _ => None,
    };
    if let Some((finding, kept)) = names {
        row["FAIL_TO_PASS"] = finding;
        row["PASS_TO_PASS"] = kept;
    }
    row["repo"] = json!(repo);
    row["version"] = json!(version);
    as_texts(&mut row);
    Case { row, image, gold }
}

fn gym(n: usize) -> Case {
    let (mut row, image, gold, test_patch) = issue(&Project::new(n), &Files::new());
    let base = row["base_commit"].as_str().unwrap().to_owned();
    let command = ["pytest -rA", "pytest -rA --tb=long", "pytest -rA --color=no"][n % 3];
    let reset = match n % 2 {
        0 => format!("git checkout {base} tests/test_bug.py\n"),
        _ => String::new(),
    };
    row["eval_script"] = json!(format!(
        "#!/bin/bash\nset -exo pipefail\nsource /opt/miniconda3/bin/activate\nconda activate testbed\ncd /testbed\nmake init\n{reset}git apply \
         -v - <<'{DELIMITER}'\n{test_patch}\n{DELIMITER}\n{command} tests/test_bug.py\n{reset}"
    ));
    Case { row, image, gold }
}

/// Profiles of swesmith with pytest.
const PROFILES: [&str; ROWS] = [
    "alanjds__drf-nested-routers.6144169d",
    "PyCQA__flake8.cf1542ce",
    "borntyping__python-colorlog.dfa10f59",
    "cknd__stackprinter.219fcc52",
    "datamade__usaddress.a42a8f0c",
    "encode__starlette.db5063c2",
    "getmoto__moto.694ce1f4",
    "gweis__isodate.17cb25eb",
    "john-kurkowski__tldextract.3d1bf184",
    "kurtmckee__feedparser.cad965a3",
    "mahmoud__boltons.3bfcfdd0",
    "matthewwithanm__python-markdownify.6258f5c3",
    "oauthlib__oauthlib.1fd52536",
    "pdfminer__pdfminer.six.1a8bd2f7",
    "pyasn1__pyasn1.0f07d724",
    "pyparsing__pyparsing.533adf47",
    "scanny__python-pptx.278b47b1",
    "sqlfluff__sqlfluff.50a1c4b6",
    "theskumar__python-dotenv.2b8635b7",
    "paramiko__paramiko.23f92003",
];

fn smith(n: usize) -> Case {
    let project = Project::new(n);
    let tests = "tests/test_bug.py";
    let root = merged(&one("conftest.py", ""), &one(tests, project.tests(false)));
    let repository = merged(&project.good(), &root);
    let buggy = merged(&project.bad(), &root);
    let (finding, kept) = project.names();
    let finding: Vec<String> = finding.iter().map(|name| format!("{tests}::{name}")).collect();
    let profile = PROFILES[n];
    let row = json!({
        "instance_id": format!("{profile}.lm_rewrite__{n}"), "repo": format!("swesmith/{profile}"),
        "patch": diff(&repository, &project.bad()), "FAIL_TO_PASS": finding,
        "PASS_TO_PASS": [format!("{tests}::{kept}")], "problem_statement": format!("Fix project {n}."),
        "image_name": format!("jyangballin/swesmith.x86_64.{}", profile.to_lowercase().replace("__", "_1776_")),
    });
    Case {
        row,
        gold: diff(&buggy, &project.good()),
        image: Image {
            repository,
            ..Image::default()
        },
    }
}

fn rebench(n: usize) -> Case {
    let (mut row, image, gold, _) = issue(&Project::new(n), &Files::new());
    row["meta"] = json!({"llm_score": {"difficulty_score": 1}});
    row["docker_image"] = json!(format!("swerebench/sweb.eval.x86_64.owner_1776_name-{n}"));
    let parser = [json!("parse_log_pytest"), Value::Null, json!("parse_log_pytest_v2")][n % 3].clone();
    let command = [
        "pytest -rA",
        "pytest --no-header -rA --tb=line --color=no",
        "pytest -rA -p no:cacheprovider",
    ][n % 3];
    row["install_config"] = json!({
        "python": "3.11", "install": if n.is_multiple_of(2) { json!("pip install -e .[dev]") } else { Value::Null },
        "pip_packages": ["pytest"], "test_cmd": command, "log_parser": parser,
    });
    if n.is_multiple_of(4) {
        row["install_config"] = row["install_config"].to_string().into();
    }
    Case { row, image, gold }
}

fn r2e(n: usize) -> Case {
    let project = Project::new(n);
    let root = one("conftest.py", "");
    let repository = merged(&project.bad(), &root);
    let gold = diff(&repository, &project.good());
    let (finding, kept) = project.names();
    let mut expected = serde_json::Map::new();
    for name in finding.iter().chain([&kept]) {
        expected.insert(name.replace("::", "."), "PASSED".into());
    }
    let mut tests = project.tests(false);
    if n.is_multiple_of(4) {
        // Fails with the fix too, as in some published rows.
        tests += "\n\ndef test_never():\n    assert False, 'known'\n";
        expected.insert("test_never - AssertionError: known".into(), "FAILED".into());
    }
    let run = "python -m pytest -rA r2e_tests\n";
    let others = [("r2e_tests/test_1.py", tests), ("testbed/run_tests.sh", run.to_owned())];
    let row = json!({
        "repo_name": "sympy", "docker_image": format!("namanjain12/sympy_final:{n:040x}"),
        "commit_hash": format!("{n:040x}"), "parsed_commit_content": "{}", "modified_files": [], "prompt": "p",
        "expected_output_json": Value::Object(expected).to_string(), "execution_result_content": "{}",
        "problem_statement": format!("[ISSUE]\nFix project {n}.\n[/ISSUE]"),
    });
    Case {
        row,
        gold,
        image: Image {
            repository,
            others: others.map(|(path, text)| (path.to_owned(), text)).into(),
        },
    }
}

fn kod_code(n: usize) -> Case {
    let project = Project::new(n);
    let files = |source: Files, tests: &str| merged(&source, &one("test.py", tests));
    let mut tests = project.tests(false);
    if n.is_multiple_of(5) {
        // Neither test depends on the bug.
        tests += "\n\nimport pytest\n\n\n@pytest.mark.skip\ndef test_later():\n    assert 0\n\n\n\
                  @pytest.mark.xfail\ndef test_known():\n    assert 0\n";
    }
    let listed = |files: &Files| {
        let file = |(path, content): (&String, &String)| json!({"path": path, "content": content});
        files.iter().map(file).collect::<Vec<_>>()
    };
    let before = files(project.bad(), &tests);
    let info = json!({
        "task_name": format!("task_{n}"), "entrypoint": "python -m pytest --tb=no -s test.py", "files": listed(&before),
    });
    let prompt = json!([{"role": "user", "content": format!("Find the bug of project {n}.")}]);
    let row = json!({
        "task_id": if n.is_multiple_of(2) { json!(n) } else { json!(format!("kod/{n}")) },
        "problem_statement": "Investigate, find the bug, fix it, so that all tests pass.",
        "prompt": prompt.to_string(),
        "extra_info": if n.is_multiple_of(3) { json!(info.to_string()) } else { info },
    });
    Case {
        row,
        gold: diff(&before, &project.good()),
        image: Image::default(),
    }
}

pub fn without(case: Case, fields: &[&str]) -> Value {
    let mut row = case.row;
    for field in fields {
        row.as_object_mut().unwrap().remove(*field);
    }
    row
}

pub fn with(case: Case, added: Value) -> Value {
    let mut row = case.row;
    row.as_object_mut().unwrap().extend(added.as_object().unwrap().clone());
    row
}

fn spoilt_compiled() -> Vec<(Value, &'static str)> {
    vec![
        (
            with(compiled(0), json!({"log_parser": "parse_log_unknown"})),
            "log_parser",
        ),
        (with(compiled(1), json!({"eval_type": "other"})), "eval_type"),
        (with(compiled(2), json!({"FAIL_TO_PASS": "[\"a\""})), "FAIL_TO_PASS"),
        (without(compiled(3), &["problem_statement"]), "problem_statement"),
    ]
}

fn spoilt_classic() -> Vec<(Value, &'static str)> {
    vec![
        (with(classic(0), json!({"repo": "owner/name"})), "repo"),
        (with(classic(1), json!({"version": "99.9"})), "version"),
        (without(classic(2), &["test_patch"]), "test_patch"),
        (without(classic(3), &["base_commit"]), "base_commit"),
    ]
}

fn spoilt_gym() -> Vec<(Value, &'static str)> {
    vec![
        (without(gym(0), &["eval_script"]), "eval_script"),
        (
            with(gym(1), json!({"eval_script": "#!/bin/bash\nset -exo pipefail\n"})),
            "eval_script",
        ),
        (with(gym(2), json!({"repo": "pydantic/pydantic"})), "repo"),
        (without(gym(3), &["PASS_TO_PASS"]), "PASS_TO_PASS"),
    ]
}

fn spoilt_smith() -> Vec<(Value, &'static str)> {
    vec![
        (with(smith(0), json!({"repo": "swesmith/owner__name.12345678"})), "repo"),
        (with(smith(1), json!({"patch": ""})), "patch"),
        (with(smith(2), json!({"patch": format!("a\n{DELIMITER}\n")})), "patch"),
        (with(smith(3), json!({"FAIL_TO_PASS": {"a": 1}})), "FAIL_TO_PASS"),
    ]
}

fn spoilt_rebench() -> Vec<(Value, &'static str)> {
    vec![
        (with(rebench(0), json!({"install_config": "{"})), "install_config"),
        (
            with(rebench(1), json!({"install_config": {"test_cmd": ["pytest"]}})),
            "install_config",
        ),
        (
            with(
                rebench(2),
                json!({"install_config": {"test_cmd": "a", "log_parser": "b"}}),
            ),
            "log_parser",
        ),
        (with(rebench(3), json!({"language": "go"})), "(row)"),
    ]
}

fn spoilt_r2e() -> Vec<(Value, &'static str)> {
    vec![
        (
            with(r2e(0), json!({"expected_output_json": "{}"})),
            "expected_output_json",
        ),
        (
            with(r2e(1), json!({"expected_output_json": "{"})),
            "expected_output_json",
        ),
        (without(r2e(2), &["problem_statement"]), "problem_statement"),
        (without(r2e(3), &["commit_hash"]), "commit_hash"),
    ]
}

/// A row with a fault only in its files.
fn of_files(n: usize, files: Value) -> Value {
    let row = kod_code(n).row;
    let info = json!({"entrypoint": "python -m pytest test.py", "files": files});
    let id = row["task_id"].clone();
    json!({"task_id": id, "problem_statement": "fix", "extra_info": info})
}

fn spoilt_kod_code() -> Vec<(Value, &'static str)> {
    let file = |path: &str, content: &str| json!({"path": path, "content": content});
    let test = || file("test.py", "def test_a():\n    pass\n");
    let code = || file("a.py", "");
    let files = "extra_info.files";
    vec![
        (of_files(0, json!([code()])), files),
        (of_files(1, json!([test()])), files),
        (of_files(2, json!([test(), file("../a.py", "")])), files),
        (of_files(3, json!([test(), file("/a.py", "")])), files),
        (of_files(4, json!([test(), file("a/.git/config", "")])), files),
        (of_files(5, json!([test(), code(), code()])), files),
        (of_files(6, json!([test(), code(), file("conftest.py", "")])), files),
        (
            of_files(7, json!([code(), file("test.py", "def helper(): pass")])),
            files,
        ),
        (of_files(8, json!([code(), file("test.py", "def test_a(:")])), files),
        (of_files(9, json!([test(), file("a.py", &"#".repeat(1 << 20))])), files),
        (
            of_files(
                10,
                json!([test(), file("a.py", "import no_such_module, no_such_package.part")]),
            ),
            "imports",
        ),
        (
            of_files(11, json!([test(), file("a.py", ""), file("a.py/b.py", "")])),
            files,
        ),
        (
            without(kod_code(12), &["problem_statement", "prompt"]),
            "problem_statement",
        ),
        (without(kod_code(13), &["extra_info"]), "extra_info"),
    ]
}
