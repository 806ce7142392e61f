use super::*;

fn claimed() -> ClaimedGpus {
    let request = |name: &str, class: &str, count: u32| json!({"name": name, "exactly": {"deviceClassName": class, "count": count}});
    let claim = json!({"metadata": {"name": "run-gpus-0"}, "spec": {"devices": {"requests": [
        request("engine-0", GPU_CLASS, 2), request("engine-1", GPU_CLASS, 1), request("nic", "nic.example.com", 4),
    ]}}});
    ClaimedGpus::of(&[serde_json::from_value(claim).unwrap()])
}

fn pod(claim: &str, request: Option<&str>) -> PodSpec {
    let mut pod = json!({"containers": [{"name": "main"}, {"name": "other"}]});
    give_gpus(&mut pod, claim, request);
    serde_json::from_value(pod).unwrap()
}

#[test]
fn a_pod_has_the_gpus_of_its_request_or_of_the_whole_claim() {
    let gpus = claimed();
    assert_eq!(gpus.of_pod(&pod("run-gpus-0", None)), 3);
    assert_eq!(gpus.of_pod(&pod("run-gpus-0", Some("engine-0"))), 2);
    assert_eq!(gpus.of_pod(&pod("run-gpus-0", Some("engine-7"))), 0);
    assert_eq!(gpus.of_pod(&pod("another", None)), 0);
    assert_eq!(gpus.total(), 3);
}

#[test]
fn claims_that_a_container_has_already_are_kept() {
    let mut pod = json!({"containers": [{"name": "main", "resources": {"claims": [{"name": "nic"}]}}]});
    give_gpus(&mut pod, "run-gpus-0", None);
    assert_eq!(
        pod["containers"][0]["resources"]["claims"],
        json!([{"name": "nic"}, {"name": "gpus"}])
    );
}

#[test]
fn the_requests_of_a_claim_are_told_with_their_gpus() {
    let words = claimed().in_words();
    assert_eq!(words["run-gpus-0"], ["engine-0: 2 GPUs", "engine-1: 1 GPU"]);
}
