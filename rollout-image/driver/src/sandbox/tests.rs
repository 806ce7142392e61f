use super::*;
use proptest::prelude::*;

/// A driver that is suspended, migrated or out of processor time keeps its episodes.
#[test]
fn a_driver_that_stands_still_for_four_minutes_keeps_its_leases() {
    let ttl = crate::config::Patience::default().lease_ttl;
    let (pause, timeout) = renewal(ttl);
    let left = ttl - pause;
    assert!(
        left >= Duration::from_secs(240),
        "{left:?} are left at the next renewal"
    );
    assert!(timeout < left, "one renewal that hangs costs no lease");
    let capped = Duration::from_secs(60);
    let (pause, timeout) = renewal(capped);
    assert!(pause + timeout < capped);
}

fn call() -> Call<'static> {
    Call {
        doing: "running a command".into(),
        lease: "a-1",
        object: "f",
        budget: BRIEF,
        answer: ANSWER_BYTES,
    }
}

/// Answers of a gateway for an error that the policy, its command or its patch caused.
fn caused_by_a_policy() -> impl Strategy<Value = ErrorBody> {
    use ErrorCode::*;
    let codes = [
        BadRequest,
        NoSuchFile,
        TooLarge,
        Internal,
        SandboxUnreachable,
        Unavailable,
    ];
    let causes = [
        SandboxCause::OutOfMemory,
        SandboxCause::EvictedOwnLimit,
        SandboxCause::DiskFull,
        SandboxCause::Exited,
    ];
    prop_oneof![
        proptest::sample::select(causes.to_vec()).prop_map(|cause| ErrorBody::lost("a-1", cause)),
        proptest::sample::select(codes.to_vec()).prop_map(|code| ErrorBody::new(code, Whose::Workload, "it did")),
        proptest::sample::select(vec![BadRequest, NoSuchFile, TooLarge]).prop_map(|code| ErrorBody::new(
            code,
            Whose::Client,
            "it asked"
        )),
    ]
}

proptest! {
    #[test]
    fn no_answer_that_a_policy_can_cause_is_the_infrastructures(body in caused_by_a_policy()) {
        prop_assert_eq!(call().error(body).blame(), Blame::Workload);
    }
}

#[test]
fn clocks_keys_and_epochs_are_never_the_policys() {
    for code in [ErrorCode::BadSignature, ErrorCode::WrongLease] {
        let body = ErrorBody::new(code, Whose::Client, "a skewed clock");
        assert_eq!(call().error(body).blame(), Blame::Infrastructure);
    }
}

#[test]
fn what_could_not_be_had_in_the_end_keeps_its_cause() {
    let image = ErrorBody::new(ErrorCode::ImageUnavailable, Whose::Infrastructure, "no such tag");
    let error = call().unavailable(Refusal::Again(image));
    assert!(matches!(error, SandboxError::ImageUnavailable { .. }), "{error}");
    let silent = ErrorBody::new(ErrorCode::SandboxUnreachable, Whose::Infrastructure, "no answer");
    assert_eq!(call().unavailable(Refusal::Again(silent)).blame(), Blame::Unknown);
    let away = call().unavailable(Refusal::Away("connection refused".into()));
    assert_eq!(away.blame(), Blame::Infrastructure);
}

#[test]
fn a_refusal_for_the_workloads_fault_is_its_loss_and_no_void() {
    let refused = |fault| SandboxError::Refused {
        doing: "running a command".into(),
        message: "32 commands run already".into(),
        fault,
    };
    assert!(refused(Whose::Workload).is_workloads_fault());
    assert!(!refused(Whose::Infrastructure).is_workloads_fault());
    assert!(!refused(Whose::Client).is_workloads_fault());
}

/// A gateway that grants no lease for so many requests, and then refuses for good; counts the requests. Of its four
/// sandboxes so many are leased.
async fn without_places(requests: usize, leased: u32) -> (Gateway, std::sync::Arc<std::sync::atomic::AtomicUsize>) {
    use axum::routing::{get, post};
    use axum::{Json, Router, http::StatusCode};
    use std::sync::atomic::Ordering;
    let asked = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let seen = asked.clone();
    let lease = move || {
        let full = seen.fetch_add(1, Ordering::Relaxed) < requests;
        let (status, code) = match full {
            true => (StatusCode::SERVICE_UNAVAILABLE, ErrorCode::QueueDeadline),
            false => (StatusCode::BAD_REQUEST, ErrorCode::BadRequest),
        };
        async move { (status, Json(ErrorBody::new(code, Whose::Infrastructure, "of the test"))) }
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let pool = move || async move {
        let state = serde_json::json!({"ready": 0, "leased": leased, "pending": 4 - leased, "max": 4, "warmHits": 0,
            "coldLeases": 0, "voided": 0});
        Json(state)
    };
    let router = Router::new()
        .route("/v1/leases", post(lease))
        .route("/v1/pool", get(pool));
    tokio::spawn(async move { axum::serve(listener, router).await });
    let gateway = Gateway::new(&url, "run", Duration::from_millis(300), Duration::from_secs(60)).unwrap();
    (gateway, asked)
}

/// Two runs share a pool: each holds a part of it, and its other episodes are no voids because of the other run's.
#[tokio::test]
async fn a_run_that_holds_sandboxes_waits_for_a_full_pool_beyond_its_patience() {
    use std::sync::atomic::Ordering;
    // Longer than each pause, shorter than all of them.
    let patience = Duration::from_millis(1000);
    for (holds, leased, waits) in [(true, 4, true), (false, 4, false), (true, 3, false)] {
        let (gateway, asked) = without_places(3, leased).await;
        let held = holds.then(|| gateway.queue.holds());
        let error = gateway.lease("l", "img", Priority::Agent, patience).await;
        let came_to_its_end = asked.load(Ordering::Relaxed) == 4;
        assert!(error.is_err());
        assert_eq!(came_to_its_end, waits, "holds {holds}, {leased} of 4 leased");
        drop(held);
    }
}
