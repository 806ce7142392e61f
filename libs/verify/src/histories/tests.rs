use super::*;
use grpo_records::Omitted;
use grpo_records::fixture::turn;

/// Three turns of one row, and a fourth whose history lacks the first.
fn episode() -> Vec<TurnRecord> {
    let ids = |number: u32, of: u32| vec![10 * number + of, 10 * number + of + 1];
    let mut turns: Vec<TurnRecord> = (0..4)
        .map(|number| TurnRecord {
            text: "answer".into(),
            prompt: if number == 0 { vec![1, 2, 9] } else { Vec::new() },
            sampled: ids(number + 10, 1),
            observation: [ids(number + 10, 5), vec![9]].concat(),
            ..turn(number, "ls", "a")
        })
        .collect();
    turns[3].row = 1;
    turns[3].omitted = Some(Omitted { from: 0, to: 1 });
    turns[3].prompt = vec![1, 2, 77, 9, 111, 112, 115, 116, 9, 121, 122, 125, 126, 9];
    turns
}

fn disagreements(turns: &[TurnRecord]) -> usize {
    let mut histories = Check::new("");
    check(turns, "a", &mut histories);
    assert_eq!(histories.looked_at, 1);
    histories.disagreements.len()
}

#[test]
fn a_history_of_whole_turns_agrees() {
    assert_eq!(disagreements(&episode()), 0);
    // The reasoning of an answer may be missing.
    let mut stripped = episode();
    stripped[1].text = "hm</think>answer".into();
    stripped[3].prompt.remove(4);
    assert_eq!(disagreements(&stripped), 0);
}

#[test]
fn a_history_that_its_turns_were_not_is_found() {
    let changes: [fn(&mut Vec<TurnRecord>); 6] = [
        // A changed opening, answer, observation.
        |turns| turns[3].prompt[0] = 7,
        |turns| turns[3].prompt[4] = 7,
        |turns| turns[3].prompt[6] = 7,
        // A missing turn, although it was kept; also the newest one.
        |turns| drop(turns[3].prompt.drain(4..9)),
        |turns| turns[3].omitted = Some(Omitted { from: 1, to: 3 }),
        // Turns in another order.
        |turns| {
            let prompt = &mut turns[3].prompt;
            let newest = prompt.split_off(9);
            let before = prompt.split_off(4);
            prompt.extend([newest, before].concat());
        },
    ];
    for (at, change) in changes.into_iter().enumerate() {
        let mut turns = episode();
        change(&mut turns);
        assert_eq!(disagreements(&turns), 1, "change {at}");
    }
}
