use super::*;
use crate::{Outcome, fixture};

fn turns() -> [TurnRecord; 3] {
    let second = TurnRecord {
        row: 1,
        prompt: vec![1, 9],
        prompt_length: 2,
        ..fixture::edit_turn(1, "1 failed")
    };
    let third = TurnRecord {
        prompt_length: 6,
        ..fixture::edit_turn(2, "1 passed")
    };
    [fixture::look_turn(), second, third]
}

fn episode() -> EndedEpisode {
    fixture::ended(&fixture::episode("a", 0, Outcome::Resolved).meta, &turns())
}

#[test]
fn turns_get_their_ids_back_from_the_rows_that_hold_them_once() {
    let episode = episode();
    assert_eq!(episode.rows.len(), 2);
    assert!(episode.record.turns.iter().all(|turn| turn.sampled.is_empty()));
    assert_eq!(episode.turns().unwrap(), turns());
}

#[test]
fn rows_that_are_not_the_records_are_refused() {
    let EndedEpisode { record, mut rows } = episode();
    rows[0].tokens[4] = 7;
    let forged = rows::encode(&rows).unwrap();
    assert!(matches!(
        EndedEpisode::of(record, &forged),
        Err(EndedError::Changed { .. })
    ));
}

#[test]
fn a_turn_beyond_its_row_is_an_error_that_names_it() {
    let mut episode = episode();
    episode.record.turns[1].sampled_length = 90;
    let error = episode.turns().unwrap_err();
    assert!(
        matches!(
            error,
            EndedError::Turn {
                turn: 1,
                row: 1,
                tokens: 5,
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn messages_tell_the_episode_from_prompt_to_last_answer() {
    let told = messages(&episode().record.turns);
    let roles: Vec<&str> = told.iter().map(|message| message.role.as_str()).collect();
    assert_eq!(roles, ["assistant", "user", "assistant", "user", "assistant", "user"]);
    assert_eq!(told[0].note.as_deref(), Some("exit 0 in 5 ms"));
}
