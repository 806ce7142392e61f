//! The pool's promises, checked on the index alone.

use super::*;
use proptest::prelude::*;

fn bounds(max: usize, reserved: usize) -> Bounds {
    Bounds {
        max,
        reserved,
        warm_max: max,
        max_ttl_millis: 100_000,
        idle_millis: 1_000_000,
    }
}

fn request(id: &str, image: &str, priority: Priority) -> LeaseRequest {
    LeaseRequest {
        id: id.into(),
        run: "r".into(),
        image: image.into(),
        ttl_seconds: 60,
        wait_seconds: 30,
        priority,
    }
}

/// Plans with names p0, p1, … and answers the actions.
fn plan(index: &mut Index, now: i64, next: &mut u32) -> Vec<Action> {
    index.plan(now, || {
        *next += 1;
        format!("p{next}")
    })
}

fn bring_up(index: &mut Index, actions: &[Action]) {
    for action in actions {
        if let Action::Create { name, image } = action {
            index.seen(name, image, &format!("uid-{name}"), "10.0.0.1", "node");
            index.ready(name);
        }
    }
}

#[test]
fn a_lease_is_served_from_a_pod_made_for_it_and_the_pod_is_deleted_after_release() {
    let (mut index, mut next) = (Index::new(bounds(4, 1)), 0);
    index.wait(request("a", "x", Priority::Agent), 0).unwrap();
    let made = plan(&mut index, 0, &mut next);
    assert!(matches!(&made[..], [Action::Create { image, .. }] if image == "x"));
    assert_eq!(
        plan(&mut index, 0, &mut next),
        [],
        "ordered once, however often one looks"
    );
    bring_up(&mut index, &made);
    assert_eq!(plan(&mut index, 1, &mut next), [Action::Promise { lease: "a".into() }]);
    index.promise("a");
    let released = index.release("a");
    assert_eq!(
        released,
        [
            Action::Forget { lease: "a".into() },
            Action::Delete { name: "p1".into() }
        ]
    );
    assert_eq!(index.release("a"), [], "releasing twice is once");
}

#[test]
fn agents_never_take_the_graders_share() {
    let (mut index, mut next) = (Index::new(bounds(2, 1)), 0);
    for id in ["a", "b"] {
        index.wait(request(id, "x", Priority::Agent), 0).unwrap();
    }
    let made = plan(&mut index, 0, &mut next);
    bring_up(&mut index, &made);
    assert_eq!(plan(&mut index, 0, &mut next), [Action::Promise { lease: "a".into() }]);
    index.wait(request("g", "x", Priority::Grader), 0).unwrap();
    let made = plan(&mut index, 0, &mut next);
    bring_up(&mut index, &made);
    assert_eq!(plan(&mut index, 0, &mut next), [Action::Promise { lease: "g".into() }]);
}

#[test]
fn warm_pods_make_room_for_those_who_wait() {
    let (mut index, mut next) = (Index::new(bounds(2, 0)), 0);
    index.want("r", vec![("warm".into(), 2)]);
    let made = plan(&mut index, 0, &mut next);
    assert_eq!(made.len(), 2);
    bring_up(&mut index, &made);
    index.wait(request("a", "x", Priority::Agent), 0).unwrap();
    let actions = plan(&mut index, 0, &mut next);
    assert!(
        matches!(&actions[..], [Action::Delete { .. }, Action::Create { image, .. }] if image == "x"),
        "{actions:?}"
    );
}

#[test]
fn a_lost_sandbox_is_remembered_with_its_cause() {
    let (mut index, mut next) = (Index::new(bounds(2, 0)), 0);
    index.wait(request("a", "x", Priority::Agent), 0).unwrap();
    let made = plan(&mut index, 0, &mut next);
    bring_up(&mut index, &made);
    plan(&mut index, 0, &mut next);
    index.promise("a");
    assert_eq!(
        index.gone("p1", SandboxCause::Preempted),
        [Action::Forget { lease: "a".into() }]
    );
    assert_eq!(index.cause_of("a"), Some(SandboxCause::Preempted));
    assert_eq!(index.state().voided, 1);
}

