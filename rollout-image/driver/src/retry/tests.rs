use super::*;

const PAUSES: Pauses = Pauses::doubling(Duration::from_millis(1), Duration::from_millis(4));

fn millis(retry: &mut Retry, pauses: usize) -> Vec<u128> {
    (0..pauses).map(|_| retry.step().as_millis()).collect()
}

#[test]
fn pauses_grow_to_the_longest_and_progress_begins_anew() {
    let mut retry = Retry::new(Duration::from_secs(60), PAUSES);
    assert_eq!(millis(&mut retry, 5), [1, 2, 4, 4, 4]);
    retry.progress();
    assert_eq!(millis(&mut retry, 2), [1, 2]);
}

/// With a clock that only pauses move: on the real clock a late wake-up ends the total early or exceeds it.
#[tokio::test(start_paused = true)]
async fn the_total_ends_it_before_a_pause_that_would_pass_it() {
    let mut retry = Retry::new(Duration::from_millis(50), PAUSES);
    let mut pauses = 0;
    let ended = loop {
        match retry.pause().await {
            Ok(()) => pauses += 1,
            Err(ended) => break ended,
        }
    };
    assert_eq!(ended.within, Duration::from_millis(50));
    // 1 + 2 + 11 * 4 ms; one more pause would end after 51 ms.
    assert_eq!((pauses, retry.elapsed()), (13, Duration::from_millis(47)));
    retry.progress();
    assert_eq!(retry.pause().await, Ok(()));
}

#[tokio::test(start_paused = true)]
async fn a_pause_that_a_server_asks_for_comes_before_the_usual_one_and_within_the_total() {
    let mut retry = Retry::new(Duration::from_secs(8), PAUSES);
    assert_eq!(retry.pause_after(Duration::from_secs(7)).await, Ok(()));
    assert_eq!(retry.elapsed(), Duration::from_millis(7001));
    assert!(retry.pause_after(Duration::from_secs(1)).await.is_err());
    assert_eq!(retry.elapsed(), Duration::from_millis(7001));
}

#[test]
fn a_server_may_ask_for_five_minutes_and_no_more() {
    for (asked, seconds) in [(0, 0), (7, 7), (300, 300), (301, 300), (u64::MAX, 300)] {
        assert_eq!(asked_pause(asked), Duration::from_secs(seconds), "{asked}");
    }
}

#[test]
fn jitter_comes_from_the_seed_and_only_lengthens() {
    let pauses = Pauses::doubling(Duration::from_secs(1), Duration::from_secs(1));
    let drawn = |name: &str| {
        let mut retry = Retry::new(Duration::from_secs(60), pauses).with_jitter(name);
        (0..20).map(|_| retry.step()).collect::<Vec<_>>()
    };
    assert_eq!(drawn("a"), drawn("a"));
    assert_ne!(drawn("a"), drawn("b"));
    assert!(drawn("c").iter().all(|pause| (1.0..1.5).contains(&pause.as_secs_f64())));
}

#[tokio::test(start_paused = true)]
async fn an_outage_is_counted_from_its_first_failure_until_the_server_answers() {
    let second = Duration::from_secs(1);
    let outage = Outage::new(Pauses::doubling(second, 4 * second), 2 * second);
    // An hour without a request is no outage.
    tokio::time::advance(3600 * second).await;
    assert_eq!(outage.failed(), Duration::ZERO);
    for failing in 1..=20_u32 {
        tokio::time::advance(second).await;
        assert_eq!(outage.failed(), failing * second);
    }
    outage.over();
    tokio::time::advance(second).await;
    assert_eq!(outage.failed(), Duration::ZERO, "the server answered in between");
    tokio::time::advance(11 * second).await;
    assert_eq!(outage.failed(), 11 * second);
    tokio::time::advance(12 * second).await;
    assert_eq!(
        outage.failed(),
        Duration::ZERO,
        "twice a pause and a request passed without a failure"
    );
}
