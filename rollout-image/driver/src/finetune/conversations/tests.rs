use super::*;
use serde_json::json;
use std::path::Path;
use std::time::Duration;

fn template() -> ChatTemplate {
    ChatTemplate::load(&model()).unwrap()
}

fn model() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../demo/model")
}

fn settings() -> FinetuneSettings {
    FinetuneSettings {
        namespace: String::new(),
        name: String::new(),
        uid: String::new(),
        resume: Default::default(),
        seed: 0,
        store_path: String::new(),
        model: model(),
        dataset: Default::default(),
        resolved_only: true,
        epochs: 1,
        batch: 1,
        max_tokens: 1024,
        overlong: Overlong::Refuse,
        thinking: true,
        held_out: None,
        checkpoint: crate::config::Checkpoint { every: 1, keep: 1 },
        trainer: String::new(),
        patience: Duration::ZERO,
    }
}

fn read(rows: &[Value], settings: &FinetuneSettings) -> Result<Conversations, TerminalFault> {
    let lines: Vec<String> = rows.iter().map(Value::to_string).collect();
    read_lines(&lines, &template(), settings)
}

fn read_lines(
    lines: &[String],
    template: &ChatTemplate,
    settings: &FinetuneSettings,
) -> Result<Conversations, TerminalFault> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rows.jsonl");
    std::fs::write(&file, lines.join("\n")).unwrap();
    super::read("finetune.dataset", &[file], template, settings)
}

/// A chat template with tools, calls and reasoning, for the demo's tokenizer.
fn template_with_tools() -> ChatTemplate {
    let folder = tempfile::tempdir().unwrap();
    for file in ["tokenizer.json", "config.json", "generation_config.json"] {
        std::fs::copy(model().join(file), folder.path().join(file)).unwrap();
    }
    let config = std::fs::read(model().join("tokenizer_config.json")).unwrap();
    let mut config: Value = serde_json::from_slice(&config).unwrap();
    config["chat_template"] = json!(include_str!("../../../tests/harnesses/chat_template.jinja"));
    std::fs::write(folder.path().join("tokenizer_config.json"), config.to_string()).unwrap();
    ChatTemplate::load(folder.path()).unwrap()
}

