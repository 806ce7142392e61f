use super::*;
use grpo_contracts::reason::Reason;
use serde_json::json;

#[test]
fn what_nobody_executes_ends_the_run_with_a_fault_that_names_it() {
    let run: grpo_crds::GrpoRun = serde_json::from_value(json!({
        "apiVersion": "grpo.dev/v1alpha1", "kind": "GrpoRun", "metadata": {"name": "r", "namespace": "n"},
        "spec": {
            "model": {"image": {"reference": "example.com/model:1"}},
            "agent": {"bash": {}},
            "trainer": {"gpusPerNode": 8},
            "inference": {"pool": {"engine": {"vllm": {"tensorParallel": 2, "nodes": 2}}}},
            "sandboxes": {"pool": {"max": 4}},
            "store": {"persistentVolumeClaim": {"claimName": "runs"}}
        }
    }))
    .unwrap();
    let fault = Settings::of(&RunConfig::of(&run)).unwrap_err();
    assert_eq!(fault.reason, Reason::NotSupported);
    assert!(
        fault.message.contains("spec.inference.pool.engine.vllm.nodes: 2"),
        "{fault}"
    );
}
