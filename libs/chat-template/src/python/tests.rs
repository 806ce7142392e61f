use super::*;

fn rendered(template: &str, json: &str) -> String {
    let environment = environment(template.to_owned(), Vec::new()).unwrap();
    let x: Value = serde_json::from_str(json).unwrap();
    environment
        .get_template(DEFAULT)
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

/// Expected: `str` of Python 3.
#[test]
fn lists_and_objects_are_written_as_python_does() {
    for (json, expected) in [
        (r#"["number", "null"]"#, "['number', 'null']"),
        ("[]", "[]"),
        (
            r#"{"b": {}, "a": [true, null, 1, 1.0, 1e16]}"#,
            "{'b': {}, 'a': [True, None, 1, 1.0, 1e+16]}",
        ),
        (
            r#"["it's", "a \"b\" 'c'", "\\\n\u0001é\u00a0東"]"#,
            r#"["it's", 'a "b" \'c\'', '\\\n\x01é\xa0東']"#,
        ),
    ] {
        for template in ["{{ x }}", "{{ x | string }}"] {
            assert_eq!(rendered(template, json), expected, "{template}");
        }
    }
}

/// Qwen3-Coder's template asks this of its tools, which are `none` in a prompt without tools.
#[test]
fn none_is_not_iterable() {
    let template = "{{ x is iterable and x | length > 0 }}";
    for (json, expected) in [("null", "False"), ("[]", "False"), ("[1]", "True"), ("1", "False")] {
        assert_eq!(rendered(template, json), expected, "{json}");
    }
}

#[test]
fn tags_around_an_answers_tokens_have_no_effect() {
    let template = [
        "{% for m in x %}{% set n = m %}- \n{%- generation -%}\n {% set n = 9 %}{{ m }}\n",
        "{%- endgeneration %}{{ n }}\n{%+ generation %}{% endgeneration +%}.{% endfor %}",
    ];
    let template = template.concat();
    assert_eq!(rendered(&template, "[1, 2]"), "-11\n.-22\n.");
    assert_eq!(
        rendered("{{ '{% generation' }} {% set generation = 1 %}", "0"),
        "{% generation "
    );
}

#[test]
fn loops_can_be_left_early() {
    let text = "{% for m in x %}{% if m == 2 %}{% continue %}{% elif m > 3 %}{% break %}{% endif %}{{ m }}{% endfor %}";
    assert_eq!(rendered(text, "[1, 2, 3, 4]"), "13");
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
