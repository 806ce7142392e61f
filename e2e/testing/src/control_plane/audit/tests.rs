use super::*;

const PATCH: &str = r#"{"kind":"Event","apiVersion":"audit.k8s.io/v1","level":"Metadata","stage":"ResponseComplete","requestURI":"/x","verb":"patch","user":{"username":"operator","uid":"operator-a","groups":[]},"objectRef":{"resource":"grporuns","namespace":"n","name":"r","apiGroup":"grpo.dev","subresource":"status"},"responseStatus":{"metadata":{},"code":200},"requestReceivedTimestamp":"2026-01-01T00:00:00.000001Z","stageTimestamp":"2026-01-01T00:00:00.004000Z"}"#;

#[test]
fn a_request_is_counted_once_and_a_watch_when_it_begins() {
    let patch = parse(PATCH).unwrap();
    assert!(patch.is_write() && !patch.is_heartbeat() && patch.code == 200);
    assert_eq!(patch.answered.duration_since(patch.received).as_micros(), 3999);
    let watch = PATCH.replace("\"patch\"", "\"watch\"");
    assert_eq!(parse(&watch), None, "the end of a watch");
    let begun = parse(&watch.replace("ResponseComplete", "ResponseStarted")).unwrap();
    assert!(!begun.is_write());
}

#[test]
fn only_what_is_new_and_whole_is_read() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut audit = Audit::new(file.path().to_owned());
    std::fs::write(file.path(), format!("{PATCH}\n{}", &PATCH[..40])).unwrap();
    assert_eq!(audit.fresh().unwrap().len(), 1);
    assert_eq!(audit.fresh().unwrap().len(), 0);
    std::fs::write(file.path(), format!("{PATCH}\n{PATCH}\n")).unwrap();
    assert_eq!(audit.fresh().unwrap().len(), 1);
}
