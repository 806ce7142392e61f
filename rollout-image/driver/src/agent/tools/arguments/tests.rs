use super::*;

const VIEW: Signature = Signature {
    class: "ViewTool",
    required: &["path"],
    optional: &["start", "whole"],
};

fn refused(text: &str) -> String {
    Arguments::read("view", text, &VIEW).unwrap_err()
}

#[test]
fn what_python_refuses_is_refused_in_its_words() {
    assert_eq!(refused("not json"), "Failed to parse tool arguments as JSON: not json");
    assert_eq!(refused("[1]"), "Tool arguments must be a dict, got list");
    assert_eq!(refused("\"x\""), "Tool arguments must be a dict, got str");
    assert_eq!(
        refused(r#"{"path": "a", "lines": 1}"#),
        "ViewTool.use() got an unexpected keyword argument 'lines'"
    );
    assert_eq!(
        refused(r#"{"start": 1}"#),
        "ViewTool.use() missing 1 required positional argument: 'path'"
    );
}

#[test]
fn null_is_an_argument_that_is_not_given_and_whole_numbers_may_have_a_point() {
    let text = r#"{"path": "a", "start": 3.0, "whole": null}"#;
    let arguments = Arguments::read("view", text, &VIEW).unwrap();
    assert_eq!(arguments.number("start"), Ok(Some(3)));
    assert_eq!(arguments.flag("whole"), Ok(None));
    assert_eq!(arguments.required("path"), Ok("a"));
}

#[test]
fn an_argument_of_another_type_is_named() {
    let text = r#"{"path": 1, "start": "2", "whole": 1.5}"#;
    let arguments = Arguments::read("view", text, &VIEW).unwrap();
    assert_eq!(
        arguments.required("path").unwrap_err(),
        format!("Error while using tool view with action: {text}.\nArgument `path` must be a string.")
    );
    assert!(arguments.number("start").is_err() && arguments.number("whole").is_err());
    assert!(arguments.flag("whole").is_err());
}

#[test]
fn numbers_beyond_every_file_stay_numbers() {
    let arguments = Arguments::read("view", r#"{"path": "a", "start": 1e300}"#, &VIEW).unwrap();
    assert_eq!(arguments.number("start"), Ok(Some(1 << 40)));
}
