use super::*;

#[test]
fn an_object_waits_from_its_first_trigger_until_its_reconcile_begins() {
    let queue = Queue::default();
    let parent = Parent {
        kind: Controlled::Run,
        namespace: "a".into(),
        name: "b".into(),
    };
    assert_eq!(queue.begun("GrpoRun", "a", "b"), None, "nothing happened to it");
    queue.triggered(&parent);
    queue.triggered(&parent);
    assert_eq!(queue.lengths()["GrpoRun"], 1);
    assert!(queue.begun("GrpoRun", "a", "b").is_some());
    assert_eq!(queue.lengths()["GrpoRun"], 0);
}
