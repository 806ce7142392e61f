use super::*;
use crate::chat::{ChatPrompt, ObservedMessage};
use crate::fixture;
use crate::request::{Branch, RequestRecord};
use crate::turn::{EpisodeEnd, Message, TurnAction};

fn said(role: &str, content: &str) -> Message {
    Message {
        role: role.into(),
        content: content.into(),
        tokens: 0,
        note: None,
    }
}

fn prompt() -> ChatPrompt {
    ChatPrompt {
        thinking: true,
        ..ChatPrompt::default()
    }
}

/// An answer of words in a built-in loop.
fn turn(number: u32, row: u32, prompt: Option<ChatPrompt>) -> TurnRecord {
    TurnRecord {
        row,
        text: format!("answer {number}"),
        action: TurnAction::format_error(0),
        chat: Some(ChatTurn {
            prompt,
            ..ChatTurn::default()
        }),
        ..fixture::turn(number, "", &format!("result {number}"))
    }
}

/// A command-line agent's turn: it has no observation, and `opening` before it.
fn asked(number: u32, row: u32, prompt: Option<ChatPrompt>, opening: &[Message]) -> TurnRecord {
    let request = RequestRecord {
        api: "ChatCompletions".into(),
        key: String::new(),
        tools: String::new(),
        messages: String::new(),
        answered: String::new(),
        answered_without_reasoning: None,
        said: None,
        branch: prompt.as_ref().map(|_| Branch::Conversation),
        injected: 0,
        overruled: Vec::new(),
    };
    TurnRecord {
        request: Some(request),
        opening: opening.to_vec(),
        observation_length: 0,
        observation_text: String::new(),
        ..turn(number, row, prompt)
    }
}

fn rows(turns: &[TurnRecord]) -> MessageRows {
    message_rows(&fixture::episode("a", 0, Outcome::Unresolved).meta, turns)
}

/// A line for each message: role, text, and `*` for an answer that is learnt.
fn lines(row: &Value) -> Vec<String> {
    let messages = row["messages"].as_array().unwrap().iter();
    let lines = messages.map(|message| {
        let learnt = message["role"] == "assistant" && message.get("weight").is_none();
        let mark = if learnt { "*" } else { "" };
        format!(
            "{}{mark}: {}",
            message["role"].as_str().unwrap(),
            message["content"].as_str().unwrap()
        )
    });
    lines.collect()
}

#[test]
fn a_loop_is_one_conversation_up_to_its_last_answer() {
    let mut turns = [turn(0, 0, Some(prompt())), turn(1, 0, None)];
    turns[0].opening = vec![said("system", "Mend."), said("user", "It breaks.")];
    turns[0].text = "<think>\nhm\n</think>\n\nanswer 0".into();
    turns[1].end = Some(EpisodeEnd::TurnLimit);
    let found = rows(&turns);
    assert_eq!((found.rows.len(), found.left_out), (1, 0));
    let row = &found.rows[0];
    let expected = [
        "system: Mend.",
        "user: It breaks.",
        "assistant*: answer 0",
        "user: result 0",
        "assistant*: answer 1",
    ];
    assert_eq!(lines(row), expected);
    assert_eq!(row["messages"][2]["reasoning_content"], "hm");
    assert_eq!(
        (&row["resolved"], &row["enable_thinking"]),
        (&json!(false), &json!(true))
    );
    assert_eq!(row.get("tools"), None);
}

#[test]
fn calls_and_the_results_of_several_of_them_are_messages_of_their_own() {
    let calls = ["c0", "c1"].map(|id| CalledTool {
        id: id.into(),
        name: "view".into(),
        arguments: "{\"path\": 1.0}".into(),
    });
    let result = |id: &str, bytes| ObservedMessage {
        role: "tool".into(),
        tool_call_id: Some(id.into()),
        bytes,
    };
    let mut turns = [turn(0, 0, Some(prompt())), turn(1, 0, None)];
    turns[0].opening = vec![said("user", "It breaks.")];
    turns[0].text = "Look.\n<tool_call>…</tool_call>".into();
    turns[0].action = TurnAction::calls(&calls);
    turns[0].observation_text = "ü\n\nb\n\n\n\n".into();
    let tools = "[{\"type\":\"function\",\"function\":{\"name\":\"view\"}}]";
    turns[0].chat = Some(ChatTurn {
        prompt: Some(ChatPrompt {
            tools: tools.into(),
            ..prompt()
        }),
        content: Some("Look.".into()),
        observation: vec![result("c0", 5), result("c1", 2)],
        ..ChatTurn::default()
    });
    let found = rows(&turns);
    let row = &found.rows[0];
    let expected = [
        "user: It breaks.",
        "assistant*: Look.",
        "tool: ü\n\nb",
        "tool: \n\n",
        "assistant*: answer 1",
    ];
    assert_eq!(lines(row), expected);
    assert_eq!(row["tools"], tools, "as text, in the author's order");
    let called = &row["messages"][1]["tool_calls"][1];
    assert_eq!(
        (&called["id"], &called["function"]["name"]),
        (&json!("c1"), &json!("view"))
    );
    assert_eq!(called["function"]["arguments"], "{\"path\": 1.0}");
    assert_eq!(row["messages"][3]["tool_call_id"], "c1");
    // Shorter than both results together: the record is damaged.
    turns[0].observation_text.truncate(5);
    assert_eq!(rows(&turns).left_out, 1);
}

