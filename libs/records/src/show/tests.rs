use super::*;
use crate::CalledTool;
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
    let turns = turns.unwrap();
    text(&records.episode(path).unwrap(), &turns.turns, &turns.judged, detail)
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
fn a_judged_episode_is_told_with_scores_votes_and_the_parts_of_its_reward() {
    let dir = tempfile::tempdir().unwrap();
    fixture::write_store(dir.path());
    fixture::write_rewards(dir.path());
    let records = Records::open(dir.path()).unwrap();
    let page = records.turns(&TurnsOf {
        path: fixture::RESOLVED.into(),
        from: 0,
    });
    let page = page.unwrap();
    let view = records.episode(fixture::RESOLVED).unwrap();
    let told = |votes| {
        let detail = Detail { tokens: false, votes };
        text(&view, &page.turns, &page.judged, detail)
    };
    let short = told(false);
    let parts = [
        "=== turn 0",
        "--- judge: score -1.000; votes -1, unreadable, lost\n",
        "=== turn 1",
        "--- judge: score 1.000; votes +1, +1, +1\n",
        "--- graded: Judged",
        "--- reward 1.25\n",
        "  verdict Resolved: 1\n",
        "  tests: 4 of 4 pass: +0.5\n",
        "  shaping, turns: 2: -0.1\n",
        "  shaping, calls of rewrite: 0: -0\n",
        "  shaping, lines of the patch: 2: -0.02\n",
        "  by the rule, from 0 to none: 1.38\n",
        "  hook: the service says 1.25: a clean patch\n",
        "  process: 0.5 x mean score 0 of 2 of 2 judged turns: +0\n",
    ];
    let mut rest = short.as_str();
    for part in parts {
        let at = rest.find(part);
        let at = at.unwrap_or_else(|| panic!("{part:?} does not follow in:\n{short}"));
        rest = &rest[at + part.len()..];
    }
    assert!(!short.contains("It mends the loop."), "{short}");
    let long = told(true);
    for words in [
        "--- vote 0: +1 in 350 ms\n  It mends the loop. \\boxed{1}\n",
        "--- vote 1: unreadable in 350 ms\n  I cannot say.\n",
        "--- vote 2: lost in 20000 ms\n  10.0.0.7:8000: 503 Service Unavailable\n",
    ] {
        assert!(long.contains(words), "{words:?} is not in:\n{long}");
    }
}

fn called(number: u32, row: u32, action: TurnAction) -> TurnRecord {
    TurnRecord {
        row,
        exec: None,
        text: format!("answer {number}"),
        action,
        ..fixture::turn(number, "", &format!("result {number}"))
    }
}

#[test]
fn calls_and_rows_are_told_with_what_was_sampled_in_each() {
    let call = |name: &str, arguments: &str| CalledTool {
        id: format!("call_{name}"),
        name: name.into(),
        arguments: arguments.into(),
    };
    let calls = TurnAction::calls(&[call("view", "{\"path\": \"a\u{1b}\"}"), call("eval", "{}")]);
    let turns = [
        called(0, 0, calls),
        called(1, 1, TurnAction::malformed_call("call 1: it has no name")),
        called(2, 0, TurnAction::answer()),
    ];
    let dir = tempfile::tempdir().unwrap();
    fixture::write_store(dir.path());
    let view = Records::open(dir.path()).unwrap();
    let view = view.episode("rollouts/iter-000001/psf__requests-1__g0__i0").unwrap();
    let told = text(&view, &turns, &[], Detail::default());
    let parts = [
        "=== turn 0 in row 0: tokens 3..5 were sampled by a-v0 (2 of them, logprob -0.600)\nanswer 0",
        "--- call call_view of view\n  {\"path\": \"a␛\"}\n--- call call_eval of eval\n  {}\n",
        "--- observed; tokens 5..6 were given\n  result 0\n",
        "=== turn 1 in row 1",
        "; a call cannot be read, so nothing was run: call 1: it has no name\n",
        "=== turn 2 in row 0",
        "; no call\n",
        "--- rows\n  row 0: turns 0, 2; 4 of 6 tokens were sampled\n  row 1: turns 1; 2 of 6 tokens were sampled\n",
    ];
    let mut rest = told.as_str();
    for part in parts {
        let at = rest.find(part);
        let at = at.unwrap_or_else(|| panic!("{part:?} does not follow in:\n{told}"));
        rest = &rest[at + part.len()..];
    }
    assert!(
        !text(&view, &turns[..1], &[], Detail::default()).contains("in row"),
        "{told}"
    );
    let notes = crate::ended::messages(&turns)
        .into_iter()
        .filter_map(|message| message.note);
    let expected = [
        "called view, eval",
        "a call that cannot be read, nothing run",
        "no call",
    ];
    assert_eq!(notes.collect::<Vec<_>>(), expected);
}

#[test]
fn every_sampled_id_is_told_when_asked_for() {
    let told = shown(
        "rollouts/iter-000001/psf__requests-1__g0__i0",
        Detail {
            tokens: true,
            ..Detail::default()
        },
    );
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

#[test]
fn an_episode_that_was_answered_in_text_says_so() {
    let dir = tempfile::tempdir().unwrap();
    fixture::write_store(dir.path());
    let mut view = Records::open(dir.path()).unwrap().episode(fixture::RESOLVED).unwrap();
    let told = |view: &EpisodeView| text(view, &[], &[], Detail::default());
    assert!(!told(&view).contains("came as text"));
    view.episode.meta.as_mut().unwrap().untrainable = true;
    assert!(told(&view).contains("its answers came as text"));
}
