use super::*;
use grpo_records::{CalledTool, Message, TurnAction, fixture};

fn message(role: &str, content: &str) -> Message {
    Message {
        role: role.into(),
        content: content.into(),
        tokens: 1,
        note: None,
    }
}

fn roles(sample: &Value) -> Vec<&str> {
    let messages = sample["messages"].as_array().unwrap().iter();
    messages.map(|message| message["role"].as_str().unwrap()).collect()
}

/// The file with these samples, each with the same turn.
fn written(metas: &[EpisodeMeta], turn: &TurnRecord) -> String {
    let mut log = Log::new("iteration 1", metas);
    let mut text = log.head().to_owned();
    for meta in metas {
        text += &log.sample(meta, std::slice::from_ref(turn), "diff");
    }
    text + &log.tail()
}

#[test]
fn a_log_in_parts_is_the_same_as_one_that_is_printed_whole() {
    // With the field's name and line breaks in texts.
    let turn = fixture::turn(0, "echo '\"samples\": []'", "one\r\ntwo\u{2028}");
    let metas: Vec<EpisodeMeta> = (0..3)
        .map(|number| fixture::episode("\"samples\": []", number, Outcome::Resolved).meta)
        .collect();
    for count in 0..=3 {
        let text = written(&metas[..count], &turn);
        let whole: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(whole["samples"].as_array().unwrap().len(), count);
        assert_eq!(text, format!("{whole:#}\n"));
    }
}

#[test]
fn samples_of_a_task_are_its_epochs_and_the_mean_is_the_resolved_rate() {
    let turn = TurnRecord {
        opening: vec![message("system", "You fix bugs."), message("user", "It is off by one.")],
        ..fixture::turn(0, "ls", "lib")
    };
    // A task in two groups, as where an iteration begins the next pass over the tasks.
    let metas = [(0, Outcome::Resolved), (5, Outcome::Unresolved)].map(|(group, outcome)| {
        let mut meta = fixture::episode("a-1", 0, outcome).meta;
        meta.key.group = group;
        meta
    });
    let log: Value = serde_json::from_str(&written(&metas, &turn)).unwrap();
    assert_eq!(log["eval"]["dataset"]["sample_ids"], json!(["a-1"]));
    assert_eq!(log["eval"]["config"]["epochs"], 2);
    assert_eq!(log["results"]["scores"][0]["metrics"]["mean"]["value"], 0.5);
    let samples = log["samples"].as_array().unwrap();
    let epochs: Vec<(&Value, &Value)> = samples
        .iter()
        .map(|sample| (&sample["epoch"], &sample["scores"]["resolved"]["value"]))
        .collect();
    assert_eq!(epochs, [(&json!(1), &json!(1)), (&json!(2), &json!(0))]);
    assert_eq!(samples[0]["input"], "It is off by one.");
    assert_eq!(samples[0]["scores"]["resolved"]["answer"], "diff");
    assert_eq!(roles(&samples[0]), ["system", "user", "assistant", "tool"]);
    let messages = &samples[0]["messages"];
    assert_eq!(messages[2]["tool_calls"][0]["arguments"], json!({ "command": "ls" }));
    assert_eq!(messages[3]["tool_call_id"], messages[2]["tool_calls"][0]["id"]);
    assert_eq!(messages[3]["content"], "lib");
}

#[test]
fn results_name_their_calls_and_text_without_a_call_is_the_users() {
    let call = |id: &str| CalledTool {
        id: id.into(),
        name: "read".into(),
        arguments: "{\"path\": \"a\"}".into(),
    };
    let silent = |number| TurnRecord {
        observation: Vec::new(),
        observation_length: 0,
        observation_text: String::new(),
        exec: None,
        ..fixture::turn(number, "", "")
    };
    let first = TurnRecord {
        action: TurnAction::calls(&[call("c1"), call("c2")]),
        ..silent(0)
    };
    let second = TurnRecord {
        opening: vec![message("tool", "one"), message("tool", "two"), message("tool", "three")],
        action: TurnAction::answer(),
        ..silent(1)
    };
    let messages = messages(&[first, second], "m");
    let shown: Vec<(&str, Option<&str>)> = messages
        .iter()
        .map(|message| (message["role"].as_str().unwrap(), message["tool_call_id"].as_str()))
        .collect();
    assert_eq!(
        shown,
        [
            ("assistant", None),
            ("tool", Some("c1")),
            ("tool", Some("c2")),
            ("user", None),
            ("assistant", None)
        ]
    );
}
