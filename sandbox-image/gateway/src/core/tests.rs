//! Callers and their places, and the events of the watch. The API server of these tests never answers.

use super::*;
use crate::index::Bounds;
use grpo_sandbox_protocol::{LeaseRequest, Priority, SandboxCause, Signer};
use kube::runtime::watcher::Event;

fn core() -> (Arc<Core>, mpsc::Receiver<Change>) {
    let config = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
    let client = kube::Client::try_from(config).unwrap();
    let bounds = Bounds {
        max: 2,
        reserved: 0,
        warm_max: 2,
        orders: 2,
        waiting: 100,
        per_node: None,
        max_ttl_millis: 100_000,
        idle_millis: 100_000,
    };
    let template = Template {
        pool: "p".into(),
        pool_uid: "u".into(),
        namespace: "n".into(),
        sandboxd_image: "sandboxd:1".into(),
        public_key: "key".into(),
        spec: serde_yaml_ng::from_str("max: 2").unwrap(),
        term: 2,
    };
    let (changes, receiver) = crate::ledger::channel();
    let sandboxes = Sandboxes::new(Signer::from_seed(&[7; 32]));
    let pods = Api::namespaced(client, "n");
    (
        Core::new(
            Index::new(bounds),
            pods,
            changes,
            sandboxes,
            template,
            Default::default(),
        ),
        receiver,
    )
}

fn request(wait_seconds: u64) -> LeaseRequest {
    LeaseRequest {
        id: "a".into(),
        run: "r".into(),
        image: "x".into(),
        ttl_seconds: 60,
        wait_seconds,
        priority: Priority::Agent,
    }
}

