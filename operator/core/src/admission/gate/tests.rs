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
fn with_a_queue_the_pods_are_a_group_of_kueues_and_carry_no_gate_of_ours() {
    let mut run: GrpoRun = object(DEMO);
    run.spec.queue_name = Some("gpus".into());
    let mut pod = json!({"metadata": {}, "spec": {}});
    Gate::of_run(&run).put_on(&mut pod);
    assert_eq!(pod["metadata"]["labels"][KUEUE_QUEUE], "gpus");
    assert_eq!(pod["metadata"]["annotations"][KUEUE_SIZE], "4");
    assert_eq!(pod["spec"]["schedulingGates"], Value::Null);
}
