use super::*;
use serde_json::json;

fn agent(spec: &str) -> ToolsAgent {
    let spec: grpo_crds::agent::ToolsAgent = serde_json::from_str(spec).unwrap();
    ToolsAgent::new(&ToolsSpec::of(&spec), json!({"turns": 80})).unwrap()
}

fn row(repo: &str) -> Map<String, Value> {
    let row = json!({"repo": repo, "problem_statement": "Mend it."});
    row.as_object().unwrap().clone()
}

#[test]
fn rows_of_kodcode_are_opened_with_the_instruction_of_the_original_and_others_with_their_statement() {
    let messages = agent("{}").opening(&row("KodCode"), "\n\nFiles.").unwrap();
    assert!(messages[0].content.ends_with("(must) in the response. \n\nFiles."));
    assert_eq!(
        messages[1].content,
        "The program doesn't behave as intended. Investigate the repository, figure out the root cause, then rewrite \
         the code to fix the issue. You should not rewrite the whole file, you should debug the code to fix the issue. \
         Make sure all tests pass."
    );
    assert_eq!(agent("{}").opening(&row("r"), "").unwrap()[1].content, "Mend it.");
}

#[test]
fn own_templates_replace_those_of_the_set() {
    let own = agent(r#"{"system": "{{ limits.turns }} turns.", "task": "Now: {{ task.problem_statement }}"}"#);
    let messages = own.opening(&row("KodCode"), "").unwrap();
    assert_eq!(messages[0].content, "80 turns.");
    assert_eq!(messages[1].content, "Now: Mend it.");
}

#[test]
fn every_call_of_an_answer_is_one_with_an_id_of_its_own() {
    let answer = "Look.\n<tool_call>\n{\"name\": \"view\", \"arguments\": {\"path\": \"a\"}}\n</tool_call>\n<tool_call>\n\
                  {\"name\": \"eval\", \"arguments\": {}}\n</tool_call>";
    let calls = agent("{}").parse(3, answer).as_calls().unwrap();
    let seen: Vec<_> = calls
        .iter()
        .map(|call| (call.id.as_str(), call.name.as_str()))
        .collect();
    assert_eq!(seen, [("call-3-0", "view"), ("call-3-1", "eval")]);
    assert_eq!(calls[0].arguments, r#"{"path": "a"}"#);
}

#[test]
fn an_answer_without_a_call_or_with_a_malformed_one_is_told_so_by_the_originals_text_and_counted() {
    let agent = agent("{}");
    for answer in [
        "I am done.",
        "<tool_call>{\"name\": \"view\"",
        "<tool_call>{\"name\": \"\", \"arguments\": {}}</tool_call>",
    ] {
        let action = agent.parse(0, answer);
        assert_eq!(action.kind, TurnAction::MALFORMED_CALL, "{answer}");
        assert!(!action.is_action());
        let told = agent.observe(&action, None, 3).unwrap();
        assert_eq!(told.messages.len(), 1);
        assert_eq!(told.messages[0].role, Role::Tool);
        assert!(
            told.messages[0]
                .content
                .starts_with("Empty tool name in action. This may indicate a parsing error")
        );
    }
}

#[test]
fn a_long_answer_of_a_tool_keeps_its_head_and_its_tail() {
    let text = format!("{}{}", "ä".repeat(100), "z".repeat(100));
    let kept = shortened(text.clone(), 61);
    assert_eq!(
        kept,
        format!(
            "{}\n... (155 characters left out) ...\n{}",
            "ä".repeat(15),
            "z".repeat(30)
        )
    );
    assert_eq!(shortened(text.clone(), 300), text);
}
