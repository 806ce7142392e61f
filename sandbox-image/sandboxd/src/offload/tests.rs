use super::*;
use std::sync::mpsc;

#[tokio::test]
async fn work_that_blocks_is_late_and_the_loop_goes_on() {
    let (release, held) = mpsc::channel::<()>();
    let late = run(Duration::from_millis(20), move || held.recv().is_ok()).await;
    assert_eq!(late, Err(Late(Duration::from_millis(20))));
    assert_eq!(run(Duration::from_secs(10), || 7).await, Ok(7));
    drop(release);
}

#[tokio::test]
async fn all_threads_start() {
    start_threads().await;
}
