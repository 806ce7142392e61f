use super::*;
use crate::recording::request::ToolCall;

fn called(id: &str, arguments: &str) -> ChatMessage {
    ChatMessage {
        tool_calls: vec![ToolCall {
            id: id.into(),
            name: "bash".into(),
            arguments: arguments.into(),
        }],
        ..ChatMessage::new(Role::Assistant, "Next.")
    }
}

fn same(one: &ChatMessage, other: &ChatMessage) -> bool {
    behind(Key::default(), one) == behind(Key::default(), other)
}

#[test]
fn arguments_are_the_same_however_a_client_writes_them() {
    let sampled = r#"{"b": 1.0, "a": [1e2, -0.0, "é"], "10": 12345678901234567890}"#;
    let echoed = r#"{"10":12345678901234567000,"b":1,"a":[100,0,"\u00e9"]}"#;
    assert!(same(&called("c", sampled), &called("c", echoed)));
    for other in [
        r#"{"b": 2}"#,
        r#"{"b": "1"}"#,
        r#"{"b": true}"#,
        r#"{"b": 1, "c": null}"#,
        "{",
        "",
    ] {
        assert!(!same(&called("c", r#"{"b": 1}"#), &called("c", other)), "{other}");
    }
    assert!(!same(&called("c", "{}"), &called("d", "{}")), "another id");
}

#[test]
fn a_call_with_a_flag_that_is_off_is_the_call_without_it() {
    let sampled = called("c", r#"{"new_string": "b", "old_string": "a"}"#);
    let with = |flag: &str| {
        called(
            "c",
            &format!(r#"{{"old_string":"a","new_string":"b","replace_all":{flag}}}"#),
        )
    };
    assert!(same(&sampled, &with("false")));
    for other in ["true", "null", "0", "\"false\"", "{\"x\": false}"] {
        assert!(!same(&sampled, &with(other)), "{other}");
    }
}

#[test]
fn answers_are_compared_without_the_blanks_around_them_and_other_messages_with_them() {
    let with = |content: &str, reasoning: Option<&str>| ChatMessage {
        reasoning: reasoning.map(str::to_owned),
        ..ChatMessage::new(Role::Assistant, content)
    };
    assert!(same(&with("a", Some("\nb ")), &with("a", Some("b"))));
    assert!(same(&with("a", Some(" ")), &with("a", None)));
    assert!(!same(&with("a", Some("b")), &with("a", None)));
    assert!(same(&with("a", None), &with("\na \n", None)));
    assert!(same(&with("a", Some("b")), &with("<think>\nb\n</think>\n\na", None)));
    assert!(!same(&with("a", Some("b")), &with("a <think>b</think>", None)));
    assert!(!same(&with("a b", None), &with("a  b", None)));
    for role in [Role::System, Role::User, Role::Tool] {
        assert!(!same(&ChatMessage::new(role, "a"), &ChatMessage::new(role, "a ")));
    }
}

#[test]
fn no_text_passes_for_the_boundary_of_two() {
    let chain = |texts: &[&str]| {
        let messages = texts.iter().map(|text| ChatMessage::new(Role::User, *text));
        messages.fold(Key::default(), |key, message| behind(key, &message))
    };
    assert_ne!(chain(&["ab", "c"]), chain(&["a", "bc"]));
    assert_ne!(chain(&["a", ""]), chain(&["a"]));
    assert_ne!(
        behind(Key::default(), &ChatMessage::new(Role::System, "a")),
        behind(Key::default(), &ChatMessage::new(Role::User, "a"))
    );
}

#[test]
fn a_request_is_told_from_one_with_other_tools_or_another_limit() {
    let request = |tools: &str, max_tokens| Request {
        tools: tools.into(),
        messages: vec![ChatMessage::new(Role::User, "a")],
        max_tokens,
        ..Request::default()
    };
    let base = Keys::of(&request(r#"[{"a": 1}]"#, None));
    assert_eq!(base, Keys::of(&request(r#"[{"a":1.0}]"#, None)));
    assert_ne!(base.whole, Keys::of(&request("", None)).whole);
    assert_ne!(base.whole, Keys::of(&request(r#"[{"a": 1}]"#, Some(5))).whole);
    assert_eq!(Key::parse(&base.whole.hex()), Some(base.whole));
    assert_eq!(Key::parse("zz"), None);
}
