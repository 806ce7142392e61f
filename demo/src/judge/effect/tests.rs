use super::*;
use grpo_records::fixture::{edit_turn, look_turn};
use grpo_records::{SCHEMA, Vote, Writer};
use serde_json::json;
use std::path::Path;

fn evaluation(tasks: &[(&str, u32, u32)]) -> Evaluation {
    let tally = |(instance, resolved, valid): &(&str, u32, u32)| {
        let tally = Tally {
            resolved: *resolved,
            valid: *valid,
        };
        ((*instance).to_owned(), tally)
    };
    Evaluation {
        tasks: tasks.iter().map(tally).collect(),
        ..Evaluation::default()
    }
}

fn tasks() -> Tasks {
    let rows = ["a", "b", "c"].map(|id| format!(r#"{{"instance_id":"{id}","function":"f"}}"#));
    let mut tasks = Tasks::default();
    tasks.rows.take(Path::new("rows.jsonl"), &rows.join("\n")).unwrap();
    tasks
}

#[test]
fn a_task_counts_once_however_many_seeds_there_are_and_not_at_all_without_verdicts() {
    let pair = |seed, plain: &[_], judged: &[_]| Pair {
        seed,
        plain: evaluation(plain),
        judged: evaluation(judged),
    };
    let effect = Effect {
        pairs: vec![
            pair(
                0,
                &[("a", 2, 8), ("b", 4, 8), ("c", 1, 8)],
                &[("a", 6, 8), ("b", 4, 8), ("c", 0, 0)],
            ),
            pair(1, &[("a", 2, 8), ("b", 4, 8)], &[("a", 4, 8), ("b", 0, 8)]),
        ],
        votes: Votes { right: 3, all: 4 },
    };
    let rows = effect.rows(&tasks());
    // Task a: 50 and 25 points, task b: 0 and -50. Both are of one function, so there is nothing to draw from.
    let values: Vec<Option<f64>> = rows.iter().map(|row| row.value).collect();
    let expected = [6.25, 6.25, 6.25, 25.0, -12.5, 75.0];
    assert_eq!(values, expected.map(Some));
    assert!(rows[3].figure.contains("seed 0") && rows.iter().all(|row| row.bar.is_none()));
    assert_eq!(Effect::default().rows(&tasks())[0].value, None);
}

#[test]
fn votes_are_compared_with_what_the_recorded_commands_did() {
    let repair = Repair::of(&json!({"lines": [1, 9], "repair": ["a", "b"]})).unwrap();
    // The look and the first edit are good; the second edit meets an edited file.
    let turns = [look_turn(), edit_turn(1, "1 failed"), edit_turn(2, "1 failed")];
    let mut votes = Votes::default();
    for (turn, said) in [(0, Some(1)), (1, Some(-1)), (2, Some(-1)), (2, None), (7, Some(1))] {
        let judged = JudgedTurn {
            schema: SCHEMA,
            writer: Writer::driver(1),
            episode: "a__g0__i0".into(),
            turn,
            prompt_sha256: String::new(),
            votes: vec![Vote {
                vote: said,
                ..Vote::default()
            }],
            score: None,
            at: 0,
        };
        votes.take(&repair, &turns, &judged);
    }
    assert_eq!(votes, Votes { right: 2, all: 3 });
}
