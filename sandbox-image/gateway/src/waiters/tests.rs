use super::*;
use grpo_sandbox_protocol::{ErrorCode, FaultOrigin};

fn refusal() -> Told {
    Err(ErrorBody::new(
        ErrorCode::Unavailable,
        FaultOrigin::Infrastructure,
        "no",
    ))
}

#[tokio::test(start_paused = true)]
async fn whoever_waits_is_told_also_when_another_gave_up() {
    let waiters = Waiters::default();
    let mut hasty = waiters.join("a");
    let mut patient = waiters.join("a");
    assert_eq!(hasty.answer(Duration::ZERO).await, None);
    assert!(!hasty.leave());
    waiters.answer("a", refusal());
    assert_eq!(patient.answer(Duration::MAX).await, Some(refusal()));
    assert!(patient.leave());
}

#[tokio::test]
async fn a_caller_that_went_away_leaves_nothing() {
    let waiters = Waiters::default();
    drop(waiters.join("a"));
    assert!(waiters.lock().is_empty());
}
