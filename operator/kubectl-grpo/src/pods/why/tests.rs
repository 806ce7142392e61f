use super::*;
use serde_json::{Value, json};

#[test]
fn a_pod_that_cannot_run_says_why() {
    let with = |status: Value| -> Pod {
        serde_json::from_value(json!({"metadata": {"name": "r"}, "status": status})).unwrap()
    };
    let state = |state: Value| json!([{"name": "records", "image": "i", "imageID": "", "ready": false, "restartCount": 0, "state": state}]);
    let pull = with(
        json!({"phase": "Pending", "containerStatuses": state(json!({"waiting": {"reason": "ImagePullBackOff", "message": "no i"}}))}),
    );
    assert_eq!(hopeless(&pull).as_deref(), Some("ImagePullBackOff: no i"));
    let ended = with(
        json!({"phase": "Failed", "containerStatuses": state(json!({"terminated": {"exitCode": 1, "message": "no store\n"}}))}),
    );
    assert_eq!(hopeless(&ended).as_deref(), Some("it ended with exit code 1: no store"));
    let starting = with(
        json!({"phase": "Pending", "containerStatuses": state(json!({"waiting": {"reason": "ContainerCreating"}}))}),
    );
    assert_eq!(hopeless(&starting), None);
}
