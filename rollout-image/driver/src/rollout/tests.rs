use super::{Earlier, ToCome, decide_beside};
use futures::StreamExt;
use std::sync::Mutex;
use std::time::Duration;
use tokio::sync::oneshot;

/// Three groups of two episodes, each group with its own image.
fn to_come(width: usize, groups_ahead: Option<u32>) -> ToCome {
    let episodes = (0..6u32).map(|at| (at / 2, format!("task:{}", at / 2)));
    ToCome {
        episodes: Mutex::new(episodes.collect()),
        width,
        groups_ahead,
    }
}

#[test]
fn as_many_groups_are_warm_ahead_as_the_pool_says_else_as_many_episodes_as_run_at_once() {
    for (width, ahead, begun, wanted) in [
        (3, None, 0, vec![("task:0", 2), ("task:1", 1)]),
        (3, None, 5, vec![("task:2", 1)]),
        (3, None, 6, vec![]),
        (3, Some(0), 0, vec![]),
        (1, Some(1), 0, vec![("task:0", 2)]),
        // The rest of a started group.
        (1, Some(1), 1, vec![("task:0", 1)]),
        (1, Some(2), 1, vec![("task:0", 1), ("task:1", 2)]),
        (1, Some(9), 2, vec![("task:1", 2), ("task:2", 2)]),
    ] {
        let images = to_come(width, ahead).images(begun);
        let images: Vec<(&str, u32)> = images.iter().map(|(image, count)| (image.as_str(), *count)).collect();
        assert_eq!(images, wanted, "width {width}, ahead {ahead:?}, begun {begun}");
    }
}

#[test]
fn the_last_attempt_at_an_episode_is_known_though_earlier_ones_have_no_folder() {
    let folders = [
        "a__g0__i0",
        "a__g0__i1",
        "a__g0__i1__t3",
        "a__g0__i1__t12",
        "a__t9__g1__i0",
        "a__g2__i0__t2",
    ];
    let earlier = Earlier::of(&folders.map(str::to_owned), false);
    for (name, last) in [
        ("a__g0__i0", 1),
        ("a__g0__i1", 12),
        ("a__t9__g1__i0", 1),
        ("a__g2__i0", 2),
        ("a__g3__i0", 0),
    ] {
        assert_eq!(earlier.last_of(name), last, "{name}");
    }
}

#[tokio::test]
async fn a_decision_may_wait_for_an_episode_that_still_runs() {
    let (tell, told) = oneshot::channel();
    let (answer, answered) = oneshot::channel();
    // The second episode ends after the decision about the first began, and that decision waits for its end.
    let (told, answer) = (Mutex::new(Some(told)), Mutex::new(Some(answer)));
    let running = futures::stream::iter([1, 2])
        .map(|episode| {
            let parts = (episode == 2).then(|| (told.lock().unwrap().take(), answer.lock().unwrap().take()));
            async move {
                if let Some((Some(told), Some(answer))) = parts {
                    told.await.unwrap();
                    answer.send(()).unwrap();
                }
                episode
            }
        })
        .buffer_unordered(2);
    let (mut tell, mut answered) = (Some(tell), Some(answered));
    let mut decided = Vec::new();
    let decisions = decide_beside(running, async |mut ended| {
        while let Some(episode) = ended.next().await {
            if let (Some(tell), Some(answered)) = (tell.take(), answered.take()) {
                tell.send(()).unwrap();
                answered.await.unwrap();
            }
            decided.push(episode);
        }
        Ok::<(), ()>(())
    });
    let ended = tokio::time::timeout(Duration::from_secs(20), decisions).await;
    assert_eq!(
        ended,
        Ok(Ok(())),
        "the decision waits for an episode that is not polled"
    );
    assert_eq!(decided, [1, 2]);
}

#[tokio::test]
async fn a_failed_decision_ends_the_rollout_though_episodes_run() {
    let running = futures::stream::iter([1, 2])
        .map(|episode| async move {
            if episode == 2 {
                std::future::pending::<()>().await;
            }
            episode
        })
        .buffer_unordered(2);
    let failed = decide_beside(running, async |mut ended| Err(ended.next().await)).await;
    assert_eq!(failed, Err(Some(1)));
}
