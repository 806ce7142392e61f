//! Rows that name their test commands and log parser: SWE-rebench-V2 and SWE-bench-Live.

use super::projects::Project;
use super::publishers::{Case, Publisher, issue, with, without};
use super::sandbox::Files;
use grpo_crds::grpo_run::RowFormat;
use serde_json::{Value, json};

pub fn all() -> Vec<Publisher> {
    vec![
        Publisher {
            name: "SWE-rebench-V2",
            format: RowFormat::SweRebenchV2,
            case: rebench_v2,
            spoilt: spoilt_rebench_v2,
        },
        Publisher {
            name: "SWE-bench-Live",
            format: RowFormat::SweBenchLive,
            case: live,
            spoilt: spoilt_live,
        },
    ]
}

fn rebench_v2(n: usize) -> Case {
    let (row, image, gold, _) = issue(&Project::new(n), &Files::new());
    let parser = ["parse_log_pytest", "parse_log_pytest_v2", "parse_log_pytest_options"][n % 3];
    let command = "pytest --no-header -rA --tb=line --color=no tests/test_bug.py";
    let commands = match n.is_multiple_of(2) {
        true => json!(["true", command]),
        false => json!(command),
    };
    let config = json!({
        "base_image_name": "python_3.11", "docker_specs": null, "install": ["pip install -e .[dev]"],
        "log_parser": parser, "test_cmd": commands,
    });
    let added = json!({
        // Its images have the repository in a folder of its name.
        "repo": "owner/testbed", "language": "python", "pr_description": "Fixed.", "interface": "",
        "image_name": format!("docker.io/swerebenchv2/owner-testbed:{n}-abc"),
        "install_config": if n.is_multiple_of(4) { json!(config.to_string()) } else { config },
    });
    Case {
        row: extended(row, added),
        image,
        gold,
    }
}

fn live(n: usize) -> Case {
    let (row, image, gold, _) = issue(&Project::new(n), &Files::new());
    let command = "pytest -rA tests/test_bug.py";
    let commands = match n.is_multiple_of(2) {
        true => json!(["cd .", command]),
        false => json!([command]),
    };
    let added = json!({"test_cmds": commands, "log_parser": "pytest", "pull_number": n.to_string()});
    Case {
        row: extended(row, added),
        image,
        gold,
    }
}

/// Neither has a version.
fn extended(mut row: Value, added: Value) -> Value {
    let fields = row.as_object_mut().unwrap();
    fields.remove("version");
    fields.extend(added.as_object().unwrap().clone());
    row
}

fn spoilt_rebench_v2() -> Vec<(Value, &'static str)> {
    let config = |parser: &str, command: Value| json!({"install_config": {"log_parser": parser, "test_cmd": command}});
    vec![
        (
            with(rebench_v2(0), config("parse_log_of_nobody", json!("pytest"))),
            "install_config.log_parser",
        ),
        (
            with(rebench_v2(1), config("parse_log_pytest", json!([]))),
            "install_config.test_cmd",
        ),
        (with(rebench_v2(2), json!({"install_config": "{"})), "install_config"),
        (with(rebench_v2(3), json!({"repo": "name"})), "repo"),
        (without(rebench_v2(5), &["test_patch"]), "test_patch"),
        (without(rebench_v2(6), &["FAIL_TO_PASS"]), "FAIL_TO_PASS"),
    ]
}

fn spoilt_live() -> Vec<(Value, &'static str)> {
    let program = "def parser(log):\n    return {}\n";
    vec![
        (without(live(0), &["test_cmds"]), "test_cmds"),
        (with(live(1), json!({"log_parser": program})), "log_parser"),
        (without(live(2), &["test_patch"]), "test_patch"),
        (with(live(3), json!({"PASS_TO_PASS": "[\"a\""})), "PASS_TO_PASS"),
    ]
}
