use super::*;

const SHORT: Duration = Duration::from_millis(100);
const HOUR: Duration = Duration::from_secs(3600);
const LIMITS: Limits = Limits {
    grace: SHORT,
    patience: HOUR,
};

fn view(version: &str, updated: usize, behind: usize) -> View {
    View {
        version: version.into(),
        known: updated + behind,
        updated,
        behind,
        awaited: behind,
        ..View::default()
    }
}

fn target(version: &str) -> Option<Target> {
    Some(Target {
        version: version.into(),
        order: None,
        tensors_sha256: None,
        prefetch: None,
        asleep: None,
    })
}

#[tokio::test]
async fn a_replica_that_never_gets_there_holds_the_others_up_for_a_grace_and_no_longer() {
    let (_sender, seen) = watch::channel(view("a-v1", 1, 1));
    let ready = |view: &View| view.updated;
    let ended = until(seen, ready, View::has_all_awaited, LIMITS).await.unwrap();
    assert_eq!((ended.updated, ended.behind), (1, 1));
    let (_sender, seen) = watch::channel(view("a-v1", 0, 2));
    let waits = until(seen, ready, View::has_all_awaited, LIMITS);
    assert!(
        tokio::time::timeout(3 * SHORT, waits).await.is_err(),
        "one has to serve"
    );
}

#[tokio::test]
async fn weights_that_engines_answer_about_and_none_ever_serves_end_the_wait_with_a_reason() {
    let limits = Limits {
        grace: Duration::from_millis(10),
        patience: SHORT,
    };
    let ready = |view: &View| view.updated;
    let message = "engine 10.0.0.1:8000 is Failed: out of memory";
    let stuck = View {
        message: Some(message.into()),
        ..view("a-v1", 0, 2)
    };
    let (_sender, seen) = watch::channel(stuck);
    let ended = until(seen, ready, View::has_all_awaited, limits).await.unwrap_err();
    assert!(
        ended.to_string().contains(message) && ended.to_string().contains("a-v1"),
        "{ended}"
    );
    let DriverError::Terminal(fault) = ended.into() else {
        panic!("it ends the run");
    };
    assert_eq!(fault.reason, "WeightsNotServed");
    // A pool without pods has no time limit: the operator waits for its pods.
    let (_sender, seen) = watch::channel(view("a-v1", 0, 0));
    let waits = until(seen, ready, View::has_all_awaited, limits);
    assert!(tokio::time::timeout(3 * SHORT, waits).await.is_err());
}

#[test]
fn a_replica_is_awaited_if_it_served_the_weights_before() {
    let [works, boots] = [1, 2].map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
    let mut served = Served::default();
    served.turn_to("a-v0");
    assert!(
        served.awaits(works, true) && !served.awaits(boots, false),
        "by what they serve"
    );
    served.now.insert(works);
    served.turn_to("a-v0");
    served.turn_to("a-v1");
    assert!(served.awaits(works, false) && !served.awaits(boots, false));
    // It comes up and counts like the others; the other one is lost.
    served.now.insert(boots);
    served.turn_to("a-v2");
    assert!(!served.awaits(works, true) && served.awaits(boots, true));
}

#[tokio::test]
async fn a_replica_that_is_not_awaited_holds_no_switch_up() {
    let mut now = view("a-v1", 1, 2);
    now.awaited = 0;
    let (_sender, seen) = watch::channel(now);
    let (_targets, target) = watch::channel(target("a-v1"));
    assert_eq!(until_updated(seen, &target, HOUR).await.unwrap().updated, 1);
}

