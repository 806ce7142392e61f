use super::*;

fn pool(name: &str) -> Parent {
    Parent {
        kind: Controlled::SandboxPool,
        namespace: "team".into(),
        name: name.into(),
    }
}

#[tokio::test(start_paused = true)]
async fn triggers_of_an_object_within_a_window_are_one_request() {
    let (sender, receiver) = mpsc::channel(QUEUE);
    let mut merging = Merging::of(receiver);
    let begun = Instant::now();
    for name in ["a", "b", "a", "a"] {
        sender.send(pool(name)).await.unwrap();
    }
    assert_eq!(merging.next().await, Some(pool("a")));
    assert_eq!(begun.elapsed(), WINDOW);
    assert_eq!(merging.next().await, Some(pool("b")));
    sender.send(pool("a")).await.unwrap();
    drop(sender);
    // The process ends with its watches.
    assert_eq!(merging.next().await, None);
}

#[tokio::test(start_paused = true)]
async fn an_object_that_changes_all_the_time_is_reconciled_once_in_each_window() {
    let (sender, receiver) = mpsc::channel(QUEUE);
    let mut merging = Merging::of(receiver);
    let begun = Instant::now();
    let changes = async {
        for _ in 0..1000 {
            sender.send(pool("busy")).await.unwrap();
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let mut requests = 0_u32;
    let reconciles = async {
        while begun.elapsed() < Duration::from_millis(990) {
            merging.next().await;
            requests += 1;
        }
    };
    tokio::join!(changes, reconciles);
    assert!((45..=50).contains(&requests), "{requests} in a second");
}
