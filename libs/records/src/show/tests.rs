use super::*;
use crate::fixture;
use crate::look::{Records, TurnsOf};

fn shown(path: &str, detail: Detail) -> String {
    let dir = tempfile::tempdir().unwrap();
    fixture::write_store(dir.path());
    let records = Records::open(dir.path()).unwrap();
    let turns = records.turns(&TurnsOf {
        path: path.into(),
        from: 0,
    });
    text(&records.episode(path).unwrap(), &turns.unwrap().turns, detail)
}

#[test]
fn an_episode_is_told_from_prompt_to_verdict() {
    let told = shown("rollouts/iter-000001/psf__requests-1__g0__i0", Detail::default());
    let parts = [
        "iteration 1",
        "--- system",
        "The loop is off by one.",
        "=== turn 0: tokens 3..5 were sampled by a-v0 (2 of them, logprob -0.600)",
        "grep -n",
        "exit 0 in 5 ms; tokens 5..6 were given",
        "=== turn 1",
        "1 passed",
        "--- ended: Submitted; Resolved (40 of 100 tokens were sampled)",
        "--- patch",
        "--- graded: Judged",
    ];
    let mut rest = told.as_str();
    for part in parts {
        let at = rest
            .find(part)
            .unwrap_or_else(|| panic!("{part:?} does not follow in:\n{told}"));
        rest = &rest[at + part.len()..];
    }
    assert!(!told.contains("sampled ids"), "{told}");
}

#[test]
fn every_sampled_id_is_told_when_asked_for() {
    let told = shown("rollouts/iter-000001/psf__requests-1__g0__i0", Detail { tokens: true });
    assert!(told.contains("    10 -0.500        2 -0.100"), "{told}");
}

#[test]
fn an_episode_that_goes_on_is_told_as_far_as_it_is() {
    let told = shown("rollouts/iter-000001/psf__requests-1__g0__i3", Detail::default());
    assert!(
        told.contains("without a verdict") && told.contains("it has not ended"),
        "{told}"
    );
}

#[test]
fn what_a_sandbox_wrote_does_not_command_the_terminal() {
    assert_eq!(harmless("a\u{1b}[2Jb\r\n\tc\u{9b}\u{7f}"), "a␛[2Jb␍\n\tc\u{fffd}␡");
    assert!(matches!(harmless("é\n"), Cow::Borrowed(_)));
}
