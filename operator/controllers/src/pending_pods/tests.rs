use super::*;

#[test]
fn a_made_pod_is_known_until_a_watch_shows_it() {
    let pending = PendingPods::default();
    let made = PodFacts::just_made("demo-driver-1-0".into(), 1, 0);
    pending.made("uid", made.clone());
    assert_eq!(pending.with_made("uid", Vec::new()), vec![made.clone()]);
    assert_eq!(pending.with_made("uid", vec![made.clone()]), [made]);
    assert_eq!(
        pending.with_made("uid", Vec::new()),
        [],
        "once seen, a watch that shows it no more is right"
    );
}

#[test]
fn a_pod_that_is_deleted_before_a_watch_shows_it_is_forgotten() {
    let pending = PendingPods::default();
    for rank in [0, 1] {
        pending.made("uid", PodFacts::just_made(format!("demo-trainer-1-{rank}"), 1, rank));
    }
    pending.deleted("uid", "demo-trainer-1-0");
    let names: Vec<String> = pending
        .with_made("uid", Vec::new())
        .into_iter()
        .map(|pod| pod.name)
        .collect();
    assert_eq!(names, ["demo-trainer-1-1"]);
}

#[test]
fn the_pods_of_all_groups_of_a_deleted_run_are_forgotten() {
    let pending = PendingPods::default();
    for key in ["uid/driver", "uid/trainer", "uid", "another/driver"] {
        pending.made(key, PodFacts::just_made("pod".into(), 1, 0));
    }
    pending.forget("uid");
    let left: Vec<String> = pending.made.lock().unwrap().keys().cloned().collect();
    assert_eq!(left, ["another/driver"]);
}
