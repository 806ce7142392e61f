use super::*;
use crate::outcome::VoidReason;

fn row() -> Row {
    Row {
        group: 0,
        episode: "a__g0__i0".into(),
        task: 0,
        instance: "a".into(),
        turn: None,
        tokens: vec![5, 6, 7],
        mask: vec![0, 1, 1],
        logprobs: vec![0.0, -0.5, -0.25],
        weights: vec![WeightsSpan {
            from: 1,
            to: 3,
            version: "x-v0".into(),
        }],
        experts: Vec::new(),
        temperature: 1.0,
        reward: 1.0,
        outcome: Outcome::Resolved,
        truncated: false,
    }
}

#[test]
fn a_row_survives_json_bit_by_bit() {
    let mut one = row();
    one.logprobs[1] = -0.123_456_79;
    let back: Row = serde_json::from_str(&serde_json::to_string(&one).unwrap()).unwrap();
    assert_eq!(back, one);
    assert_eq!(one.check(), Ok(()));
}

#[test]
fn a_row_of_unequal_lengths_is_refused() {
    let mut one = row();
    one.logprobs.pop();
    assert!(matches!(one.check(), Err(RowFault::Lengths { .. })));
}

#[test]
fn a_sampled_token_without_a_weights_version_is_refused() {
    let mut one = row();
    one.weights[0].to = 2;
    assert!(matches!(one.check(), Err(RowFault::Span { at: 2, .. })));
}

#[test]
fn experts_of_tokens_that_are_not_there_or_said_twice_are_refused() {
    let span = |from, to| ExpertsSpan {
        from,
        to,
        file: "x".into(),
        sha256: String::new(),
    };
    let with = |experts: Vec<ExpertsSpan>| Row { experts, ..row() }.check();
    assert_eq!(with(vec![span(0, 1), span(2, 3)]), Ok(()));
    for wrong in [vec![span(0, 4)], vec![span(1, 1)], vec![span(0, 2), span(1, 3)]] {
        assert!(matches!(with(wrong), Err(RowFault::Experts { .. })));
    }
}

#[test]
fn a_void_has_no_rows() {
    let mut one = row();
    one.outcome = Outcome::void(VoidReason::SandboxLost);
    assert!(matches!(one.check(), Err(RowFault::Void { .. })));
}

#[test]
fn a_logprob_where_nothing_was_sampled_is_refused() {
    let mut one = row();
    one.logprobs[0] = -1.0;
    assert!(matches!(one.check(), Err(RowFault::Logprob { at: 0, .. })));
}
