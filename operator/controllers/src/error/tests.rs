use kube::core::Status;

use super::*;

#[test]
fn only_a_used_up_quota_is_a_refusal_by_quota() {
    let exceeded = r#"pods "a" is forbidden: exceeded quota: few, requested: pods=1, used: pods=4, limited: pods=4"#;
    let refused = |message: &str, reason: &str, code: u16| Error::Create {
        what: "Pod team/a".into(),
        source: Box::new(kube::Error::Api(Box::new(
            Status::failure(message, reason).with_code(code),
        ))),
    };
    assert_eq!(refused(exceeded, "Forbidden", 403).quota_refusal(), Some(exceeded));
    let no_limits = r#"pods "a" is forbidden: failed quota: few: must specify limits.cpu"#;
    for (message, reason, code) in [
        (no_limits, "Forbidden", 403),
        (r#"pods "a" is forbidden: violates PodSecurity"#, "Forbidden", 403),
        ("exceeded quota", "Invalid", 422),
    ] {
        assert_eq!(refused(message, reason, code).quota_refusal(), None, "{message}");
    }
}
