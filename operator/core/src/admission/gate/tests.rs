use grpo_crds::grpo_run::Mode;

use super::*;
use crate::fixtures::{DEMO, object};

#[test]
fn a_run_is_whole_with_driver_ranks_and_engines() {
    let mut run: GrpoRun = object(DEMO);
    assert_eq!(whole(&run), [("driver", 1), ("trainer", 2), ("engine", 1)]);
    run.spec.mode = Mode::Validate;
    assert_eq!(whole(&run), [("driver", 1)]);
}

#[test]
fn with_a_queue_the_pods_are_placed_as_kueue_says_and_have_no_gate() {
    let mut run: GrpoRun = object(DEMO);
    run.spec.queue_name = Some("gpus".into());
    let placement = Placement {
        node_selector: [("gpu".to_owned(), "h200".to_owned())].into(),
        ..Placement::default()
    };
    let mut pod = json!({"metadata": {}, "spec": {"nodeSelector": {"zone": "a"}}});
    Gate::of_run(&run, || placement).put_on(&mut pod);
    assert_eq!(pod["spec"], json!({"nodeSelector": {"zone": "a", "gpu": "h200"}}));
}

#[test]
fn a_pool_keeps_the_quota_of_its_run_in_an_annotation() {
    let quota = EngineQuota {
        pods: 5,
        placement: Placement::default(),
    };
    let mut pool: InferencePool = object(
        "{apiVersion: grpo.dev/v1alpha1, kind: InferencePool, metadata: {name: demo}, spec: {model: {image: {reference: a}}, engine: {embedded: {}}}}",
    );
    assert_eq!(EngineQuota::of_pool(&pool), None);
    pool.metadata.annotations = Some([(names::QUOTA.to_owned(), json!(quota).to_string())].into());
    let read = EngineQuota::of_pool(&pool).unwrap();
    assert_eq!((read.replicas(2), read), (2, quota));
}