#[test]
fn an_answer_is_learnt_in_one_row_and_history_in_every_other() {
    let user = |text: &str| vec![said("user", text)];
    let continued = |after| ChatPrompt {
        after: Some(after),
        ..prompt()
    };
    let turns = [
        asked(0, 0, Some(prompt()), &user("Begin.")),
        asked(1, 0, None, &user("Go on.")),
        // A side conversation.
        asked(2, 1, Some(prompt()), &user("Name it.")),
        // Another continuation of the first answer.
        asked(
            3,
            2,
            Some(continued(0)),
            &[said("assistant", "changed"), said("user", "Again.")],
        ),
    ];
    let found = rows(&turns);
    let of_rows: Vec<Vec<String>> = found.rows.iter().map(lines).collect();
    assert_eq!(
        of_rows,
        [
            vec![
                "user: Begin.",
                "assistant*: answer 0",
                "user: Go on.",
                "assistant*: answer 1"
            ],
            vec!["user: Name it.", "assistant*: answer 2"],
            vec![
                "user: Begin.",
                "assistant: answer 0",
                "assistant: changed",
                "user: Again.",
                "assistant*: answer 3",
            ],
        ]
    );
}

#[test]
fn a_trimmed_history_has_its_marker_in_place_of_the_omitted_turns() {
    let omitted = Some(Omitted { from: 1, to: 2 });
    let mut turns = [
        turn(0, 0, Some(prompt())),
        turn(1, 0, None),
        turn(2, 0, None),
        turn(3, 1, Some(prompt())),
        turn(4, 1, None),
    ];
    turns[0].opening = vec![said("user", "It breaks.")];
    turns[3].opening = vec![said("user", "1 left out")];
    turns[3].omitted = omitted;
    turns[4].omitted = omitted;
    let found = rows(&turns);
    assert_eq!(
        lines(&found.rows[1]),
        [
            "user: It breaks.",
            "assistant: answer 0",
            "user: result 0",
            "user: 1 left out",
            "assistant: answer 2",
            "user: result 2",
            "assistant*: answer 3",
            "user: result 3",
            "assistant*: answer 4",
        ]
    );
}

#[test]
fn what_messages_cannot_show_ends_a_row_or_leaves_it_out() {
    let opening = vec![said("user", "It breaks.")];
    let with = |change: &dyn Fn(&mut [TurnRecord; 2])| {
        let mut turns = [turn(0, 0, Some(prompt())), turn(1, 0, None)];
        turns[0].opening = opening.clone();
        change(&mut turns);
        let found = rows(&turns);
        let answers = found
            .rows
            .iter()
            .flat_map(lines)
            .filter(|line| line.starts_with("assistant"));
        (answers.count(), found.left_out)
    };
    assert_eq!(with(&|_| {}), (2, 0));
    assert_eq!(with(&|turns| turns[1].finish = "length".into()), (1, 0));
    assert_eq!(
        with(&|turns| turns[1].action = TurnAction::malformed_call("no name")),
        (1, 0)
    );
    assert_eq!(with(&|turns| turns[0].finish = "length".into()), (0, 1));
    assert_eq!(with(&|turns| turns[0].chat = None), (0, 1), "an earlier driver");
    let late = |turns: &mut [TurnRecord; 2]| turns[0].opening.push(said("system", "Mind."));
    assert_eq!(with(&late), (2, 0));
    let forged = |turns: &mut [TurnRecord; 2]| {
        let chat = turns[0].chat.as_mut().unwrap();
        chat.prompt.as_mut().unwrap().after = Some(1);
    };
    assert_eq!(with(&forged), (0, 1));
}
