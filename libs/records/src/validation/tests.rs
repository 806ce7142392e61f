use super::*;

fn trial(ended: TrialEnd) -> Trial {
    Trial {
        ended,
        fail_to_pass: TestCounts::default(),
        pass_to_pass: TestCounts::default(),
        millis: 1,
        note: Some("why".into()),
    }
}

fn of(gold: &[TrialEnd], empty: &[TrialEnd]) -> Vec<String> {
    let trials = |ends: &[TrialEnd]| ends.iter().copied().map(trial).collect::<Vec<_>>();
    let found = findings(&trials(gold), &trials(empty));
    let name = |finding: &Finding| {
        format!("{finding:?}")
            .split([' ', '{'])
            .next()
            .unwrap_or_default()
            .to_owned()
    };
    found.iter().map(name).collect()
}

#[test]
fn each_way_in_which_a_task_is_unfit_has_a_name_and_a_fit_one_has_none() {
    use TrialEnd::{PatchRefused, Resolved, SetupFailed, TimedOut, Ungradable, Unresolved};
    let (good, bad) = ([Resolved; 3], [Unresolved; 3]);
    for (gold, empty, found) in [
        (good, bad, vec![]),
        (bad, bad, vec!["GoldFails"]),
        (good, good, vec!["EmptyPasses"]),
        (bad, good, vec!["GoldFails", "EmptyPasses"]),
        ([Resolved, Unresolved, Resolved], bad, vec!["Flaky"]),
        (good, [Unresolved, Unresolved, Resolved], vec!["Flaky"]),
        ([Resolved, TimedOut, Resolved], bad, vec!["Hangs"]),
        (good, [TimedOut; 3], vec!["Hangs"]),
        ([PatchRefused; 3], bad, vec!["GoldDoesNotApply"]),
        ([Ungradable; 3], [Ungradable; 3], vec!["Ungradable", "Ungradable"]),
        ([SetupFailed; 3], [SetupFailed; 3], vec!["SetupFails"]),
    ] {
        assert_eq!(of(&gold, &empty), found, "{gold:?} {empty:?}");
    }
    assert_eq!(of(&[], &bad), Vec::<String>::new(), "a row without a gold patch");
}

#[test]
fn a_test_that_comes_and_goes_is_flaky_though_every_verdict_is_the_same() {
    let mut gold = vec![trial(TrialEnd::Resolved); 3];
    gold[1].pass_to_pass.failed = 1;
    let found = findings(&gold, &vec![trial(TrialEnd::Unresolved); 3]);
    assert!(matches!(found[..], [Finding::Flaky { .. }]), "{found:?}");
}

fn one(instance: &str, findings: Vec<Finding>) -> TaskValidation {
    TaskValidation {
        schema: crate::SCHEMA,
        writer: Writer::driver(1),
        set: "train".into(),
        instance: instance.into(),
        graded: None,
        findings,
        gold: Vec::new(),
        empty: Vec::new(),
        at: 0,
    }
}

#[test]
fn a_list_has_the_fit_tasks_as_lines_and_the_others_as_comments() {
    let message = "setup.sh:\nno".to_owned();
    let list = id_list(
        "train",
        &[
            one("a", vec![]),
            one("b", vec![Finding::SetupFails { message }, Finding::GoldDoesNotApply]),
            one("c", vec![]),
        ],
    );
    let wanted = "# 2 of 3 tasks of train are fit.\na\n# b: its sandbox cannot be prepared: setup.sh: no; the gold patch does not apply\nc\n";
    assert_eq!(list, wanted);
}

#[test]
fn a_page_that_a_setup_printed_is_a_short_comment() {
    let message = "é\r\n".repeat(40_000);
    let list = id_list("train", &[one("a", vec![Finding::SetupFails { message }])]);
    let lines: Vec<&str> = list.lines().collect();
    assert_eq!(lines.len(), 2, "{} lines", lines.len());
    assert!(lines[1].starts_with("# a: its sandbox cannot be prepared: é") && lines[1].ends_with('…'));
    assert!(lines[1].chars().count() < 320);
}

#[test]
fn a_record_of_a_task_that_the_infrastructure_lost_is_not_about_the_task() {
    let message = "no node".to_owned();
    let no_sandbox = one("a", vec![Finding::NoSandbox { message }]);
    let tried = |note: &str| TaskValidation {
        empty: vec![Trial {
            note: Some(note.into()),
            ..trial(TrialEnd::Ungradable)
        }],
        ..one("a", vec![])
    };
    let no_grader = tried("no grader gave an answer within 3600s: no node");
    assert_eq!([no_sandbox, no_grader].map(|one| one.is_about_its_task()), [false; 2]);
    let unreadable = tried("the log tells nothing: no test results in it");
    let unfit = one("a", vec![Finding::GoldDoesNotApply]);
    assert_eq!([unreadable, unfit].map(|one| one.is_about_its_task()), [true; 2]);
}
