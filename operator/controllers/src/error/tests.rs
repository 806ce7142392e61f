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

#[test]
fn an_error_that_the_status_shows_already_is_shown_once_and_counted_under_its_own_reason() {
    let refused = Error::Apply {
        what: "PersistentVolumeClaim team/demo-store".into(),
        source: Box::new(kube::Error::Api(Box::new(
            Status::failure("spec is immutable", "Invalid").with_code(422),
        ))),
    };
    assert!(refused.is_for_people());
    let (reason, message) = (refused.reason(), refused.to_string());
    let shown = Error::Shown(Box::new(refused));
    assert!(!shown.is_for_people());
    assert_eq!((shown.reason(), shown.to_string()), (reason, message));
}

#[test]
fn a_claim_that_a_quota_on_devices_refuses_waits_for_the_quota_like_a_pod() {
    let said = r#"resourceclaims.resource.k8s.io "demo-gpus-0" is forbidden: exceeded quota: few, requested: gpu.nvidia.com.deviceclass.resource.k8s.io/devices=4, used: gpu.nvidia.com.deviceclass.resource.k8s.io/devices=4, limited: gpu.nvidia.com.deviceclass.resource.k8s.io/devices=4"#;
    let source = || {
        Box::new(kube::Error::Api(Box::new(
            Status::failure(said, "Forbidden").with_code(403),
        )))
    };
    let what = || "ResourceClaim team/demo-gpus-0".to_owned();
    let applied = Error::Apply {
        what: what(),
        source: source(),
    };
    assert_eq!(applied.quota_refusal(), None, "other objects are not made in turns");
    let created = applied.of_creation();
    assert_eq!(created.quota_refusal(), Some(said));
    assert_eq!(created.reason(), Reason::CreateFailed);
    let read = Error::Read {
        what: what(),
        source: source(),
    };
    assert_eq!(read.of_creation().reason(), Reason::ReadFailed);
}

#[test]
fn a_kind_that_the_cluster_does_not_serve_is_missing_although_its_answer_is_no_json() {
    use kube::core::Status;
    let missing = Status::failure("no such object", "NotFound").with_code(404);
    let unserved = Status::failure("404 page not found", "Failed to parse error data").with_code(404);
    let forbidden = Status::failure("no", "Forbidden").with_code(403);
    assert_eq!([&missing, &unserved, &forbidden].map(is_missing), [true, true, false]);
}
