use super::*;

fn rendered(template: &str, json: &str) -> String {
    let environment = environment(template.to_owned(), Vec::new()).unwrap();
    let x: Value = serde_json::from_str(json).unwrap();
    environment
        .get_template("chat")
        .unwrap()
        .render(minijinja::context! { x })
        .unwrap()
}

/// Expected: `repr` and `json.dumps` of Python 3.
#[test]
fn floats_are_written_as_python_does() {
    for (json, expected) in [
        ("1.0", "1.0"),
        ("-0.0", "-0.0"),
        ("1e15", "1000000000000000.0"),
        ("1e16", "1e+16"),
        ("1.5e300", "1.5e+300"),
        ("0.0001", "0.0001"),
        ("0.00001", "1e-05"),
        ("1.25e-7", "1.25e-07"),
        ("123456789012345.6", "123456789012345.6"),
        ("7", "7"),
    ] {
        for template in ["{{ x }}", "{{ x | string }}", "{{ x | tojson }}"] {
            assert_eq!(rendered(template, json), expected, "{template}");
        }
    }
}

#[test]
fn json_has_the_spaces_and_lines_of_python() {
    let json = r#"{"b":[1,{}, []],"a":"<é>&'\"\u0001"}"#;
    assert_eq!(
        rendered("{{ x | tojson }}", json),
        r#"{"b": [1, {}, []], "a": "<é>&'\"\u0001"}"#
    );
    let lines = "{\n  \"b\": [\n    1,\n    {},\n    []\n  ],\n  \"a\": \"<é>&'\\\"\\u0001\"\n}";
    assert_eq!(rendered("{{ x | tojson(indent=2) }}", json), lines);
    assert_eq!(
        rendered("{{ x | tojson(ensure_ascii=false) }}", "[true,null]"),
        "[true, null]"
    );
}
