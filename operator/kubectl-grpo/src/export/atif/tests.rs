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

fn call(id: &str, arguments: &str) -> CalledTool {
    CalledTool {
        id: id.into(),
        name: "read".into(),
        arguments: arguments.into(),
    }
}

#[test]
fn a_command_is_a_call_whose_result_is_what_the_policy_read() {
    let meta = fixture::episode("a-1", 3, Outcome::Resolved).meta;
    let turn = TurnRecord {
        opening: vec![message("system", "You fix bugs."), message("user", "It is off by one.")],
        ..fixture::turn(0, "ls", "lib")
    };
    let trajectory = trajectory(&meta, &[turn], "diff");
    assert_eq!(trajectory["schema_version"], "ATIF-v1.4");
    let steps = trajectory["steps"].as_array().unwrap();
    let shape: Vec<(u64, &str, &str)> = steps
        .iter()
        .map(|step| {
            let text = |name: &str| step[name].as_str().unwrap();
            (step["step_id"].as_u64().unwrap(), text("source"), text("message"))
        })
        .collect();
    assert_eq!(
        shape,
        [
            (1, "system", "You fix bugs."),
            (2, "user", "It is off by one."),
            (3, "agent", "```bash\nls\n```")
        ]
    );
    let answer = &steps[2];
    assert_eq!(
        answer["tool_calls"],
        json!([{ "tool_call_id": "call_0_0", "function_name": "bash", "arguments": { "command": "ls" } }])
    );
    assert_eq!(
        answer["observation"],
        json!({ "results": [{ "content": "lib", "source_call_id": "call_0_0" }] })
    );
    assert_eq!(answer["metrics"]["completion_token_ids"], json!([10, 2]));
    assert_eq!(answer["metrics"]["logprobs"].as_array().unwrap().len(), 2);
    assert_eq!(answer["timestamp"], "1970-01-01T00:00:00Z");
    assert_eq!(
        trajectory["final_metrics"],
        json!({ "total_prompt_tokens": 3, "total_completion_tokens": 2, "total_steps": 3 })
    );
    assert_eq!(trajectory["extra"]["resolved"], true);
}

#[test]
fn results_of_tools_that_come_with_the_next_request_belong_to_the_calls_before() {
    let meta = fixture::episode("a-1", 0, Outcome::Unresolved).meta;
    let calls = [call("c1", "{\"path\": \"a\"}"), call("c2", "[1")];
    let silent = |number| TurnRecord {
        observation: Vec::new(),
        observation_length: 0,
        observation_text: String::new(),
        exec: None,
        ..fixture::turn(number, "", "")
    };
    let first = TurnRecord {
        action: TurnAction::calls(&calls),
        ..silent(0)
    };
    let second = TurnRecord {
        opening: vec![
            message("tool", "one"),
            message("tool", "two"),
            message("user", "Go on."),
        ],
        action: TurnAction::answer(),
        ..silent(1)
    };
    let trajectory = trajectory(&meta, &[first, second], "");
    let steps = trajectory["steps"].as_array().unwrap();
    assert_eq!(steps.len(), 3);
    assert_eq!(
        steps[0]["observation"]["results"],
        json!([
            { "content": "one", "source_call_id": "c1" },
            { "content": "two", "source_call_id": "c2" },
        ])
    );
    assert_eq!(steps[0]["tool_calls"][0]["arguments"], json!({ "path": "a" }));
    assert_eq!(steps[0]["tool_calls"][1]["arguments"], json!({ "text": "[1" }));
    assert_eq!(
        (&steps[1]["source"], &steps[2]["source"]),
        (&json!("user"), &json!("agent"))
    );
    assert!(steps[2].get("tool_calls").is_none());
}
