use super::*;

async fn after(seconds: u64) {
    tokio::time::advance(Duration::from_secs(seconds)).await;
}

#[tokio::test(start_paused = true)]
async fn a_run_that_waits_a_minute_for_its_only_sandboxes_is_told_why() {
    let queue = Queue::default();
    let (first, _second) = (queue.waits(), queue.waits());
    after(59).await;
    queue.refused("503 QueueDeadline: nothing was free");
    assert_eq!(queue.message(), None);
    after(61).await;
    assert_eq!(
        queue.message().unwrap(),
        "no sandbox was leased for 2 min, 2 requests wait: 503 QueueDeadline: nothing was free. Look at the pool: kubectl describe sandboxpool"
    );
    drop(first);
    assert!(queue.message().unwrap().contains("1 request waits"));
}

#[tokio::test(start_paused = true)]
async fn a_run_that_holds_a_sandbox_waits_in_silence_and_one_that_lost_its_last_waits_from_then() {
    let queue = Queue::default();
    let held = queue.holds();
    let _waiting = queue.waits();
    queue.refused("503");
    after(600).await;
    assert_eq!(queue.message(), None, "a full pool is no fault");
    drop(held);
    queue.refused("503");
    after(59).await;
    assert_eq!(queue.message(), None);
    after(1).await;
    assert!(queue.message().unwrap().starts_with("no sandbox was leased for 1 min"));
    let _held = queue.holds();
    assert_eq!(queue.message(), None);
}

#[tokio::test(start_paused = true)]
async fn a_gateway_that_has_not_answered_yet_is_not_blamed() {
    let queue = Queue::default();
    let _waiting = queue.waits();
    after(120).await;
    assert_eq!(
        queue.message(),
        None,
        "the other topics of the message say what is away"
    );
}
