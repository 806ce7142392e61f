use super::*;
use std::sync::Arc;

#[tokio::test]
async fn a_closed_gate_is_empty_when_the_requests_inside_have_ended() {
    let gate = Arc::new(Gate::new(2));
    let inside = gate.enter().unwrap();
    gate.set_sleeping(true);
    assert_eq!(gate.requests(), 1);
    let emptied = {
        let gate = gate.clone();
        tokio::spawn(async move { gate.emptied().await })
    };
    while gate.places.available_permits() > 0 {
        tokio::task::yield_now().await;
    }
    assert!(!emptied.is_finished(), "a request is still at the engine");
    drop(inside);
    emptied.await.unwrap();
    assert_eq!(gate.requests(), 0);
    let refused = gate.enter().unwrap_err();
    assert_eq!(refused.code, ErrorCode::EngineUnavailable);
    assert!(refused.message.contains("asleep"));
    gate.set_sleeping(false);
    assert!(gate.enter().is_ok());
}

#[test]
fn more_requests_than_places_are_refused_and_a_draining_replica_says_so() {
    let gate = Gate::new(0);
    let inside = gate.enter().unwrap();
    assert_eq!(gate.enter().unwrap_err().code, ErrorCode::QueueFull);
    gate.set_draining(true);
    assert_eq!(gate.enter().unwrap_err().code, ErrorCode::EngineUnavailable);
    drop(inside);
    assert!(gate.enter().is_err());
}
