use super::*;
use std::sync::Arc;

const LONG: Duration = Duration::from_secs(3600);

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

#[tokio::test]
async fn clients_stay_out_for_the_time_of_a_load_and_others_do_not() {
    let gate = Gate::new(2);
    let without_clients = gate.without_clients(LONG);
    let refused = gate.must_be_open_to_clients().unwrap_err();
    assert_eq!(refused.code, ErrorCode::EngineUnavailable);
    assert!(refused.message.contains("new weights"), "{refused}");
    assert!(gate.must_be_open().is_ok() && gate.enter().is_ok());
    drop(without_clients);
    assert!(gate.must_be_open_to_clients().is_ok());
}

#[tokio::test]
async fn a_clients_request_must_end_when_the_first_grace_is_over() {
    let gate = Gate::new(2);
    gate.close_to_clients(Duration::ZERO);
    gate.close_to_clients(LONG);
    let ended = gate.client_must_leave().await;
    assert_eq!(ended.code, ErrorCode::EngineUnavailable);
    assert!(ended.message.contains("new weights"), "{ended}");
    gate.set_sleeping(true);
    assert!(gate.client_must_leave().await.message.contains("falls asleep"));
}

#[tokio::test]
async fn a_clients_request_stays_while_no_order_waits() {
    let gate = Arc::new(Gate::new(2));
    drop(gate.without_clients(Duration::ZERO));
    let leaves = {
        let gate = gate.clone();
        tokio::spawn(async move { gate.client_must_leave().await })
    };
    while gate.clients_end.receiver_count() == 0 {
        tokio::task::yield_now().await;
    }
    drop(gate.without_clients(Duration::ZERO));
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    assert!(!leaves.is_finished(), "the load is over");
    let _without_clients = gate.without_clients(Duration::ZERO);
    leaves.await.unwrap();
}

#[test]
fn a_load_that_fails_while_the_engine_sleeps_lets_no_client_in() {
    let gate = Gate::new(2);
    gate.set_sleeping(true);
    drop(gate.without_clients(LONG));
    assert!(gate.clients_end.borrow().is_some());
    gate.set_sleeping(false);
    assert!(gate.must_be_open_to_clients().is_ok());
}
