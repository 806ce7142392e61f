use super::*;
use grpo_records::{Message, TurnAction, fixture};

fn told() -> (EpisodeMeta, Vec<TurnRecord>) {
    let message = |role: &str, content: &str| Message {
        role: role.into(),
        content: content.into(),
        tokens: 1,
        note: None,
    };
    let first = TurnRecord {
        opening: vec![message("system", "You fix bugs."), message("user", "It is off by one.")],
        ..fixture::turn(0, "ls", "lib")
    };
    let refused = TurnRecord {
        text: "No block.".into(),
        action: TurnAction::format_error(0),
        exec: None,
        ..fixture::turn(1, "", "Give one block.")
    };
    let mut late = fixture::turn(2, "sleep 99", "too slow");
    late.at = 100;
    if let Some(exec) = &mut late.exec {
        exec.timed_out = true;
        exec.duration_millis = 1500;
    }
    let meta = fixture::episode("psf__requests-1", 3, Outcome::Resolved).meta;
    (meta, vec![first, refused, late])
}

#[test]
fn messages_are_what_the_policy_read_and_wrote_and_end_with_the_patch() {
    let (meta, turns) = told();
    let trajectory = trajectory(&meta, &turns, "diff");
    let messages = trajectory["messages"].as_array().unwrap();
    let shape: Vec<(&str, &str)> = messages
        .iter()
        .map(|message| (message["role"].as_str().unwrap(), message["content"].as_str().unwrap()))
        .collect();
    assert_eq!(
        shape,
        [
            ("system", "You fix bugs."),
            ("user", "It is off by one."),
            ("assistant", "```bash\nls\n```"),
            ("user", "lib"),
            ("assistant", "No block."),
            ("user", "Give one block."),
            ("assistant", "```bash\nsleep 99\n```"),
            ("user", "too slow"),
            ("exit", "diff"),
        ]
    );
    assert_eq!(messages[2]["extra"]["actions"], json!([{ "command": "ls" }]));
    assert_eq!(messages[3]["extra"]["returncode"], 0);
    assert_eq!(messages[4]["extra"]["actions"], json!([]));
    assert_eq!(messages[5]["extra"]["interrupt_type"], "FormatError");
    assert_eq!(messages[7]["extra"]["returncode"], -1);
    assert_eq!(messages[7]["extra"]["exception_info"], "the command's time was up");
    assert_eq!(
        messages[8]["extra"],
        json!({ "exit_status": "Submitted", "submission": "diff" })
    );
    assert_eq!(trajectory["trajectory_format"], "mini-swe-agent-1.1");
    let info = &trajectory["info"];
    assert_eq!(info["model_stats"]["api_calls"], 3);
    assert_eq!(info["reward"], 1.0);
    assert_eq!(info["index"], 3);
    assert_eq!(info["eval_result"]["resolved"], true);
}

#[test]
fn a_step_without_a_command_has_no_entry_and_moves_no_other() {
    let (meta, turns) = told();
    let trajectory = trajectory(&meta, &turns, "");
    let steps = trajectory["step_debug"].as_array().unwrap();
    let shape: Vec<(u64, &str, bool)> = steps
        .iter()
        .map(|step| {
            let index = step["step_idx"].as_u64().unwrap();
            (index, step["action"].as_str().unwrap(), step["ok"].as_bool().unwrap())
        })
        .collect();
    assert_eq!(shape, [(0, "ls", true), (2, "sleep 99", false)]);
    assert_eq!(steps[1]["start_ts"], 98.5);
}

#[test]
fn a_long_output_is_shown_from_both_ends() {
    let turn = fixture::turn(0, "cat", &format!("{}{}", "é".repeat(2500), "x".repeat(100)));
    let step = step(&turn).unwrap();
    assert_eq!(step["output_len"], 2600);
    assert_eq!(step["output_head"], "é".repeat(2000));
    assert_eq!(step["output_tail"], format!("{}{}", "é".repeat(1900), "x".repeat(100)));
}

#[test]
fn ends_have_mini_swe_agents_words_where_it_has_one() {
    assert_eq!(exit_status(EpisodeEnd::ContextFull), "LimitsExceeded");
    assert_eq!(exit_status(EpisodeEnd::EpisodeTimeout), "TimeExceeded");
    assert_eq!(exit_status(EpisodeEnd::SandboxExhausted), "SandboxExhausted");
}
