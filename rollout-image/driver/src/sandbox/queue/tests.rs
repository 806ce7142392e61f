use super::*;

async fn after(seconds: u64) {
    tokio::time::advance(Duration::from_secs(seconds)).await;
}

#[tokio::test(start_paused = true)]
async fn a_run_that_waits_a_minute_for_its_only_sandboxes_is_told_why() {
    let queue = Queue::default();
    let (first, _second) = (queue.waits(), queue.waits());
    after(59).await;
    queue.refused(Some("503 QueueDeadline: nothing was free"));
    assert_eq!(queue.message(), None);
    after(61).await;
    assert_eq!(
        queue.message().unwrap(),
        "no sandbox was leased for 2 min, 2 requests wait: 503 QueueDeadline: nothing was free. Look at the pool: kubectl describe sandboxpools.grpo.dev"
    );
    drop(first);
    assert!(queue.message().unwrap().contains("1 request waits"));
}

#[tokio::test(start_paused = true)]
async fn a_run_that_holds_a_sandbox_waits_in_silence_and_one_that_lost_its_last_waits_from_then() {
    let queue = Queue::default();
    let held = queue.holds();
    let _waiting = queue.waits();
    queue.refused(Some("8 of 8 leased"));
    after(600).await;
    assert_eq!(queue.message(), None, "a full pool is no fault");
    drop(held);
    after(60).await;
    assert_eq!(queue.message(), None, "the earlier refusal is not the cause");
    queue.refused(Some("a probe failed"));
    let message = queue.message().unwrap();
    assert!(
        message.starts_with("no sandbox was leased for 1 min, 1 request waits: a probe failed."),
        "{message}"
    );
    queue.refused(None);
    assert_eq!(queue.message(), None, "another message names the cause");
    queue.refused(Some("a probe failed"));
    let _held = queue.holds();
    assert_eq!(queue.message(), None);
}

#[tokio::test(start_paused = true)]
async fn a_wait_goes_through_the_pauses_between_attempts_and_ends_with_a_long_one() {
    let queue = Queue::default();
    for _ in 0..3 {
        let waiting = queue.waits();
        after(600).await;
        queue.refused(Some("503"));
        drop(waiting);
        assert_eq!(queue.message(), None, "nothing waits");
        after(300).await;
    }
    let waiting = queue.waits();
    queue.refused(Some("503"));
    assert!(queue.message().unwrap().contains("for 45 min"));
    drop(waiting);
    after(601).await;
    let _waiting = queue.waits();
    queue.refused(Some("503"));
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
