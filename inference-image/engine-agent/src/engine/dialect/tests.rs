use super::*;
use serde_json::json;

fn request() -> Value {
    json!({"max_tokens": 64, "seed": 3, "temperature": 1.0, "top_p": 0.9})
}

fn unsupported(field: &str) -> ServerRefusal {
    let error = json!({"message": "Unsupported parameter", "param": field, "code": "unsupported_parameter"});
    ServerRefusal::of(json!({ "error": error }).to_string().as_bytes())
}

/// The request as it is sent after these fields were refused.
fn after(dialect: &Dialect, refused: &[&str]) -> Value {
    let mut asked = request();
    dialect.apply(&mut asked);
    for field in refused {
        assert!(dialect.adapt(&mut asked, &unsupported(field)), "{field}");
    }
    asked
}

#[test]
fn a_refused_form_is_changed_once_and_later_requests_begin_with_the_new_one() {
    let dialect = Dialect::default();
    assert_eq!(after(&dialect, &[]), request());
    let taken = json!({"max_completion_tokens": 64, "top_p": 0.9});
    assert_eq!(after(&dialect, &["max_tokens", "seed", "temperature"]), taken);
    assert_eq!(after(&dialect, &[]), taken);
    // Another server behind the same URL.
    assert_eq!(
        after(&dialect, &["max_completion_tokens"]),
        json!({"max_tokens": 64, "top_p": 0.9})
    );
    assert_eq!(after(&dialect, &[])["max_tokens"], 64);
}

#[test]
fn a_field_that_changes_what_is_sampled_is_never_left_out() {
    let dialect = Dialect::default();
    let mut asked = request();
    assert!(!dialect.adapt(&mut asked, &unsupported("top_p")));
    assert_eq!(asked, request());
    after(&dialect, &["temperature"]);
    let mut hot = request();
    hot["temperature"] = json!(1.5);
    dialect.apply(&mut hot);
    assert_eq!(hot["temperature"], 1.5);
}

#[test]
fn a_temperature_of_one_that_a_model_refuses_as_a_value_stays_in_the_request() {
    let error = json!({
        "message": "Unsupported value: 'temperature' does not support 1 with this model. Only 0.6 is supported.",
        "param": "temperature", "code": "unsupported_value",
    });
    let refusal = ServerRefusal::of(json!({ "error": error }).to_string().as_bytes());
    let mut asked = request();
    assert!(
        !Dialect::default().adapt(&mut asked, &refusal),
        "its answers are sampled otherwise"
    );
    assert_eq!(asked, request());
}

#[test]
fn a_refusal_of_something_else_changes_nothing() {
    let dialect = Dialect::default();
    for refusal in [unsupported("tools"), ServerRefusal::default()] {
        let mut asked = request();
        assert!(!dialect.adapt(&mut asked, &refusal));
        assert_eq!(asked, request());
    }
}
