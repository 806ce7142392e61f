use super::*;

#[test]
fn the_last_box_is_the_vote_and_only_one_of_plus_or_minus_one() {
    for (text, vote) in [
        ("fine. \\boxed{1}", Some(1)),
        ("\\boxed{+1}", Some(1)),
        ("\\boxed{ -1 }", Some(-1)),
        ("\\boxed{1.0}", Some(1)),
        ("\\boxed{-1.000}", Some(-1)),
        ("put it in \\boxed{}. So \\boxed{-1}", Some(-1)),
        ("\\boxed{1} no: \\boxed{-1}", Some(-1)),
        ("\\boxed{1} and then \\boxed{-1", Some(1)),
        ("<think>It quotes \\boxed{1}.</think>\n\\boxed{-1}", Some(-1)),
        ("It quotes \\boxed{1}.\n</think>\nIt fails.", None),
        ("\n<think>It never ends \\boxed{1}", None),
        ("It has no <think> in its place. \\boxed{1}", Some(1)),
        ("\\boxed{1 (good)}", None),
        ("\\boxed{0}", None),
        ("\\boxed{2}", None),
        ("\\boxed{\\text{1}}", None),
        ("\\boxed{1.}", None),
        ("\\boxed{1e0}", None),
        ("\\boxed{inf}", None),
        ("\\boxed{}", None),
        ("1", None),
        ("", None),
        ("\\boxed{é{1}ü}", None),
    ] {
        assert_eq!(vote_of(text), vote, "{text}");
    }
}

fn votes(given: &[Option<i8>]) -> Vec<Vote> {
    let vote = |vote: &Option<i8>| Vote {
        vote: *vote,
        ..Vote::default()
    };
    given.iter().map(vote).collect()
}

#[test]
fn a_vote_without_a_number_is_missing_and_never_a_zero() {
    assert_eq!(score_of(&votes(&[Some(1), None, None]), 1), Some(1.0));
    assert_eq!(score_of(&votes(&[Some(1), Some(-1), None]), 1), Some(0.0));
    assert_eq!(score_of(&votes(&[Some(1), Some(1), Some(-1)]), 1), Some(1.0 / 3.0));
    assert_eq!(score_of(&votes(&[Some(1), None, None]), 2), None);
    assert_eq!(score_of(&votes(&[None, None]), 0), None);
}

#[test]
fn an_episode_has_the_mean_of_its_scores_and_a_turn_its_own() {
    let turn = |turn, score| TurnScore { turn, score };
    let scores = ProcessScores {
        outcome: -1.0,
        turns: vec![turn(0, Some(1.0)), turn(2, None), turn(3, Some(0.0))],
    };
    assert_eq!(scores.reward(0.5), -0.75);
    assert_eq!(scores.of_turn(0, 0.5), Some(-0.5));
    assert_eq!(scores.of_turn(1, 0.5), Some(-1.0), "the judge was not asked");
    assert_eq!(scores.of_turn(2, 0.5), None, "its votes were lost");
    let unscored = ProcessScores {
        turns: vec![turn(0, None)],
        ..scores
    };
    assert_eq!(unscored.reward(0.5), -1.0);
}

/// Recorded with `make check-judge`, which makes new cases and names their folder.
fn openclaw_cases() -> String {
    match std::env::var("GRPO_JUDGE_CASES") {
        Ok(folder) => std::fs::read_to_string(format!("{folder}/votes.jsonl")).unwrap(),
        Err(_) => include_str!("votes.jsonl").to_owned(),
    }
}

#[test]
fn a_vote_is_what_openclaws_own_function_reads_unless_a_text_has_several_boxes() {
    let (mut alike, mut several) = (0, 0);
    for line in openclaw_cases().lines() {
        let case: serde_json::Value = serde_json::from_str(line).unwrap();
        let text = case["text"].as_str().unwrap();
        // Without a verdict the original returns 0, which its mean does not count as a vote either.
        let theirs = case["sign"].as_i64().filter(|sign| *sign != 0);
        if case["boxes"].as_u64().unwrap() > 1 {
            // It reads the first box, so a judge that quotes its instructions is misread.
            several += 1;
            continue;
        }
        assert_eq!(vote_of(text).map(i64::from), theirs, "{text}");
        alike += 1;
    }
    println!("votes: {alike} alike, {several} with several boxes left out");
    assert!(alike > 2 * several);
}
