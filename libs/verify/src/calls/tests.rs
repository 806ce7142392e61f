use super::*;
<<<<<<< HEAD
use grpo_records::turn::CalledTool;

fn called(name: &str, arguments: &str) -> TurnAction {
    TurnAction::calls(&[CalledTool {
        id: "call_0_0".into(),
        name: name.into(),
        arguments: arguments.into(),
    }])
}

const HERMES: &str = "<think>\n<tool_call> no\n</think>\nNext.\n<tool_call>\n{\"name\": \"bash\", \"arguments\": {\"command\": \"ls\", \"n\": 1.0}}\n</tool_call>";
const QWEN: &str = "Next.\n<tool_call>\n<function=bash>\n<parameter=command>\nls\n</parameter>\n<parameter=n>\n1\n</parameter>\n</function>\n</tool_call>";

#[test]
fn recorded_calls_follow_from_their_answers() {
    let arguments = r#"{"command": "ls", "n": 1.0}"#;
    for (format, answer) in [("Hermes", HERMES), ("Qwen3Coder", QWEN)] {
        assert_eq!(differs(format, answer, &called("bash", arguments)), None);
        for forged in [
            called("sh", arguments),
            called("bash", r#"{"command": "rm", "n": 1.0}"#),
            called("bash", "{"),
            TurnAction::calls(&[]),
            TurnAction::answer(),
            TurnAction::command("ls"),
        ] {
            assert!(differs(format, answer, &forged).is_some(), "{format} {forged:?}");
        }
    }
}

#[test]
fn words_alone_are_an_answer_and_no_call() {
    assert_eq!(differs("Hermes", "Done.", &TurnAction::answer()), None);
    assert!(differs("Hermes", "Done.", &called("bash", "{}")).is_some());
    assert!(differs("Hermes", "Done.", &TurnAction::malformed_call("x")).is_some());
    assert_eq!(
        differs("Hermes", "<tool_call>\n{", &TurnAction::malformed_call("x")),
        None
    );
=======
use grpo_records::CalledTool;

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
>>>>>>> int
}