fn refusal() -> ErrorBody {
    ErrorBody::new(ErrorCode::Unavailable, FaultOrigin::Infrastructure, "told")
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_gives_up_leaves_the_place_in_the_queue_to_another_with_the_same_id() {
    let (core, _changes) = core();
    let patient = core.lease(request(600));
    let hasty = core.lease(request(1));
    let told = async {
        let error = hasty.await.unwrap_err();
        assert_eq!((error.code, error.position), (ErrorCode::QueueDeadline, Some(1)));
        assert_eq!(core.with(|index| index.queue.len()), 1);
        core.waiters.answer("a", Err(refusal()));
    };
    let (answer, ()) = tokio::join!(patient, told);
    assert_eq!(answer, Err(refusal()));
}

#[tokio::test(start_paused = true)]
async fn the_last_caller_to_give_up_takes_the_place_along() {
    let (core, _changes) = core();
    core.lease(request(1)).await.unwrap_err();
    assert!(core.with(|index| index.queue.is_empty()));
}

#[tokio::test]
async fn a_gateway_is_ready_once_it_has_seen_every_pod_and_while_it_holds_the_ledger() {
    let (core, changes) = core();
    assert!(!core.is_ready());
    let mut listed = Default::default();
    core.on(Event::Init, &mut listed);
    assert!(!core.is_ready());
    core.on(Event::InitDone, &mut listed);
    assert!(core.is_ready());
    drop(changes);
    assert!(!core.is_ready());
}

fn pod(name: &str, status: &str) -> crate::slim_pod::SlimPod {
    let text = format!(
        "metadata: {{name: {name}, uid: u}}\nspec: {{nodeName: n, containers: [{{name: sandbox, image: x}}]}}\nstatus: {status}"
    );
    serde_yaml_ng::from_str(&text).unwrap()
}

/// Orders one warm pod and returns its name.
fn ordered(core: &Core) -> String {
    core.with(|index| {
        index.want("r", vec![("x".into(), 1)], now());
        index.plan(now(), || "p1".to_owned());
        index.created("p1", now());
        index.sandboxes.keys().next().cloned().unwrap()
    })
}

#[tokio::test]
async fn pods_that_are_of_no_use_end_and_are_forgotten_when_the_watch_says_that_they_are_gone() {
    let (core, _changes) = core();
    let mut listed = Default::default();
    let back_off = "{containerStatuses: [{name: sandbox, image: x, imageID: '', ready: false, restartCount: 0, \
         state: {waiting: {reason: ImagePullBackOff, message: 'Back-off pulling image \"x\"'}}}]}";
    let ours = ordered(&core);
    core.on(Event::Apply(pod(&ours, "{phase: Pending}")), &mut listed);
    assert_eq!(core.with(|index| index.sandboxes[&ours].uid.clone()), "u");
    core.on(Event::Apply(pod(&ours, back_off)), &mut listed);
    core.on(Event::Apply(pod("nobodys", "{phase: Running}")), &mut listed);
    let left = core.with(|index| (index.sandboxes.len(), index.ending.len()));
    assert_eq!(left, (0, 2));
    let refused = core.with(|index| index.wait(request(1), now())).unwrap_err();
    assert_eq!(refused.code, ErrorCode::ImageUnavailable);
    core.on(Event::Delete(pod(&ours, back_off)), &mut listed);
    core.on(Event::Init, &mut listed);
    core.on(Event::InitDone, &mut listed);
    assert!(core.with(|index| index.ending.is_empty()));
}

#[tokio::test]
async fn a_pod_that_its_node_refuses_is_not_replaced_at_once() {
    let (core, _changes) = core();
    let mut listed = Default::default();
    let refused = "{phase: Failed, reason: OutOfcpu, message: 'Pod was rejected: not enough cpu'}";
    let name = ordered(&core);
    for _ in 0..2 {
        core.on(Event::Apply(pod(&name, refused)), &mut listed);
    }
    let until = core.look(|index| index.sandboxes[&name].refused_until).unwrap();
    core.look(|index| {
        let actions = index.plan(until - 1, || unreachable!("its place is not free yet"));
        assert_eq!((actions, index.ending.len()), (Vec::new(), 0));
        index.plan(until, || "p2".to_owned());
        assert!(index.sandboxes.keys().eq(["p2"]) && index.ending.contains_key("p1"));
    });
}

#[tokio::test]
async fn a_leased_pod_that_its_restarted_node_refuses_is_lost_at_once() {
    let (core, mut changes) = core();
    let _done = granting(&core, &mut changes).await;
    core.look(|index| index.leases.get_mut("a").unwrap().granted = true);
    let refused = "{phase: Failed, reason: NodeAffinity, message: 'Pod was rejected: labels'}";
    core.on(Event::Apply(pod("p1", refused)), &mut Default::default());
    core.look(|index| {
        assert!(index.sandboxes.is_empty() && index.leases.is_empty());
        assert_eq!(index.cause_of("a"), Some(SandboxCause::Unknown));
    });
}

#[tokio::test]
async fn who_waits_in_vain_hears_that_a_node_refuses_pods_again_and_again() {
    let (core, _changes) = core();
    core.look(|index| {
        let mut at = now();
        // Each pod is refused when the pause of the one before has ended.
        for _ in 0..4 {
            index.adopt("p1", "x", None, 0, at);
            assert!(index.refused_by_node("p1", "n", "OutOfcpu: no cpu", at));
            at = index.sandboxes["p1"].refused_until.unwrap();
            index.refused("p1");
        }
    });
    let error = core.lease(request(0)).await.unwrap_err();
    assert!(error.message.contains("OutOfcpu: no cpu"), "{error}");
}

#[tokio::test]
async fn a_pod_of_a_later_gateway_says_that_this_one_was_replaced_and_is_left_alone() {
    let (core, _changes) = core();
    let mut listed = Default::default();
    let mut theirs = pod("theirs", "{phase: Running}");
    let term = |pod: &mut crate::slim_pod::SlimPod, term: &str| {
        pod.metadata.annotations = Some([("grpo.dev/gateway-term".to_owned(), term.to_owned())].into());
    };
    term(&mut theirs, "1");
    core.on(Event::Apply(theirs.clone()), &mut listed);
    assert_eq!(core.look(|index| index.ending.len()), 1, "an earlier one's goes");
    theirs.metadata.name = Some("later".to_owned());
    term(&mut theirs, "3");
    core.on(Event::Apply(theirs), &mut listed);
    core.replaced().await;
    assert_eq!(core.look(|index| index.ending.len()), 1);
}

/// A decided lease of pod p1, with its grant in progress.
async fn granting(core: &Arc<Core>, changes: &mut mpsc::Receiver<Change>) -> oneshot::Sender<()> {
    core.with(|index| {
        index.wait(request(60), now()).unwrap();
        index.plan(now(), || "p1".to_owned());
        index.created("p1", now());
        // No server listens at this address.
        index.observed("p1", "u", "127.0.0.1", "n", now());
        index.ready("p1");
    });
    core.apply(|index| index.plan(now(), || unreachable!()));
    match changes.recv().await {
        Some(Change::Put { done, .. }) => done,
        _ => panic!("no lease was written"),
    }
}

#[tokio::test]
async fn a_lease_given_back_while_it_is_written_is_not_granted_and_leaves_the_ledger() {
    let (core, mut changes) = core();
    let done = granting(&core, &mut changes).await;
    let epoch = core.look(|index| index.leases["a"].entry.epoch);
    core.apply(|index| index.release("a", now()));
    done.send(()).unwrap();
    match changes.recv().await {
        Some(Change::Remove { lease, epoch: of }) => assert_eq!((lease.as_str(), of), ("a", epoch)),
        _ => panic!("it stays in the ledger"),
    }
    assert!(core.look(|index| index.leases.is_empty()));
}

#[tokio::test(start_paused = true)]
async fn a_lease_stays_in_the_ledger_and_its_release_unanswered_until_the_end_of_its_sandbox_is_ordered() {
    let (core, mut changes) = core();
    let done = granting(&core, &mut changes).await;
    core.look(|index| index.leases.get_mut("a").unwrap().granted = true);
    // The API server accepts no order.
    let error = core.release("a").await.unwrap_err();
    assert_eq!(
        (error.code, error.fault),
        (ErrorCode::Unavailable, FaultOrigin::Infrastructure)
    );
    // A repeated release is not certain either.
    let again = core.release("a").await.unwrap_err();
    assert_eq!(again.code, ErrorCode::Unavailable);
    assert!(changes.try_recv().is_err());
    drop(done);
}

/// Whether a caller has no answer yet.
async fn waits(caller: &mut (impl Future<Output = Result<Lease, ErrorBody>> + Unpin)) -> bool {
    tokio::time::timeout(Duration::ZERO, caller).await.is_err()
}

#[tokio::test]
async fn the_place_of_a_caller_that_went_away_is_not_served_unless_another_waits_for_the_same_lease() {
    let (core, _changes) = core();
    let is_abandoned = || core.look(|index| index.queue[0].is_abandoned);
    let mut patient = Box::pin(core.lease(request(600)));
    assert!(waits(&mut patient).await);
    // Dropped, as when its connection ends.
    assert!(waits(&mut Box::pin(core.lease(request(600)))).await);
    assert!(!is_abandoned());
    drop(patient);
    assert!(is_abandoned());
    let mut back = Box::pin(core.lease(request(600)));
    assert!(waits(&mut back).await && !is_abandoned());
    assert_eq!(core.look(|index| index.queue.len()), 1, "it is the same place");
}

/// The health status for the kubelet.
async fn health(core: &Arc<Core>) -> axum::http::StatusCode {
    let asked = axum::extract::Request::get("/healthz").body(axum::body::Body::empty());
    let router = crate::http::router(core.clone());
    tower::ServiceExt::oneshot(router, asked.unwrap())
        .await
        .unwrap()
        .status()
}

#[tokio::test(start_paused = true)]
async fn a_gateway_whose_scheduler_stands_still_says_that_it_must_be_restarted() {
    let (core, _changes) = core();
    assert_eq!(health(&core).await, 200, "it has not begun");
    let scheduler = tokio::spawn(core.clone().schedule());
    tokio::time::advance(crate::progress::STALLED_AFTER * 2).await;
    while core.progress.stalled().is_some() {
        tokio::task::yield_now().await;
    }
    assert_eq!(health(&core).await, 200, "a pool at rest makes progress too");
    scheduler.abort();
    let _ = scheduler.await;
    tokio::time::advance(crate::progress::STALLED_AFTER).await;
    assert_eq!(health(&core).await, 503);
}
