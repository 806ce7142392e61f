use super::*;
use grpo_records::CalledTool;

fn hermes(answer: &str, action: &TurnAction) -> Option<String> {
    wrong("Hermes", false, answer, action)
}

const ANSWER: &str = "<think>\nWhy?\n</think>\n\n<tool_call>\n{\"name\": \"view\", \"arguments\": {\"path\": \"a\"}}\n</tool_call>\n\
                      <tool_call>\n{\"name\": \"eval\", \"arguments\": {}}\n</tool_call>";

fn recorded(calls: &[(&str, &str)]) -> TurnAction {
    let call = |(name, arguments): &(&str, &str)| CalledTool {
        id: "1".into(),
        name: (*name).into(),
        arguments: (*arguments).into(),
    };
    TurnAction::calls(&calls.iter().map(call).collect::<Vec<_>>())
}

#[test]
fn calls_as_they_were_sampled_are_accepted() {
    let calls = recorded(&[("view", r#"{"path":"a"}"#), ("eval", "{}")]);
    assert_eq!(hermes(ANSWER, &calls), None);
}

#[test]
fn calls_that_were_not_sampled_are_noticed() {
    for calls in [
        &[("view", r#"{"path":"a"}"#)][..],
        &[("eval", "{}"), ("view", r#"{"path":"a"}"#)],
        &[("view", r#"{"path":"b"}"#), ("eval", "{}")],
        &[],
    ] {
        assert!(hermes(ANSWER, &recorded(calls)).is_some(), "{calls:?}");
    }
    assert!(hermes("I am done.", &recorded(&[("eval", "{}")])).is_some());
}

#[test]
fn an_answer_is_malformed_only_if_it_is() {
    let malformed = TurnAction::malformed_call("why");
    assert!(hermes(ANSWER, &malformed).is_some());
    let thought = format!("<think>\n{}", &ANSWER[8..].replace("</think>", ""));
    assert_eq!(
        hermes(&thought, &malformed),
        None,
        "reasoning that does not end has no calls"
    );
    for answer in [
        "I am done.",
        "<tool_call>{\"name\": \"a\"}</tool_call>",
        "<tool_call>{\"name\": \"a\", \"arguments\": {}}",
    ] {
        assert_eq!(hermes(answer, &malformed), None, "{answer}");
    }
    assert!(hermes(ANSWER, &TurnAction::command("ls")).is_some());
}

#[test]
fn words_alone_are_an_answer_of_a_command_line_agent() {
    let answer = TurnAction::answer();
    assert_eq!(wrong("Hermes", true, "Done.", &answer), None);
    assert!(wrong("Hermes", false, "Done.", &answer).is_some());
    assert!(wrong("Hermes", true, ANSWER, &answer).is_some());
    assert!(wrong("Hermes", true, "Done.", &recorded(&[("eval", "{}")])).is_some());
}

#[test]
fn calls_of_the_other_form_have_their_names_and_texts() {
    let said = "Next.\n<tool_call>\n<function=bash>\n<parameter=command>\nls\n</parameter>\n<parameter=n>\n1\n</parameter>\n</function>\n</tool_call>";
    let check = |calls: &[(&str, &str)]| wrong("Qwen3Coder", true, said, &recorded(calls));
    assert_eq!(check(&[("bash", r#"{"command": "ls", "n": 1}"#)]), None);
    for forged in [
        &[("sh", r#"{"command": "ls", "n": 1}"#)][..],
        &[("bash", r#"{"command": "rm", "n": 1}"#)],
        &[("bash", r#"{"command": "ls", "other": 1}"#)],
        &[("bash", "{")],
        &[],
    ] {
        assert!(check(forged).is_some(), "{forged:?}");
    }
}
