use super::*;
use grpo_records::batch::{Row, StoredRow, StoredRows};
use grpo_records::token_stats::Head;
use grpo_records::{Outcome, Writer, paths};

fn row(episode: &str, mask: &[u8]) -> Row {
    Row {
        group: 0,
        episode: episode.to_owned(),
        task: 0,
        instance: "a".to_owned(),
        turn: None,
        stored: StoredRow {
            rows: StoredRows {
                file: paths::rows(episode),
                sha256: String::new(),
            },
            ..StoredRow::default()
        },
        tokens: vec![1; mask.len()],
        mask: mask.to_vec(),
        logprobs: vec![0.0; mask.len()],
        weights: Vec::new(),
        experts: Vec::new(),
        temperature: 1.0,
        reward: 1.0,
        outcome: Outcome::Resolved,
        truncated: false,
    }
}

fn stats() -> TokenStats {
    let mut batch = Batch::new(Writer::driver(1), "run", 1, 1);
    batch.rows = vec![row("a__g0__i0", &[0, 1, 0, 1]), row("a__g0__i1", &[0, 0, 1])];
    TokenStats::of(&batch)
}

fn seen(row: usize, at: usize, new: bool) -> SeenToken {
    SeenToken {
        row,
        at,
        logprob: -1.0 - at as f64,
        entropy: 0.5,
        new,
    }
}

fn term(ratio: f64, clipped: bool) -> Term {
    Term {
        ratio,
        clipped,
        ..Term::default()
    }
}

#[test]
fn a_later_optimizer_step_replaces_ratio_and_marks_and_not_the_first_logprob() {
    let mut stats = stats();
    stats.see(seen(0, 3, true), &term(1.0, false));
    stats.see(
        SeenToken {
            logprob: -9.0,
            ..seen(0, 3, false)
        },
        &term(1.5, true),
    );
    stats.see(seen(1, 2, true), &term(0.5, false));
    assert_eq!(stats.columns.logprobs, [0.0, -4.0, -3.0]);
    assert_eq!(stats.columns.ratios, [0.0, 1.5, 0.5]);
    assert_eq!(stats.columns.marks, [0, COMPUTED | CLIPPED, COMPUTED]);
}

#[test]
fn the_rows_of_the_file_name_their_episodes_and_the_advantage_of_trained_ones() {
    let mut stats = stats();
    let trained = TrainRow {
        number: 1,
        advantage: -0.5,
        ..TrainRow::default()
    };
    stats.train_on(&[trained]);
    let file = stats.file().unwrap();
    let head = Head::read(&file[..Head::bytes(&file[..8]).unwrap() as usize]).unwrap();
    let span = head.episode("a__g0__i1").unwrap();
    assert_eq!((span.rows[0].advantage, span.rows[0].to), (Some(-0.5), 1));
    assert_eq!(head.episode("a__g0__i0").unwrap().rows[0].advantage, None);
    assert_eq!(head.rows()[1].to, 3);
}
