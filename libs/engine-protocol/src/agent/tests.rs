use super::*;

#[test]
fn an_order_is_camel_case_on_the_wire() {
    let order = WeightsOrder {
        version: "a-v1".into(),
        source: "http://d".into(),
        manifest_sha256: "00".into(),
        relay: None,
    };
    assert_eq!(
        serde_json::to_string(&order).unwrap(),
        r#"{"version":"a-v1","source":"http://d","manifestSha256":"00"}"#
    );
    let relay = Some(Relay {
        members: vec!["http://e0".into(), "http://e1".into()],
        own: 1,
    });
    let relayed = WeightsOrder { relay, ..order.clone() };
    assert_eq!(
        serde_json::to_string(&relayed).unwrap(),
        r#"{"version":"a-v1","source":"http://d","manifestSha256":"00","relay":{"members":["http://e0","http://e1"],"own":1}}"#
    );
    assert!(relayed.is_same(&order) && relayed != order);
}
