use super::*;
use grpo_records::{Outcome, fixture};

/// An episode of two turns, each with two sampled tokens, and its row.
fn two_turns() -> (BTreeMap<String, EndedEpisode>, Vec<Row>) {
    let meta = fixture::episode("a", 0, Outcome::Resolved).meta;
    let second = grpo_records::TurnRecord {
        prompt_length: 6,
        ..fixture::turn(1, "true", "")
    };
    let ended = fixture::ended(&meta, &[fixture::turn(0, "ls", "a.py"), second]);
    let rows = Row::of(&ended, &Outcome::Resolved, 1.0);
    ([(meta.key.name(), ended)].into(), rows)
}

#[test]
fn a_batch_with_every_answer_once_trains_on_what_was_sampled() {
    let (episodes, rows) = two_turns();
    let expected = Tokens {
        sampled: 4,
        trained: 4,
        ..Tokens::default()
    };
    assert_eq!(Tokens::of(&episodes, &rows), expected);
}

#[test]
fn a_missing_a_doubled_and_a_foreign_token_are_counted() {
    type Change = fn(&mut Vec<Row>);
    let cases: [(Change, (usize, usize)); 4] = [
        (|rows| rows.clear(), (0, 4)),
        (|rows| rows.push(rows[0].clone()), (4, 0)),
        // An observation.
        (|rows| rows[0].mask[5] = 1, (1, 0)),
        (|rows| rows[0].mask.swap(2, 3), (1, 1)),
    ];
    for (at, (change, expected)) in cases.into_iter().enumerate() {
        let (episodes, mut rows) = two_turns();
        change(&mut rows);
        let tokens = Tokens::of(&episodes, &rows);
        let found = (tokens.trained_not_sampled, tokens.sampled_not_trained);
        assert_eq!(found, expected, "case {at}");
    }
}
