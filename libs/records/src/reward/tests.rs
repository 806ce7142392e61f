use super::*;
use crate::chat::CalledTool;
use crate::episode::TestCounts;
use crate::fixture;
use crate::outcome::VoidReason;
use crate::turn::TurnAction;

/// The shaped reward of SWE-PDB's tree: pass ratio - 0.1 for each rewrite (at most 0.5) - 0.01 for each step (at most
/// 0.3) + 0.5 on success, clamped to -1 and 2, and - 0.001 for each line of the patch (at most 0.2).
fn swe_pdb() -> RewardRule {
    RewardRule {
        resolved: 0.5,
        unresolved: 0.0,
        shaping: Some(Shaping {
            pass_ratio: 1.0,
            turns: Cost { each: 0.01, most: 0.3 },
            calls: vec![("rewrite".to_owned(), Cost { each: 0.1, most: 0.5 })],
            patch_lines: Cost { each: 0.001, most: 0.2 },
            low: Some(-1.0),
            high: Some(2.0),
        }),
        asks: false,
    }
}

fn turns(count: u32, rewrites: u32) -> Vec<TurnRecord> {
    let call = |name: &str| CalledTool {
        id: "0".into(),
        name: name.into(),
        arguments: "{}".into(),
    };
    let turn = |number: u32| TurnRecord {
        action: TurnAction::calls(&[call(if number < rewrites { "rewrite" } else { "view" })]),
        ..fixture::turn(number, "", "")
    };
    (0..count).map(turn).collect()
}

fn grade(passed: u32, failed: u32) -> GradeRecord {
    GradeRecord {
        fail_to_pass: TestCounts { passed, failed },
        pass_to_pass: TestCounts { passed: 2, failed: 0 },
        ..GradeRecord::default()
    }
}

#[test]
fn a_shaped_reward_has_the_pass_ratio_and_is_charged_for_what_the_episode_took() {
    let diff = "diff --git a/a.py b/a.py\n--- a/a.py\n+++ b/a.py\n@@ -1,2 +1,3 @@\n def f():\n-    a\n+    b\n+    c\n";
    assert_eq!(changed_lines(diff.as_bytes()), 3);
    let long = "+x\n".repeat(1000);
    for (outcome, grade, steps, rewrites, patch, reward) in [
        (
            Outcome::Resolved,
            Some(grade(2, 0)),
            10,
            2,
            diff,
            0.5 + 1.0 - 0.2 - 0.1 - 0.003,
        ),
        (Outcome::Unresolved, Some(grade(0, 2)), 10, 0, diff, 0.5 - 0.1 - 0.003),
        // Each cost is capped.
        (
            Outcome::Unresolved,
            Some(grade(0, 2)),
            60,
            40,
            &long,
            0.5 - 0.5 - 0.3 - 0.2,
        ),
        (Outcome::Unresolved, None, 60, 40, &long, -1.0),
        (Outcome::Unresolved, None, 0, 0, "", 0.0),
    ] {
        let turns = turns(steps, rewrites);
        let ended = Ended {
            outcome: &outcome,
            grade: grade.as_ref(),
            turns: &turns,
            patch: patch.as_bytes(),
        };
        let found = swe_pdb().reward(ended).unwrap();
        assert!((f64::from(found) - reward).abs() < 1e-6, "{found}, not {reward}");
    }
}

#[test]
fn without_shaping_the_verdict_alone_counts_and_a_void_has_no_reward() {
    let rule = RewardRule {
        resolved: 1.0,
        unresolved: -1.0,
        shaping: None,
        asks: false,
    };
    let turns = turns(9, 9);
    let of = |rule: &RewardRule, outcome: Outcome| {
        rule.reward(Ended {
            outcome: &outcome,
            grade: None,
            turns: &turns,
            patch: b"+x",
        })
    };
    assert_eq!(of(&rule, Outcome::Resolved), Some(1.0));
    assert_eq!(of(&rule, Outcome::Unresolved), Some(-1.0));
    for rule in [rule, swe_pdb()] {
        assert_eq!(of(&rule, Outcome::void(VoidReason::SandboxLost)), None);
    }
}

#[test]
fn an_answer_counts_only_for_what_was_asked_and_a_refusal_is_no_success() {
    let rule = RewardRule {
        resolved: 1.0,
        unresolved: -0.5,
        shaping: None,
        asks: true,
    };
    let answer = |reward: f32, refused: Option<&str>| RewardAnswer {
        schema: crate::SCHEMA,
        writer: Writer::driver(1),
        episode: "a__g0__i0".into(),
        outcome: Outcome::Resolved,
        grade: None,
        by_rule: 1.0,
        reward,
        note: None,
        refused: refused.map(str::to_owned),
        at: 0,
    };
    assert_eq!(rule.answered(&answer(0.25, None), 1.0), Some(0.25));
    assert_eq!(
        rule.answered(&answer(0.25, None), -0.5),
        None,
        "asked for another episode"
    );
    assert_eq!(rule.answered(&answer(-0.5, Some("422")), 1.0), Some(-0.5));
    assert_eq!(
        rule.answered(&answer(1.0, Some("422")), 1.0),
        None,
        "a refusal is worth what no solution is"
    );
}
