use super::*;
use crate::RequestRecord;
use crate::fixture;
use Branch::{ChangedAnswer, ChangedHistory, Conversation, First, SecondContinuation};

/// For each turn its row, and why it opened that row, if it did.
fn turns(rows: &[(u32, Option<Branch>)]) -> Vec<TurnRecord> {
    let turn = |(number, (row, branch)): (u32, &(u32, Option<Branch>))| TurnRecord {
        row: *row,
        request: Some(RequestRecord {
            api: "ChatCompletions".into(),
            key: String::new(),
            tools: String::new(),
            messages: String::new(),
            answered: String::new(),
            answered_without_reasoning: None,
            said: None,
            branch: *branch,
            injected: 0,
            overruled: Vec::new(),
        }),
        ..fixture::turn(number, "ls", "")
    };
    (0..).zip(rows).map(turn).collect()
}

type Case<'a> = (&'a str, &'a [(u32, Option<Branch>)], &'a [u32]);

#[test]
fn a_conversation_is_a_side_one_where_another_waited_for_it() {
    let cases: &[Case] = &[
        ("one row", &[(0, Some(First)), (0, None)], &[]),
        (
            "a sub-agent of two turns",
            &[(0, Some(First)), (1, Some(Conversation)), (1, None), (0, None)],
            &[1],
        ),
        (
            "two sub-agents at one time, one of which changed an answer",
            &[
                (0, Some(First)),
                (1, Some(Conversation)),
                (2, Some(Conversation)),
                (1, None),
                (3, Some(ChangedAnswer)),
                (0, None),
            ],
            &[1, 2, 3],
        ),
        (
            "a compaction: the conversation before it is never continued",
            &[
                (0, Some(First)),
                (1, Some(Conversation)),
                (2, Some(ChangedHistory)),
                (2, None),
            ],
            &[],
        ),
        (
            "a fork that is left again",
            &[(0, Some(First)), (1, Some(SecondContinuation)), (0, None)],
            &[],
        ),
        (
            "a title before the work",
            &[(0, Some(First)), (1, Some(Conversation)), (1, None)],
            &[],
        ),
        (
            "a title while the work waits, and the work's own compaction after it",
            &[
                (0, Some(First)),
                (1, Some(Conversation)),
                (0, None),
                (2, Some(ChangedHistory)),
            ],
            &[1],
        ),
    ];
    for (name, rows, side) in cases {
        assert_eq!(side_rows(&turns(rows)), side.iter().copied().collect(), "{name}");
    }
}

#[test]
fn turns_of_agents_without_requests_have_no_side_conversation() {
    let all: Vec<TurnRecord> = (0..3).map(|number| fixture::turn(number, "ls", "")).collect();
    assert!(side_rows(&all).is_empty());
}
