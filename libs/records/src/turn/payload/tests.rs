use super::*;
use crate::TurnAction;

#[test]
fn a_payload_is_written_shown_and_read_as_its_json() {
    for (value, is_command) in [
        (json!({"command": "ls \"a\"\n"}), true),
        (json!({"command": ""}), true),
        (json!({"command": "ls", "note": 1}), false),
        (json!({"command": ["ls"]}), false),
        (
            json!({"calls": [{"id": "c", "name": "grep", "arguments": "{}"}]}),
            false,
        ),
        (json!({}), false),
        (json!("command"), false),
        (json!(["command"]), false),
        (Value::Null, false),
    ] {
        let payload = ActionPayload::from(value.clone());
        assert_eq!(matches!(payload.0, Held::Command(_)), is_command, "{value}");
        assert_eq!(serde_json::to_string(&payload).unwrap(), value.to_string());
        assert_eq!(payload.to_string(), value.to_string());
        let read: ActionPayload = serde_json::from_str(&value.to_string()).unwrap();
        assert_eq!(read, payload);
        assert_eq!(
            payload.text(COMMAND),
            value.get(COMMAND).and_then(Value::as_str),
            "{value}"
        );
        assert_eq!(payload.is_null(), value.is_null());
        assert_eq!(payload.get("calls"), value.get("calls"));
    }
}

#[test]
fn a_command_that_was_parsed_equals_the_one_that_is_read_from_its_record() {
    let action = TurnAction::command("ls -l");
    let record = r#"{"kind":"Command","payload":{"command":"ls -l"}}"#;
    assert_eq!(serde_json::to_string(&action).unwrap(), record);
    let read: TurnAction = serde_json::from_str(record).unwrap();
    assert_eq!(read.as_command(), Some("ls -l"));
    assert_eq!(read, action);
    let without = serde_json::to_string(&TurnAction::truncated()).unwrap();
    assert_eq!(without, r#"{"kind":"Truncated"}"#);
    assert_eq!(
        serde_json::from_str::<TurnAction>(&without).unwrap(),
        TurnAction::truncated()
    );
}
