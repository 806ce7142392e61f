use super::*;
use grpo_records::chat::{THINK, THOUGHT};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

const FORMATS: [CallFormat; 2] = [CallFormat::Hermes, CallFormat::Qwen3Coder];

/// One tool for each argument type.
fn tools() -> String {
    let parameters = json!({"properties": {
        "text": {"type": "string"},
        "whole": {"type": "integer"},
        "number": {"type": "number"},
        "flag": {"type": "boolean"},
        "list": {"type": "array"},
        "object": {"type": "object"},
        "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    }});
    json!([{"type": "function", "function": {"name": "all", "parameters": parameters}}]).to_string()
}

/// Calls as the templates write them.
fn rendered(format: CallFormat, calls: &[(String, Map<String, Value>)]) -> String {
    let one = |(name, arguments): &(String, Map<String, Value>)| match format {
        CallFormat::Hermes => format!("{OPEN}\n{}\n{CLOSE}", json!({"name": name, "arguments": arguments})),
        CallFormat::Qwen3Coder => {
            let parameters = arguments.iter().map(|(key, value)| {
                let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                format!("<parameter={key}>\n{value}\n</parameter>\n")
            });
            format!(
                "{OPEN}\n<function={name}>\n{}</function>\n{CLOSE}",
                parameters.collect::<String>()
            )
        }
    };
    calls.iter().map(one).collect::<Vec<_>>().join("\n")
}

fn text() -> impl Strategy<Value = String> {
    // Includes tags: a value may spell them as long as they do not end it.
    prop_oneof![
        any::<String>(),
        "[a-z<>/=\n\"\\\\ ]{0,40}",
        Just("</tool_call>".to_owned()),
        Just("<tool_call>\n</parameter>x".to_owned()),
        Just("</think>\n\nnull".to_owned()),
    ]
}

fn arguments() -> impl Strategy<Value = Map<String, Value>> {
    let list = prop::collection::vec(
        prop_oneof![any::<i64>().prop_map(Value::from), text().prop_map(Value::from)],
        0..4,
    );
    let object = prop::collection::btree_map("[a-z]{1,4}", text(), 0..3);
    let fields = (
        prop::option::of(text()),
        prop::option::of(any::<i64>()),
        prop::option::of(any::<i32>().prop_map(|n| f64::from(n) + 0.25)),
        prop::option::of(any::<bool>()),
        prop::option::of(list),
        prop::option::of(object),
        prop::option::of(prop::option::of("[a-m]{0,5}")),
    );
    fields.prop_map(|(text, whole, number, flag, list, object, maybe)| {
        let all = [
            ("text", text.map(Value::from)),
            ("whole", whole.map(Value::from)),
            ("number", number.map(Value::from)),
            ("flag", flag.map(Value::from)),
            ("list", list.map(Value::from)),
            ("object", object.map(|object| json!(object))),
            ("maybe", maybe.map(Value::from)),
        ];
        let given = all
            .into_iter()
            .filter_map(|(key, value)| Some((key.to_owned(), value?)));
        given.collect()
    })
}

proptest! {
    #[test]
    fn no_text_breaks_a_parser(
        parts in prop::collection::vec(prop_oneof![
            any::<String>(),
            prop::sample::select(vec![
                OPEN, CLOSE, THINK, THOUGHT, "<function=all>", "<function=", "</function>", "<parameter=text>", "<parameter=",
                "</parameter>", "\n", "{\"name\": \"all\", \"arguments\": {", "\"whole\": 1e999", "}}", "\"\\ud800\"", "null",
            ]).prop_map(str::to_owned),
        ], 0..12),
    ) {
        let answer = parts.concat();
        for format in FORMATS {
            let parsed = parse(format, &answer, &tools());
            for call in &parsed.calls {
                prop_assert!(!call.name.is_empty());
                prop_assert!(serde_json::from_str::<Map<String, Value>>(&call.arguments).is_ok());
            }
            if parsed.malformed.is_some() {
                prop_assert!(parsed.calls.is_empty());
                prop_assert_eq!(&parsed.content, &answer);
            }
        }
    }

    #[test]
    fn rendered_calls_are_read_as_they_were(
        all in prop::collection::vec(arguments(), 1..4),
        words in "[a-z]{0,9}",
        thought in prop::option::of("[a-z]{0,9}"),
    ) {
        let calls: Vec<(String, Map<String, Value>)> = all.into_iter().map(|a| ("all".to_owned(), a)).collect();
        for format in FORMATS {
            let reasoning = thought.as_ref().map(|t| format!("<think>\n{t}\n</think>\n\n")).unwrap_or_default();
            let answer = format!("{reasoning}{words}\n{}", rendered(format, &calls));
            let parsed = parse(format, &answer, &tools());
            prop_assert_eq!(&parsed.malformed, &None);
            prop_assert_eq!(&parsed.reasoning, &thought);
            prop_assert_eq!(&parsed.content, &words);
            let read = parsed.calls.iter().map(|call| (call.name.clone(), serde_json::from_str(&call.arguments).unwrap()));
            prop_assert_eq!(read.collect::<Vec<_>>(), calls.clone());
        }
    }
}

#[test]
fn an_answer_without_a_call_keeps_its_text() {
    for format in FORMATS {
        let answer = "\n Done: `a < b`. \n";
        assert_eq!(parse(format, answer, "").content, answer);
        let parsed = parse(format, "<think>\nwhy\n</think>\n\nDone.", "");
        assert_eq!(
            (parsed.reasoning.as_deref(), parsed.content.as_str()),
            (Some("why"), "Done.")
        );
        let endless = parse(format, "<think>\nwhy", "");
        assert_eq!(
            (endless.reasoning.as_deref(), endless.content.as_str()),
            (Some("why"), "")
        );
        // The template opened the reasoning in the prompt.
        let parsed = parse(format, "why\n</think>\n\nDone.", "");
        assert_eq!(
            (parsed.reasoning.as_deref(), parsed.content.as_str()),
            (Some("why"), "Done.")
        );
    }
}

#[test]
fn a_call_within_reasoning_is_not_a_call() {
    let inside = rendered(CallFormat::Hermes, &[("all".to_owned(), Map::new())]);
    let parsed = parse(CallFormat::Hermes, &format!("<think>\n{inside}\n</think>\n\nNo."), "");
    assert_eq!((parsed.calls.len(), parsed.content.as_str()), (0, "No."));
}

#[test]
fn one_malformed_call_makes_the_whole_answer_text() {
    let good = rendered(CallFormat::Hermes, &[("all".to_owned(), Map::new())]);
    let answer = format!("<think>\nx\n</think>\n\n{good}\n{OPEN}\n{{\"name\": \"all\"}}\n{CLOSE}");
    let parsed = parse(CallFormat::Hermes, &answer, "");
    assert_eq!(parsed.malformed.as_deref(), Some("call 2: it has no arguments"));
    assert_eq!((parsed.content, parsed.calls, parsed.reasoning), (answer, vec![], None));
}
