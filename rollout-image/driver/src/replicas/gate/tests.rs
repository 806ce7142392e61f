use super::*;
use futures::FutureExt;

#[tokio::test]
async fn new_weights_wait_for_running_episodes_and_the_next_episodes_for_the_weights() {
    let gate = Gate::default();
    let running = gate.enter().await;
    assert!(gate.close_if_empty().is_none());
    let mut closing = Box::pin(gate.close());
    assert!(closing.as_mut().now_or_never().is_none());
    let mut next = Box::pin(gate.enter());
    assert!(
        next.as_mut().now_or_never().is_none(),
        "it would begin under the old weights"
    );
    drop(running);
    let closed = closing.await;
    assert!(next.as_mut().now_or_never().is_none());
    drop(closed);
    next.await;
    assert!(gate.close_if_empty().is_some());
}
