use super::*;
use crate::outcome::VoidReason;

fn row() -> Row {
    Row {
        group: 0,
        episode: "a__g0__i0".into(),
        task: 0,
        instance: "a".into(),
        turn: None,
        stored: StoredRow::default(),
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

fn stored() -> (tempfile::TempDir, Batch) {
    let dir = tempfile::tempdir().unwrap();
    let mut batch = Batch::new(Writer::driver(1), "uid", 1, 1);
    let second = Row {
        tokens: vec![8, 9],
        mask: vec![0, 1],
        logprobs: vec![0.0, -0.123_456_79],
        weights: vec![WeightsSpan {
            from: 1,
            to: 2,
            version: "x-v0".into(),
        }],
        ..row()
    };
    let other = Row {
        episode: "a__g0__i1".into(),
        ..row()
    };
    batch.rows = vec![row(), second, other];
    crate::fixture::write_batch(dir.path(), &mut batch);
    (dir, batch)
}

#[test]
fn a_stored_batch_has_no_ids_and_gets_them_back_bit_by_bit() {
    let (dir, batch) = stored();
    let bytes = std::fs::read(dir.path().join(paths::batch(1))).unwrap();
    let mut read: Batch = crate::record::decode(&bytes).unwrap();
    assert!(
        read.rows
            .iter()
            .all(|row| row.tokens.is_empty() && row.check().is_err())
    );
    let mut files = 0;
    read.fill(|path| {
        files += 1;
        std::fs::read(dir.path().join(path))
    })
    .unwrap();
    assert_eq!((read, files), (batch, 2));
    assert_eq!(row().check(), Ok(()));
}

#[test]
fn rows_that_lie_elsewhere_or_were_changed_are_refused() {
    let (dir, batch) = stored();
    let fill = |change: &dyn Fn(&mut StoredRow)| {
        let mut batch = batch.clone();
        change(&mut batch.rows[2].stored);
        batch.fill(|path| std::fs::read(dir.path().join(path))).unwrap_err()
    };
    let changed = fill(&|row| row.rows.sha256 = "00".into());
    assert!(matches!(changed, FillError::Changed { .. }), "{changed}");
    let beyond = fill(&|row| row.row = 1);
    assert!(matches!(beyond, FillError::Row { rows: 1, row: 1, .. }), "{beyond}");
    for file in [
        "/etc/passwd",
        "rollouts/iter-000001/../x/rows.safetensors",
        "rows.safetensors",
    ] {
        let outside = fill(&|row| row.rows.file = file.into());
        assert!(matches!(outside, FillError::Path { .. }), "{outside}");
    }
    let missing = fill(&|row| row.rows.file = "rollouts/iter-000001/none/rows.safetensors".into());
    assert!(matches!(missing, FillError::Read { .. }), "{missing}");
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
