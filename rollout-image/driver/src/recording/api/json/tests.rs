use super::*;

#[test]
fn half_a_character_is_mended_and_whole_ones_stay() {
    assert_eq!(mended(r#""a\ud83d""#).as_deref(), Some(r#""a\ufffd""#));
    assert_eq!(
        mended(r#""\ude00\n\uD83D\u0041""#).as_deref(),
        Some(r#""\ufffd\n\ufffd\u0041""#)
    );
    assert_eq!(mended(r#""\ud83d\ude00""#), None);
    // An escaped backslash escapes nothing.
    assert_eq!(mended(r#""\\ud83d""#), None);
    assert_eq!(mended("\\é \\"), None);
}

#[test]
fn arguments_stay_the_text_that_was_sent() {
    let kept = r#"{"b": 1.0, "a":[ 12345678901234567890 ]}"#;
    assert_eq!(arguments("f", kept).as_deref(), Ok(kept));
    assert_eq!(arguments("f", " \n").as_deref(), Ok("{}"));
    assert_eq!(arguments("f", r#"{"a":"\udc00"}"#).as_deref(), Ok(r#"{"a":"\ufffd"}"#));
}

#[test]
fn arguments_that_a_later_reader_would_refuse_are_refused() {
    let refused = |text: &str| arguments("f", text).unwrap_err().to_string();
    assert_eq!(refused("[1]"), "f: arguments are the JSON text of an object");
    assert_eq!(refused("ls"), "f: arguments are the JSON text of an object");
    assert_eq!(refused(r#"{"a":1e999}"#), "f: number out of range");
    assert_eq!(refused(r#"{"a":"#), "f: EOF while parsing a value");
    assert_eq!(refused(r#"{"a":1}{"#), "f: trailing characters");
    let deep = format!("{{\"a\":{}{}}}", "[".repeat(200), "]".repeat(200));
    assert_eq!(refused(&deep), "f: recursion limit exceeded");
}

#[test]
fn the_last_of_two_fields_of_one_name_holds() {
    let fields: Fields = read("", r#"{"a":1,"a":2,"b":null}"#).unwrap();
    assert_eq!(fields.read::<u32>("a"), Ok(Some(2)));
    assert_eq!(fields.read::<u32>("b"), Ok(None));
    let refused = fields.read::<String>("a").unwrap_err();
    assert_eq!(refused.to_string(), "a: invalid type: integer `2`, expected a string");
}

#[test]
fn an_object_with_very_many_fields_is_refused() {
    let fields: Vec<String> = (0..=MOST_FIELDS).map(|at| format!("\"{at}\":0")).collect();
    let text = format!("{{{}}}", fields.join(","));
    let refused = read::<Fields>("", &text).map(|_| ()).unwrap_err();
    assert_eq!(refused.message, "more than 512 fields");
}
