use super::*;
use std::sync::mpsc;

const QUICK: Duration = Duration::from_millis(5);
/// Pause between checks of a healthy loop: a machine under load may delay it for a while.
const PATIENT: Duration = Duration::from_millis(200);
const SOON: Duration = Duration::from_secs(20);

#[tokio::test]
async fn a_loop_that_stands_still_ends_the_process() {
    let (watchdog, (ended, end)) = (Watchdog::default(), mpsc::channel());
    watchdog
        .watch(PATIENT, || true, move || ended.send(()).unwrap())
        .unwrap();
    let beating = watchdog.clone();
    tokio::spawn(async move { beating.beat_every(QUICK, || true).await });
    while watchdog.0.load(Ordering::Relaxed) < 30 {
        tokio::task::yield_now().await;
    }
    assert_eq!(end.try_recv(), Err(mpsc::TryRecvError::Empty), "while it turned");
    // This blocks the runtime's only thread, and with it the loop.
    assert_eq!(end.recv_timeout(SOON), Ok(()));
}

#[test]
fn a_standing_that_does_not_hold_ends_the_process_though_the_loop_turns() {
    let (ended, end) = mpsc::channel();
    let watched = Watchdog::default();
    watched.watch(QUICK, || false, move || ended.send(()).unwrap()).unwrap();
    assert_eq!(end.recv_timeout(SOON), Ok(()));
}

#[tokio::test]
async fn a_loop_that_takes_no_new_connection_ends_the_process() {
    let (watchdog, (ended, end)) = (Watchdog::default(), mpsc::channel());
    watchdog
        .watch(PATIENT, || true, move || ended.send(()).unwrap())
        .unwrap();
    let (beating, beats) = (watchdog.clone(), std::cell::Cell::new(0));
    let takes = || beats.replace(beats.get() + 1) < 3;
    tokio::select! {
        () = beating.beat_every(QUICK, takes) => {}
        ended = tokio::task::spawn_blocking(move || end.recv_timeout(SOON)) => ended.unwrap().unwrap(),
    }
    assert_eq!(watchdog.0.load(Ordering::Relaxed), 3);
}

#[tokio::test]
async fn the_loop_has_a_watch_left_however_often_it_looks() {
    assert!((0..100).all(|_| has_a_watch_left()));
}
