use super::*;

fn ran(exit: i32) -> ExecSummary {
    ExecSummary {
        exec: "e".into(),
        exit_code: Some(exit),
        signal: None,
        timed_out: false,
        killed: None,
        output_bytes: 0,
        omitted_bytes: 0,
        duration_millis: 1,
    }
}

fn agent() -> BashAgent {
    BashAgent::new(&Prompts::default(), Value::Null).unwrap()
}

/// Defect 10.
#[test]
fn exactly_one_block_is_an_action_and_two_are_a_format_error() {
    let one = "Look.\n```bash\ngrep -n '' $F\nls\n```";
    assert_eq!(action_of(one), TurnAction::command("grep -n '' $F\nls"));
    let two = format!("{one}\nand\n{one}");
    assert_eq!(action_of(&two), TurnAction::format_error(2));
    assert_eq!(action_of("I am done."), TurnAction::format_error(0));
    assert_eq!(action_of("```bash\nls"), TurnAction::format_error(0));
    assert_eq!(action_of("```bashful\nls\n```"), TurnAction::format_error(0));
}

#[test]
fn a_block_of_several_lines_with_fences_inside_quotes_ends_at_the_first_closing_fence() {
    let answer = "```bash\ncat <<'E'\n``\nE\n```\nrest";
    assert_eq!(action_of(answer), TurnAction::command("cat <<'E'\n``\nE"));
}

#[test]
fn a_block_in_the_reasoning_is_no_action() {
    let said = "```bash\nls\n```";
    let draft = "Perhaps:\n```bash\nrm -r a\n```\nNo.";
    for answer in [
        format!("<think>\n{draft}\n</think>\n\n{said}"),
        format!("{draft}\n</think>\n\n{said}"),
        format!("<think>\n```bash\nrm -r a\n</think>\n\n{said}"),
        format!("<think>\n\n</think>\n\n{said}"),
        // The prompt has opened the reasoning.
        format!("```bash\nrm -r a\n</think>\n\n{said}"),
        format!("I need one ```bash block.\n{draft}\n</think>\n\n{said}"),
    ] {
        assert_eq!(action_of(&answer), TurnAction::command("ls"), "{answer}");
    }
    for answer in [
        format!("<think>\n{draft}\n</think>\nDone."),
        format!("<think>\n{draft}"),
    ] {
        assert_eq!(action_of(&answer), TurnAction::format_error(0), "{answer}");
    }
    let search = "Look.\n```bash\ngrep -r '</think>' .\n```";
    assert_eq!(action_of(search), TurnAction::command("grep -r '</think>' ."));
}

/// Defect 11.
#[test]
fn a_command_that_merely_mentions_the_sentinel_does_not_submit() {
    let agent = agent();
    assert!(!agent.is_submission("grep found: SUBMIT\n", &ran(0)));
    assert!(!agent.is_submission("x\nSUBMIT\n", &ran(0)));
    assert!(!agent.is_submission("SUBMIT\n", &ran(1)));
    assert!(agent.is_submission("\nSUBMIT\nanything", &ran(0)));
}

#[test]
fn the_demo_prompts_say_what_the_policy_was_warmed_up_with() {
    let task = Map::from_iter([("problem_statement".to_owned(), Value::String("Bug in f.".into()))]);
    let opening = agent().opening(&task, "").unwrap();
    assert_eq!(opening[0].content, "Fix the bug. One bash block per turn.");
    assert_eq!(opening[1].content, "Bug in f.");
    assert_eq!(agent().observation("t", "1 failed\n", &ran(0), 3).unwrap(), "1 failed");
}

#[test]
fn a_template_that_only_a_killed_command_would_break_is_found_before_the_run() {
    let prompts = Prompts {
        observation: "{{ exitCode + 1 }}".into(),
        ..Prompts::default()
    };
    assert!(BashAgent::new(&prompts, Value::Null).unwrap().rehearse().is_err());
    assert!(agent().rehearse().is_ok());
}

#[test]
fn a_prompt_that_names_something_unknown_is_an_error_not_an_empty_text() {
    let prompts = Prompts {
        task: "{{ task.patch }}".into(),
        ..Prompts::default()
    };
    assert!(
        BashAgent::new(&prompts, Value::Null)
            .unwrap()
            .opening(&Map::new(), "")
            .is_err()
    );
}

#[test]
fn a_name_that_only_one_exit_code_reaches_is_found_before_the_run() {
    let prompts = Prompts {
        observation: "{{ output }}{% if exitCode == 42 %}{{ unknown }}{% endif %}".into(),
        ..Prompts::default()
    };
    let error = BashAgent::new(&prompts, Value::Null).unwrap().rehearse().unwrap_err();
    assert!(
        error
            .to_string()
            .contains("uses unknown; it may use command, output, rawOutput"),
        "{error}"
    );
}

#[test]
fn templates_that_only_cut_timed_out_or_last_observations_break_are_found_before_the_run() {
    for observation in [
        "{% if omittedBytes %}{{ killed + 1 }}{% endif %}",
        "{% if not omittedBytes %}{{ output + 1 }}{% endif %}",
        "{% if timedOut %}{{ exitCode + 1 }}{% endif %}",
        "{% if turnsLeft == 0 %}{{ output.x.y }}{% endif %}",
    ] {
        let prompts = Prompts {
            observation: observation.into(),
            ..Prompts::default()
        };
        assert!(
            BashAgent::new(&prompts, Value::Null).unwrap().rehearse().is_err(),
            "{observation}"
        );
    }
    let prompts = Prompts {
        format_error: "{% if truncated %}{{ blocks.x.y }}{% endif %}".into(),
        ..Prompts::default()
    };
    assert!(BashAgent::new(&prompts, Value::Null).unwrap().rehearse().is_err());
}

#[test]
fn what_templates_may_use_are_their_names_globals_and_what_they_set() {
    let prompts = Prompts {
        observation: "{% set n = limits.turns %}{{ n }}{% for i in range(2) %}{{ loop.index }}{{ i }}{% endfor %}{{ submitSentinel }}{{ output }}".into(),
        ..Prompts::default()
    };
    let agent = BashAgent::new(&prompts, serde_json::json!({"turns": 3})).unwrap();
    agent.rehearse().unwrap();
}