#[tokio::test]
async fn the_last_view_of_a_driver_that_a_later_one_has_followed_ends_every_wait() {
    let superseded = Superseded { attempt: 1, newer: 2 };
    let (views, seen) = watch::channel(View::default());
    let (_targets, target) = watch::channel(target("a-v1"));
    views.send_replace(View {
        superseded: Some(superseded),
        ..view("a-v1", 1, 0)
    });
    drop(views);
    for ended in [
        until_updated(seen.clone(), &target, HOUR).await,
        until_one_updated(seen.clone(), &target, HOUR).await,
        until_prefetched(seen.clone(), "a-v2").await,
    ] {
        let ended = ended.unwrap_err();
        assert_eq!(ended, SwitchError::Superseded(superseded));
        let ended = DriverError::from(ended);
        assert!(
            matches!(ended, DriverError::Superseded { epoch: 1, newer: 2 }),
            "{ended}"
        );
    }
}

#[tokio::test]
async fn what_is_waited_for_is_the_target_as_it_is_and_not_as_it_was() {
    let (views, seen) = watch::channel(view("a-v1", 0, 1));
    let (targets, target_seen) = watch::channel(target("a-v1"));
    let waiting = tokio::spawn(async move { until_updated(seen, &target_seen, HOUR).await });
    // A restarted trainer brought another lineage.
    targets.send_replace(target("b-v1"));
    views.send_replace(view("a-v1", 1, 0));
    views.send_replace(view("b-v1", 1, 0));
    assert_eq!(waiting.await.unwrap().unwrap().version, "b-v1");
}

#[tokio::test]
async fn a_switch_waits_until_every_replica_has_the_weights_on_disk() {
    let prefetching = |prefetched| View {
        next: Some("a-v2".into()),
        prefetched,
        ..view("a-v1", 2, 0)
    };
    let (views, seen) = watch::channel(prefetching(1));
    let waits = until_prefetched(seen.clone(), "a-v2");
    assert!(tokio::time::timeout(SHORT, waits).await.is_err());
    views.send_replace(prefetching(2));
    assert!(until_prefetched(seen, "a-v2").await.is_ok());
}

#[test]
fn a_replica_is_told_again_after_a_while_and_another_process_at_once() {
    let replica = SocketAddr::from(([127, 0, 0, 1], 1));
    let mut told = Told::default();
    assert!(told.is_due(replica, OrderKind::Weights, "one a-v1".into()));
    assert!(!told.is_due(replica, OrderKind::Weights, "one a-v1".into()));
    assert!(told.is_due(replica, OrderKind::Weights, "two a-v1".into()));
    if let Some((_, at)) = told.orders.get_mut(&(replica, OrderKind::Weights)) {
        *at -= ORDER_EVERY;
    }
    assert!(told.is_due(replica, OrderKind::Weights, "two a-v1".into()));
}

#[test]
fn agents_that_pass_weights_on_get_the_same_list_of_members_and_others_none() {
    let at = |port: u16| SocketAddr::from(([10, 0, 0, 1], port));
    let status = |relays| AgentStatus {
        instance: "i".into(),
        serving: None,
        wanted: None,
        state: AgentState::Idle,
        message: None,
        loaded_sha256: None,
        pulled: None,
        changed: None,
        relays,
    };
    let order = WeightsOrder {
        version: "a-v1".into(),
        source: "http://d".into(),
        manifest_sha256: "00".into(),
        relay: None,
    };
    let statuses = [
        (at(3), Ok(status(true))),
        (at(1), Ok(status(true))),
        (at(2), Ok(status(false))),
        (at(4), Err("refused".to_owned())),
    ];
    let members = Members::of(&statuses);
    let relay = |port| members.order_for(at(port), &order).relay;
    let all = vec!["http://10.0.0.1:1".to_owned(), "http://10.0.0.1:3".to_owned()];
    assert_eq!(
        relay(3),
        Some(Relay {
            members: all.clone(),
            own: 1
        })
    );
    assert_eq!(relay(1), Some(Relay { members: all, own: 0 }));
    assert_eq!((relay(2), relay(4)), (None, None));
    let alone = Members::of(&statuses[..1]).order_for(at(3), &order).relay;
    assert_eq!(alone.map(|relay| (relay.members.len(), relay.own)), Some((1, 0)));
}
