use serde_json::json;

use super::*;
use crate::parent::Controlled;

fn pod(uid: &str, owner: &str) -> Pod {
    serde_json::from_value(json!({
        "metadata": {
            "name": "demo-driver-1-0", "namespace": "team", "uid": uid,
            "labels": {"grpo.dev/role": "driver", "grpo.dev/run": "demo"},
            "ownerReferences": [{"apiVersion": "grpo.dev/v1alpha1", "kind": "GrpoRun", "name": "demo", "uid": owner, "controller": true}],
        },
    }))
    .unwrap()
}

#[test]
fn a_pod_is_deleted_by_the_uid_that_its_owner_made_and_one_of_an_earlier_run_by_none() {
    let index = PodIndex::default();
    let run = Parent {
        kind: Controlled::Run,
        namespace: "team".into(),
        name: "demo".into(),
    };
    assert_eq!(index.uid(&run, "run-2", "demo-driver-1-0"), None);
    index.changed(&pod("pod-1", "run-1"));
    assert_eq!(
        index.uid(&run, "run-2", "demo-driver-1-0"),
        None,
        "an earlier run of the same name made it"
    );
    assert_eq!(index.changed(&pod("pod-2", "run-2")), Some(run.clone()));
    assert_eq!(index.uid(&run, "run-2", "demo-driver-1-0").as_deref(), Some("pod-2"));
}
