use super::*;
use serde_json::json;

fn one(inside: &str) -> Result<Read, String> {
    read(&format!("<tool_call>\n{inside}"), "")
}

#[test]
fn values_have_the_types_of_their_schemas() {
    let whole = json!({"type": "integer"});
    let number = json!({"type": ["number", "null"]});
    let flag = json!({"type": "boolean"});
    let text = json!({"type": "string"});
    let maybe = json!({"anyOf": [{"type": "string"}, {"type": "null"}]});
    let list = json!({"type": "array"});
    let cases = [
        ("7", &whole, json!(7)),
        ("12345678901234567890", &whole, json!(12345678901234567890_u64)),
        ("7.5", &whole, json!("7.5")),
        ("NULL", &whole, json!(null)),
        ("7.0", &number, json!(7)),
        ("7.5", &number, json!(7.5)),
        ("inf", &number, json!("inf")),
        ("null", &number, json!(null)),
        ("True", &flag, json!(true)),
        ("yes", &flag, json!(false)),
        ("null", &text, json!("null")),
        ("7", &text, json!("7")),
        ("null", &maybe, json!(null)),
        ("None", &maybe, json!(null)),
        ("None", &number, json!(null)),
        ("None", &text, json!("None")),
        ("None", &whole, json!("None")),
        ("[1, {\"a\": 2}]", &list, json!([1, {"a": 2}])),
        ("[1", &list, json!("[1")),
    ];
    for (value, schema, expected) in cases {
        assert_eq!(typed(value, Some(schema)), expected, "{value} as {schema}");
    }
    assert_eq!(typed("7", None), json!("7"));
}

#[test]
fn a_value_may_spell_tags_and_loses_only_the_line_breaks_of_its_own() {
    let inside = "<function=edit>\n<parameter=a>\n\n</parameter>\n</function\n\n</parameter>\n<parameter=b>x</parameter>\n</function>\n</tool_call> then";
    let read = one(inside).unwrap();
    assert_eq!(read.content, "then");
    assert_eq!(
        read.calls[0].arguments,
        r#"{"a": "\n</parameter>\n</function\n", "b": "x"}"#
    );
}

#[test]
fn a_call_that_cannot_be_read_says_why() {
    let cases = [
        ("", "no <function="),
        ("{}</tool_call>", "no <function="),
        ("<function=>\n</function>\n</tool_call>", "no name"),
        ("<function=a\n</function>\n</tool_call>", "no name"),
        ("<function=a>\n</tool_call>", "no </function>"),
        ("<function=a>\n</function>", "no </tool_call>"),
        (
            "<function=a>\n<parameter=x>\n1\n</function>\n</tool_call>",
            "no </parameter> for x",
        ),
        (
            "<function=a>\n<parameter=>\n1\n</parameter>\n</function>\n</tool_call>",
            "no name",
        ),
        (
            "<function=a>\n<parameter=x>1</parameter><parameter=x>2</parameter></function></tool_call>",
            "x twice",
        ),
    ];
    for (inside, expected) in cases {
        let why = one(inside).unwrap_err();
        assert!(why.contains(expected), "{inside}: {why}");
    }
    let stray = read("I call\n<function=a>\n</function>", "").unwrap_err();
    assert!(stray.contains("outside <tool_call>"), "{stray}");
}
