use super::*;
use serde_json::json;
use std::process::Command;

fn task(variables: &[(&str, &str)], activation: Option<&str>) -> TaskEnvironment {
    let variables = variables.iter();
    TaskEnvironment {
        directory: "/testbed".into(),
        variables: variables
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect(),
        activation: activation.map(str::to_owned),
        setup: String::new(),
        hidden: Vec::new(),
        test_command: None,
    }
}

fn surroundings(env: serde_json::Value, edit_tool: bool) -> CommandSurroundings {
    let agent: Agent = serde_json::from_value(json!({"bash": {}, "env": env})).unwrap();
    CommandSurroundings::of(&agent, edit_tool)
}

#[test]
fn a_tasks_variables_stand_above_the_runs_and_those_above_quiet_ones() {
    let given =
        json!([{"name": "PAGER", "value": "less"}, {"name": "A", "value": "run"}, {"name": "B", "value": "run"}]);
    let all = surroundings(given, false).environment(&task(&[("B", "task"), ("LESS", "")], None));
    let wanted = [
        ("A", "run"),
        ("B", "task"),
        ("LESS", ""),
        ("MANPAGER", "cat"),
        ("PAGER", "less"),
        ("PIP_PROGRESS_BAR", "off"),
        ("TQDM_DISABLE", "1"),
    ];
    assert_eq!(
        all,
        wanted.map(|(name, value)| (name.to_owned(), value.to_owned())).into()
    );
}

#[test]
fn only_the_edit_tool_changes_the_tasks_activation() {
    let own = Some("exit_status=3; false");
    assert_eq!(
        surroundings(json!([]), false).activation(&task(&[], own)).as_deref(),
        own
    );
    assert_eq!(surroundings(json!([]), false).activation(&task(&[], None)), None);
    let with_tool = surroundings(json!([]), true);
    for (script, works) in [
        (Some("X=1"), true),
        (Some("false"), false),
        (Some("true # done"), true),
        (None, true),
    ] {
        let script = with_tool.activation(&task(&[], script)).unwrap();
        for shell in ["bash", "sh"] {
            let shown = Command::new(shell)
                .args(["-c", "eval \"$SCRIPT\" || exit; echo \"$PATH\""])
                .env("SCRIPT", &script)
                .output()
                .unwrap();
            assert_eq!(shown.status.success(), works, "{script}");
            assert_eq!(String::from_utf8_lossy(&shown.stdout).ends_with(":/grpo/bin\n"), works);
        }
    }
}

/// As prompts have it: `python edit_via_str_replace FILE -- OLD NEW`, in a repository without such a file.
#[test]
fn python_finds_the_edit_tool_unless_the_repository_has_a_file_of_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let program = |name: &str, text: &str| {
        use std::os::unix::fs::PermissionsExt as _;
        let path = folder.path().join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    };
    program("edit_via_str_replace", "printf 'tool:%s.' \"$@\"");
    program("python", "printf 'python:%s.' \"$@\"");
    program("python3", "printf 'python3:%s.' \"$@\"");
    let environment = surroundings(json!([]), true).environment(&task(&[], None));
    let repository = tempfile::tempdir().unwrap();
    let path = format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap());
    let said = |command: &str| {
        let done = Command::new("/bin/bash")
            .args(["-c", command])
            .current_dir(repository.path())
            .envs(&environment)
            .env("PATH", &path)
            .output()
            .unwrap();
        assert!(done.status.success(), "{command}");
        String::from_utf8(done.stdout).unwrap()
    };
    assert_eq!(
        said("edit_via_str_replace a -- 'x y' ''"),
        "tool:a.tool:--.tool:x y.tool:."
    );
    assert_eq!(said("python edit_via_str_replace a -- x"), "tool:a.tool:--.tool:x.");
    assert_eq!(said("set -u; python3 ./edit_via_str_replace a"), "tool:a.");
    assert_eq!(said("bash -c 'python edit_via_str_replace a'"), "tool:a.");
    assert_eq!(
        said("set -u; python; python -c 'pass'"),
        "python:.python:-c.python:pass."
    );
    assert_eq!(said("python3 edit.py"), "python3:edit.py.");
    std::fs::write(repository.path().join("edit_via_str_replace"), "").unwrap();
    assert_eq!(
        said("python edit_via_str_replace a"),
        "python:edit_via_str_replace.python:a."
    );
}
