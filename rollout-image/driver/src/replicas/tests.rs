use super::*;

fn replica(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

async fn of(ports: &[u16]) -> Replicas {
    let replicas = Replicas::new(Endpoints::Fixed(ports.iter().map(|port| replica(*port)).collect()));
    assert_eq!(replicas.all().await.len(), ports.len());
    replicas
}

fn taken(replicas: &Replicas, version: &str) -> Option<SocketAddr> {
    replicas.take(version, &Home::default()).map(|guard| guard.replica)
}

#[tokio::test]
async fn a_replica_that_boots_gets_no_requests_however_idle_it_is() {
    let replicas = of(&[1, 2]).await;
    assert_eq!(taken(&replicas, "a-v1"), None, "nothing is known of either");
    replicas.serves(replica(1), None);
    replicas.serves(replica(2), Some("a-v1"));
    let busy: Vec<_> = (0..8).filter_map(|_| replicas.take("a-v1", &Home::default())).collect();
    assert!(busy.len() == 8 && busy.iter().all(|guard| guard.replica == replica(2)));
    replicas.serves(replica(1), Some("a-v1"));
    assert_eq!(taken(&replicas, "a-v1"), Some(replica(1)));
}

#[tokio::test]
async fn each_replica_is_eligible_for_the_weights_that_it_serves() {
    let replicas = of(&[1, 2]).await;
    replicas.serves(replica(1), Some("a-v1"));
    replicas.serves(replica(2), Some("a-v2"));
    assert_eq!(taken(&replicas, "a-v1"), Some(replica(1)));
    assert_eq!(taken(&replicas, "a-v2"), Some(replica(2)));
    assert_eq!(taken(&replicas, "a-v3"), None);
}

#[tokio::test]
async fn a_replica_that_fails_rests_longer_each_time_until_it_answers() {
    let replicas = of(&[1]).await;
    replicas.serves(replica(1), Some("a-v1"));
    let rest = |replicas: &Replicas| {
        replicas.rest(replica(1), "it hangs");
        let until = replicas.known()[&replica(1)].rest_until.unwrap();
        until.duration_since(Instant::now()).as_secs_f64().round() as u64
    };
    assert_eq!([rest(&replicas), rest(&replicas), rest(&replicas)], [1, 2, 4]);
    assert_eq!([rest(&replicas), rest(&replicas)], [8, 8]);
    assert_eq!(taken(&replicas, "a-v1"), None);
    assert_eq!(
        replicas.trouble(replica(1)).unwrap(),
        "engine 127.0.0.1:1 has failed 5 requests in a row; last: it hangs"
    );
    replicas.answered(replica(1));
    assert_eq!(replicas.trouble(replica(1)), None);
    assert_eq!(taken(&replicas, "a-v1"), Some(replica(1)));
    assert_eq!(rest(&replicas), 1);
}

#[tokio::test]
async fn a_limit_of_the_rate_rests_longer_than_a_fault() {
    let replicas = of(&[1]).await;
    replicas.serves(replica(1), Some("a-v1"));
    let rest = || {
        // Two requests that were under way together meet the same limit.
        replicas.limited(replica(1), "slow down", None);
        replicas.limited(replica(1), "slow down", None);
        let until = replicas.known()[&replica(1)].rest_until.unwrap();
        until.duration_since(Instant::now()).as_secs_f64().round() as u64
    };
    let over = || replicas.with(replica(1), |r| r.rest_until = None);
    let pauses = || -> Vec<u64> { (0..8).map(|_| (rest(), over()).0).collect() };
    assert_eq!(pauses(), [1, 2, 4, 8, 16, 32, 64, 64]);
    // A fault of an earlier request does not shorten it.
    replicas.limited(replica(1), "slow down", None);
    let before = replicas.known()[&replica(1)].rest_until;
    replicas.rest(replica(1), "slow down");
    assert_eq!(replicas.known()[&replica(1)].rest_until, before);
    assert_eq!(
        replicas.none_ready("a-v1"),
        "no replica is ready for a-v1 (1 known); 127.0.0.1:1: slow down"
    );
    replicas.answered(replica(1));
    assert_eq!(taken(&replicas, "a-v1"), Some(replica(1)));
}

#[tokio::test]
async fn a_pause_that_a_server_asks_for_outlasts_answers_and_shorter_ones_to_earlier_requests() {
    let replicas = of(&[1, 2]).await;
    replicas.serves(replica(1), Some("a-v1"));
    replicas.limited(replica(1), "slow down", Some(Duration::from_secs(60)));
    replicas.limited(replica(1), "slow down", Some(Duration::ZERO));
    replicas.answered(replica(1));
    assert_eq!(taken(&replicas, "a-v1"), None);
    let until = replicas.known()[&replica(1)].asked_until.unwrap();
    assert!(until.duration_since(Instant::now()) > Duration::from_secs(50));
    replicas.serves(replica(2), Some("a-v1"));
    assert_eq!(taken(&replicas, "a-v1"), Some(replica(2)));
}

#[tokio::test]
async fn a_replica_that_joins_gets_a_share_of_the_episodes_that_run() {
    let replicas = of(&[1, 2]).await;
    replicas.serves(replica(1), Some("a-v1"));
    let homes: Vec<Home> = (0..12).map(|_| Home::default()).collect();
    // Requests one after the other: no replica has more than one at a time.
    let ask = || -> Vec<SocketAddr> {
        let taken = homes.iter().filter_map(|home| replicas.take("a-v1", home));
        taken.map(|guard| guard.replica).collect()
    };
    assert_eq!(ask(), [replica(1); 12]);
    replicas.serves(replica(2), Some("a-v1"));
    let after = ask();
    assert_eq!(after.iter().filter(|at| **at == replica(2)).count(), 4);
    assert_eq!(ask(), after, "they stay where their prefix is now");
    // A replica with many requests gets no further episodes, however few it has.
    assert_eq!(after[0], replica(2));
    let busy: Vec<InFlight> = (0..5).filter_map(|_| replicas.take("a-v1", &homes[0])).collect();
    let others: Vec<Home> = (0..8).map(|_| Home::default()).collect();
    let place = |home| replicas.take("a-v1", home).map(|guard| guard.replica);
    for home in others.iter().chain(&others) {
        assert_eq!(place(home), Some(replica(1)));
    }
    drop(busy);
    assert_eq!(place(&others[0]), Some(replica(2)));
    drop((homes, others));
    assert!(replicas.known().values().all(|r| r.episodes == 0));
}

#[tokio::test]
async fn an_episode_stays_with_the_replica_that_has_its_prefix_while_that_is_not_much_busier() {
    let replicas = of(&[1, 2]).await;
    replicas.serves(replica(1), Some("a-v1"));
    replicas.serves(replica(2), Some("a-v1"));
    let home = Home::default();
    let first = replicas.take("a-v1", &home).unwrap();
    // The other replica is idle; the rule of the least busy would choose it.
    let again = replicas.take("a-v1", &home).unwrap();
    assert_eq!(again.replica, first.replica);
    let mut held = vec![first, again];
    while held.len() <= MORE_AT_HOME {
        held.push(replicas.take("a-v1", &home).unwrap());
        assert_eq!(held.last().unwrap().replica, held[0].replica);
    }
    let moved = replicas.take("a-v1", &home).unwrap();
    assert_ne!(
        moved.replica, held[0].replica,
        "it waits for no replica that is much busier"
    );
    let stays = replicas.take("a-v1", &home).unwrap();
    assert_eq!(stays.replica, moved.replica, "its prefix is there now");
    replicas.rest(moved.replica, "it hangs");
    assert_eq!(replicas.take("a-v1", &home).unwrap().replica, held[0].replica);
}
