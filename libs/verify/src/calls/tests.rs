use super::*;
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
}