#[test]
fn a_lease_nobody_renews_expires_and_its_pod_is_deleted() {
    let (mut index, mut next) = (Index::new(bounds(2, 0)), 0);
    index.wait(request("a", "x", Priority::Agent), 0).unwrap();
    let made = plan(&mut index, 0, &mut next);
    bring_up(&mut index, &made);
    plan(&mut index, 0, &mut next);
    index.promise("a");
    assert_eq!(index.renew("a", 50_000, 30_000), Some(80_000));
    assert_eq!(plan(&mut index, 70_000, &mut next), []);
    assert!(plan(&mut index, 80_000, &mut next).contains(&Action::Delete { name: "p1".into() }));
    assert_eq!(index.cause_of("a"), Some(SandboxCause::Expired));
}

#[test]
fn an_image_that_cannot_be_pulled_refuses_its_waiters_and_is_left_alone() {
    let (mut index, mut next) = (Index::new(bounds(2, 0)), 0);
    index.wait(request("a", "bad", Priority::Agent), 0).unwrap();
    plan(&mut index, 0, &mut next);
    let actions = index.bad_image("bad", "not found", 0);
    assert!(matches!(&actions[..], [Action::Refuse { error, .. }] if error.code == ErrorCode::ImageUnavailable));
    index.gone("p1", SandboxCause::Unknown);
    assert_eq!(
        index.wait(request("b", "bad", Priority::Agent), 1).unwrap_err().code,
        ErrorCode::ImageUnavailable
    );
    assert_eq!(plan(&mut index, 1, &mut next), []);
    assert!(index.wait(request("b", "bad", Priority::Agent), 40_000).is_ok());
}

#[derive(Clone, Debug)]
enum Step {
    Wait(u8, u8, bool),
    Release(u8),
    Lose(u8),
    Ready(u8),
    Want(u8, u8),
    Promise(u8),
    Time(u16),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (any::<u8>(), 0..3u8, any::<bool>()).prop_map(|(id, image, grader)| Step::Wait(id % 24, image, grader)),
        any::<u8>().prop_map(|id| Step::Release(id % 24)),
        any::<u8>().prop_map(Step::Lose),
        any::<u8>().prop_map(Step::Ready),
        (0..3u8, 0..6u8).prop_map(|(image, count)| Step::Want(image, count)),
        any::<u8>().prop_map(|id| Step::Promise(id % 24)),
        (0..20_000u16).prop_map(Step::Time),
    ]
}

proptest! {
    #[test]
    fn no_sandbox_has_two_leases_and_the_pool_never_outgrows_its_max(steps in prop::collection::vec(step(), 1..120)) {
        let (max, reserved) = (6, 2);
        let (mut index, mut next, mut now) = (Index::new(bounds(max, reserved)), 0u32, 0i64);
        for step in steps {
            match step {
                Step::Wait(id, image, grader) => {
                    let priority = if grader { Priority::Grader } else { Priority::Agent };
                    index.wait(request(&format!("l{id}"), &format!("i{image}"), priority), now).unwrap();
                }
                Step::Release(id) => drop(index.release(&format!("l{id}"))),
                Step::Lose(nth) => {
                    if let Some(name) = index.sandboxes.keys().nth(nth as usize % max).cloned() {
                        index.gone(&name, SandboxCause::Deleted);
                    }
                }
                Step::Ready(nth) => {
                    if let Some((name, image)) = index.sandboxes.iter().nth(nth as usize % max).map(|(n, s)| (n.clone(), s.image.clone())) {
                        index.seen(&name, &image, &name, "10.0.0.1", "node");
                        index.ready(&name);
                    }
                }
                Step::Want(image, count) => index.want("r", vec![(format!("i{image}"), count as usize)]),
                Step::Promise(id) => index.promise(&format!("l{id}")),
                Step::Time(millis) => now += i64::from(millis),
            }
            plan(&mut index, now, &mut next);
            prop_assert!(index.sandboxes.len() <= max);
            let agents = index.leases.values().filter(|h| h.entry.priority == Priority::Agent).count();
            prop_assert!(agents <= max - reserved);
            let mut leased: Vec<&String> = index.leases.values().map(|h| &h.entry.sandbox).collect();
            leased.sort();
            leased.dedup();
            prop_assert_eq!(leased.len(), index.leases.len());
            for (lease, held) in &index.leases {
                prop_assert_eq!(index.sandboxes.get(&held.entry.sandbox).and_then(|s| s.lease.as_ref()), Some(lease));
            }
            prop_assert_eq!(plan(&mut index, now, &mut next), vec![], "planning twice changes nothing");
        }
    }
}
