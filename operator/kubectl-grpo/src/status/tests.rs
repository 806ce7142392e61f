use super::*;
use serde_json::{Value, json};

fn run(phase: &str) -> GrpoRun {
    let mut run: Value = serde_yaml_ng::from_str(include_str!("../../../../docs/examples/demo.yaml")).unwrap();
    run["metadata"]["namespace"] = "team".into();
    run["status"] = json!({"phase": phase});
    serde_json::from_value(run).unwrap()
}

/// What is printed for these steps: a phase is a state of the run, `!` begins a failure.
fn printed(terminal: bool, steps: &[&str]) -> (String, String) {
    let mut out = Vec::new();
    let mut watched = WatchedScreen {
        name: "demo".to_owned(),
        terminal,
        out: &mut out,
        err: Vec::new(),
        shown: String::new(),
        told: String::new(),
    };
    for step in steps {
        match step.strip_prefix('!') {
            Some(why) => watched.failure(why),
            None => watched.state(&run(step)).unwrap(),
        }
    }
    let err = watched.err;
    (String::from_utf8(out).unwrap(), String::from_utf8(err).unwrap())
}

#[test]
fn a_watched_screen_is_printed_after_a_change_only() {
    let (out, err) = printed(false, &["Queued", "Queued", "Succeeded", "Succeeded"]);
    assert_eq!(out.matches("---\n").count(), 2, "{out}");
    assert_eq!(err, "");
    let (out, _) = printed(true, &["Queued", "Queued", "Succeeded"]);
    assert_eq!(out.matches(CLEAR).count(), 2, "{out}");
    assert!(!out.contains("---\n"), "{out}");
}

#[test]
fn a_watch_that_fails_says_once_for_each_cause_that_the_screen_may_be_old() {
    let (_, err) = printed(false, &["Queued", "!Unauthorized", "!Unauthorized", "!refused"]);
    let lines: Vec<&str> = err.lines().collect();
    assert_eq!(lines.len(), 2, "{err}");
    assert!(
        lines[0].contains("may be old") && lines[0].ends_with("Unauthorized"),
        "{err}"
    );
    assert!(lines[1].ends_with("refused"), "{err}");
}

#[test]
fn a_failure_after_the_watch_worked_again_is_said_again() {
    let steps = ["Queued", "!Unauthorized", "Queued", "!Unauthorized"];
    assert_eq!(printed(false, &steps).1.lines().count(), 2);
    // The line about the first failure is gone from the terminal.
    assert_eq!(printed(true, &steps).0.matches(CLEAR).count(), 2);
}
