use super::*;

#[test]
fn an_order_is_camel_case_on_the_wire() {
    let order = WeightsOrder {
        version: "a-v1".into(),
        source: "http://d".into(),
        manifest_sha256: "00".into(),
    };
    assert_eq!(
        serde_json::to_string(&order).unwrap(),
        r#"{"version":"a-v1","source":"http://d","manifestSha256":"00"}"#
    );
}