/// A row as it stands in a file, with one call.
fn row_with_call(arguments: &str, tools: &str) -> String {
    let call =
        format!(r#"{{"id": "a", "type": "function", "function": {{"name": "edit", "arguments": {arguments}}}}}"#);
    let answer = format!(r#"{{"role": "assistant", "content": null, "tool_calls": [{call}]}}"#);
    let messages = format!(r#"[{{"role": "user", "content": "a", "tool_calls": null}}, {answer}]"#);
    format!(r#"{{"messages": {messages}, "tools": {tools}}}"#)
}

#[test]
fn tools_and_arguments_keep_their_nulls_and_the_order_of_their_keys_as_json_and_as_text() {
    let arguments = r#"{"path": "p", "timeout": null, "at": [1, null], "command": "c"}"#;
    let parameters = r#"{"type": "object", "properties": {"path": {"type": "string", "default": null}}}"#;
    let tools = format!(r#"[{{"type": "function", "function": {{"name": "edit", "parameters": {parameters}}}}}]"#);
    let text = |json: &str| json!(json).to_string();
    let row = row_with_call(arguments, &tools);
    let mut in_text: Value = serde_json::from_str(&row).unwrap();
    in_text["messages"] = json!(&row[r#"{"messages": "#.len()..row.find(r#", "tools""#).unwrap()]);
    in_text["tools"] = json!(tools);
    let lines = [row, row_with_call(&text(arguments), &text(&tools)), in_text.to_string()];
    let template = template_with_tools();
    let read = read_lines(&lines, &template, &settings()).unwrap();
    let (_, first) = &read.rows[0];
    let said = template.text(&first.tokens).unwrap();
    for words in [
        format!(r#""arguments": {arguments}"#),
        format!(r#"{{"type": "function", "function": {{"name": "edit", "parameters": {parameters}}}}}"#),
    ] {
        assert!(said.contains(&words), "{words} in {said}");
    }
    for ((_, row), line) in read.rows.iter().zip(&lines) {
        assert_eq!(row, first, "{line}");
    }
}

#[test]
fn both_names_of_reasoning_are_read() {
    let row = |message: Value| {
        let mut answer = json!({"role": "assistant", "content": "b"});
        answer
            .as_object_mut()
            .unwrap()
            .extend(message.as_object().unwrap().clone());
        json!({"messages": [{"role": "user", "content": "a"}, answer]}).to_string()
    };
    let template = template_with_tools();
    let lines = [
        row(json!({"reasoning_content": "so"})),
        row(json!({"reasoning": "so"})),
        row(json!({"reasoning_content": "so", "reasoning": "so"})),
        row(json!({"reasoning_content": null})),
    ];
    let read = read_lines(&lines, &template, &settings()).unwrap();
    let said: Vec<String> = read
        .rows
        .iter()
        .map(|(_, row)| template.text(&row.tokens).unwrap())
        .collect();
    assert!(said[0].contains("<think>\nso\n</think>"), "{}", said[0]);
    assert_eq!((&said[1], &said[2]), (&said[0], &said[0]));
    assert!(!said[3].contains("<think>"), "{}", said[3]);
}

fn golden() -> Value {
    serde_json::from_slice(&std::fs::read(model().join("golden_conversation.json")).unwrap()).unwrap()
}

#[test]
fn a_conversation_is_the_ids_that_an_episode_with_its_answers_has() {
    let (golden, template) = (golden(), template());
    let read = read(&[json!({"messages": golden["messages"]})], &settings()).unwrap();
    let (_, row) = &read.rows[0];
    let ids: Vec<u32> = serde_json::from_value(golden["token_ids"].clone()).unwrap();
    assert_eq!(row.tokens, ids[..row.tokens.len()]);
    // Only the newline after the last turn is missing.
    assert!(
        ids.len() - row.tokens.len() < 3,
        "{} of {}",
        row.tokens.len(),
        ids.len()
    );
    let answers = golden["messages"].as_array().unwrap().iter();
    let answers: Vec<&str> = answers
        .filter(|message| message["role"] == "assistant")
        .map(|message| message["content"].as_str().unwrap())
        .collect();
    assert_eq!(row.learnt.len(), answers.len());
    for ((from, to), answer) in row.learnt.iter().zip(answers) {
        assert!(
            template.stop_ids().contains(&row.tokens[to - 1]),
            "the end token is learnt"
        );
        assert_eq!(template.text(&row.tokens[*from..*to]).unwrap(), answer);
    }
}

#[test]
fn columns_of_other_rows_and_messages_after_the_last_answer_change_nothing() {
    let plain = json!([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]);
    let mut with_columns = plain.clone();
    for message in with_columns.as_array_mut().unwrap() {
        for column in ["tool_calls", "tool_call_id", "name", "reasoning_content"] {
            message[column] = Value::Null;
        }
    }
    let mut longer = plain.clone();
    longer
        .as_array_mut()
        .unwrap()
        .push(json!({"role": "user", "content": [{"type": "text", "text": "c"}]}));
    let rows = [
        json!({"messages": plain}),
        json!({"messages": with_columns, "tools": null, "enable_thinking": null}),
        json!({"messages": longer}),
    ];
    let read = read(&rows, &settings()).unwrap();
    assert!(
        read.rows.iter().all(|(_, row)| *row == read.rows[0].1),
        "{:?}",
        read.rows
    );
}

#[test]
fn an_answer_of_weight_0_has_its_tokens_and_is_not_learnt() {
    let row = |weights: [Value; 2]| {
        let [first, second] = weights;
        json!({"messages": [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "b", "weight": first},
            {"role": "user", "content": "c"},
            {"role": "assistant", "content": "d", "weight": second},
        ]})
    };
    let cases = [[json!(1), Value::Null], [json!(0), json!(1)], [json!(1.0), json!(0.0)]];
    let read = read(&cases.map(row), &settings()).unwrap();
    let rows: Vec<&Conversation> = read.rows.iter().map(|(_, row)| row).collect();
    let [both, second, first] = rows[..] else {
        panic!("{rows:?}")
    };
    assert_eq!((&second.tokens, &first.tokens), (&both.tokens, &both.tokens));
    assert_eq!(both.learnt.len(), 2);
    assert_eq!(
        (&second.learnt[..], &first.learnt[..]),
        (&both.learnt[1..], &both.learnt[..1])
    );
}

#[test]
fn an_answer_that_verl_does_not_train_is_not_learnt() {
    let row = |name: &str, value: Value| {
        let mut row = json!({"messages": [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "b"},
            {"role": "user", "content": "c"},
            {"role": "assistant", "content": "d"},
        ]});
        row["messages"][1][name] = value;
        row
    };
    let rows = [
        row("weight", json!(0)),
        row("trainable", json!(false)),
        row("trainable", json!(true)),
        row("trainable", Value::Null),
    ];
    let read = read(&rows, &settings()).unwrap();
    let learnt: Vec<usize> = read.rows.iter().map(|(_, row)| row.learnt.len()).collect();
    assert_eq!(learnt, [1, 1, 2, 2]);
    assert_eq!(read.rows[0].1, read.rows[1].1);
}

#[test]
fn several_messages_of_the_system_may_begin_a_conversation() {
    let system = json!({"role": "system", "content": "s"});
    let row =
        json!({"messages": [system, system, {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]});
    assert_eq!(read(&[row], &settings()).unwrap().rows.len(), 1);
}

#[test]
fn tokens_with_a_mask_are_taken_as_they_are() {
    let rows = [json!({"tokens": [5, 6, 7, 8, 9], "mask": [1, 1, 0, 1, 1]})];
    let read = read(&rows, &settings()).unwrap();
    let row = &read.rows[0].1;
    assert_eq!(
        (&row.tokens[..], &row.learnt[..]),
        (&[5, 6, 7, 8, 9][..], &[(1, 2), (3, 5)][..])
    );
}

#[test]
fn rows_that_were_not_resolved_are_left_out_unless_they_are_wanted() {
    let row = |resolved: Value| json!({"tokens": [1, 2], "mask": [0, 1], "resolved": resolved});
    let rows = [
        row(json!(true)),
        row(json!(false)),
        row(Value::Null),
        row(json!(0)),
        row(json!(1)),
    ];
    let taken = |settings: &FinetuneSettings| {
        let read = read(&rows, settings).unwrap();
        (
            read.rows.iter().map(|(at, _)| *at).collect::<Vec<_>>(),
            read.message("it"),
        )
    };
    let said = "it: of 5 rows 2 were not resolved and are left out".to_owned();
    assert_eq!(taken(&settings()), (vec![0, 2, 4], Some(said)));
    let all = FinetuneSettings {
        resolved_only: false,
        ..settings()
    };
    assert_eq!(taken(&all), (vec![0, 1, 2, 3, 4], None));
}

#[test]
fn a_row_that_is_too_long_is_refused_cut_or_left_out() {
    let rows = [
        json!({"tokens": [1, 2, 3, 4, 5, 6], "mask": [0, 1, 0, 1, 1, 1]}),
        json!({"tokens": [1, 2, 3, 4, 5, 6], "mask": [0, 0, 0, 0, 0, 1]}),
        json!({"tokens": [1, 2], "mask": [0, 1]}),
    ];
    let with = |overlong| FinetuneSettings {
        max_tokens: 4,
        overlong,
        ..settings()
    };
    let refused = read(&rows, &with(Overlong::Refuse)).unwrap_err();
    assert!(
        refused.message.contains("rows.jsonl line 1") && refused.message.contains("6 tokens"),
        "{refused}"
    );
    let left_out = read(&rows, &with(Overlong::LeaveOut)).unwrap();
    assert_eq!((left_out.rows.len(), left_out.overlong), (1, 2));
    let cut = read(&rows, &with(Overlong::Truncate)).unwrap();
    let (position, row) = &cut.rows[0];
    assert_eq!(
        (*position, &row.learnt[..], row.truncated),
        (0, &[(1, 2), (3, 4)][..], true)
    );
    assert_eq!(
        (cut.rows.len(), cut.truncated, cut.overlong),
        (2, 1, 1),
        "one has nothing to learn before the cut"
    );
}

#[test]
fn what_cannot_be_learnt_is_refused_with_line_and_field() {
    let user = json!({"role": "user", "content": "a"});
    let answer = json!({"role": "assistant", "content": "b"});
    for (row, what) in [
        (json!({}), "field messages: give either messages, or tokens with a mask"),
        (json!({"messages": [user], "tokens": [1]}), "give either"),
        (json!({"messages": "a"}), "is no list"),
        (json!({"messages": [user]}), "nothing to learn"),
        (
            json!({"messages": [user, {"role": "assistant", "content": "b", "weight": 0}]}),
            "nothing to learn",
        ),
        (
            json!({"messages": [user, {"role": "assistant", "content": "b", "weight": 0.5}]}),
            "message 1 has the weight 0.5",
        ),
        (json!({"messages": [answer]}), "nothing asks for it"),
        (
            json!({"messages": [{"role": "critic", "content": ""}]}),
            "message 0 has the role \"critic\"",
        ),
        (
            json!({"messages": [user, {"role": "assistant", "content": 7}]}),
            "message 1 has a content that is no text",
        ),
        (
            json!({"messages": [user, {"role": "assistant", "tool_calls": [{}]}]}),
            "without function.name",
        ),
        (
            json!({"messages": [user, {"role": "assistant", "tool_calls": {"name": "f"}}]}),
            "message 1 has tool_calls that are no list",
        ),
        (
            json!({"messages": [user, {"role": "assistant", "content": "b", "function_call": {"name": "f"}}]}),
            "message 1 has a function_call",
        ),
        (
            json!({"messages": [user, {"role": "assistant", "content": "b", "trainable": "no"}]}),
            "message 1 has the trainable \"no\"",
        ),
        (json!({"messages": [user, answer], "resolved": "no"}), "field resolved"),
        (
            json!({"messages": [user, answer], "enable_thinking": "no"}),
            "field enable_thinking",
        ),
        (json!({"tokens": [1, 2]}), "field mask: is missing"),
        (json!({"tokens": [1, 2], "mask": [1]}), "each of the 2 tokens"),
        (json!({"tokens": [1, -2], "mask": [0, 1]}), "field tokens"),
        (json!({"tokens": [1, 2], "mask": [1, 0]}), "field mask: no token"),
    ] {
        let fault = read(std::slice::from_ref(&row), &settings()).unwrap_err();
        assert!(
            fault.message.contains("line 1") && fault.message.contains(what),
            "{row}: {fault}"
        );
    }
    assert_eq!(read(&[], &settings()).unwrap_err().reason, "DatasetEmpty");
}
