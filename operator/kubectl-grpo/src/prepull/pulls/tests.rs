use super::*;

const LIMITS: Limits = Limits {
    parallel: 2,
    retries: 1,
    deadline: Duration::from_secs(100),
};

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn of(node: &str, image: &str, state: State) -> Pull {
    Pull {
        node: node.into(),
        image: image.into(),
        state,
    }
}

fn waiting(attempt: u32, not_before: u64) -> State {
    State::Waiting {
        attempt,
        not_before: at(not_before),
    }
}

fn pulling(attempt: u32, pod: &str) -> State {
    State::Pulling {
        attempt,
        pod: pod.into(),
        since: at(0),
    }
}

fn words(seen: fn(String) -> PullStatus) -> PullStatus {
    seen("no such tag".into())
}

#[test]
fn every_image_is_wanted_on_every_node() {
    let names = |pulls: Vec<Pull>| {
        pulls
            .into_iter()
            .map(|pull| (pull.node, pull.image))
            .collect::<Vec<_>>()
    };
    let two = |a: &str, b: &str| [a.to_owned(), b.to_owned()];
    let pair = |node: &str, image: &str| (node.to_owned(), image.to_owned());
    assert_eq!(
        names(wanted(&two("n1", "n2"), &two("a", "b"))),
        [pair("n1", "a"), pair("n2", "a"), pair("n1", "b"), pair("n2", "b")]
    );
}

#[test]
fn what_a_pod_shows_decides_what_becomes_of_its_pull() {
    let fail = |attempts, message: &str| {
        Some(Action::Fail {
            pull: 0,
            attempts,
            message: message.to_owned(),
        })
    };
    let again = |not_before| {
        Some(Action::Again {
            pull: 0,
            attempt: 2,
            not_before: at(not_before),
        })
    };
    let waits = |why: Option<&str>| PullStatus::Waits {
        why: why.map(str::to_owned),
    };
    let failed = || words(|message| PullStatus::Failed { message });
    let ended = || words(|message| PullStatus::Ended { message });
    let refused = || words(|message| PullStatus::Refused { message });
    for (attempt, seen, now, wanted) in [
        (1, Some(PullStatus::Pulled), 1, Some(Action::Pulled { pull: 0 })),
        (1, Some(PullStatus::Pulled), 100, Some(Action::Pulled { pull: 0 })),
        (1, Some(waits(None)), 1, None),
        (1, Some(failed()), 1, again(6)),
        (2, Some(failed()), 1, fail(2, "no such tag")),
        (1, Some(failed()), 100, fail(1, "no such tag")),
        (1, Some(ended()), 1, again(6)),
        (1, Some(refused()), 1, fail(1, "no such tag")),
        (1, None, 1, again(6)),
        (2, None, 1, fail(2, "its pod was deleted by another")),
        (
            1,
            Some(waits(None)),
            100,
            fail(1, "not there within 100 s: it is still being pulled"),
        ),
        (
            1,
            Some(waits(Some("0/3 nodes"))),
            100,
            fail(1, "not there within 100 s: 0/3 nodes"),
        ),
    ] {
        let pulls = [of("n", "a", pulling(attempt, "p"))];
        let pods = seen.clone().map(|seen| ("p".to_owned(), seen)).into_iter().collect();
        let actions = decide(&pulls, &pods, &LIMITS, at(now));
        assert_eq!(
            actions,
            wanted.into_iter().collect::<Vec<_>>(),
            "{attempt} {seen:?} {now}"
        );
    }
}

#[test]
fn a_node_pulls_so_many_at_a_time_and_the_next_takes_the_place_of_one_that_is_done() {
    let pulls = [
        of("n1", "a", pulling(1, "p")),
        of("n1", "b", waiting(1, 0)),
        of("n1", "c", waiting(1, 0)),
        of("n2", "a", waiting(1, 0)),
        of("n2", "b", waiting(2, 50)),
    ];
    let create = |pull| Action::Create { pull, attempt: 1 };
    let pods = |seen| BTreeMap::from([("p".to_owned(), seen)]);
    let under_way = decide(&pulls, &pods(PullStatus::Waits { why: None }), &LIMITS, at(1));
    assert_eq!(under_way, [create(1), create(3)]);
    let done = decide(&pulls, &pods(PullStatus::Pulled), &LIMITS, at(1));
    assert_eq!(done, [Action::Pulled { pull: 0 }, create(1), create(2), create(3)]);
    let later = decide(&pulls, &pods(PullStatus::Pulled), &LIMITS, at(50));
    assert!(later.contains(&Action::Create { pull: 4, attempt: 2 }), "{later:?}");
}

#[test]
fn what_has_not_begun_by_the_deadline_fails() {
    let pulls = [of("n", "a", waiting(3, 0)), of("n", "b", waiting(1, 0))];
    let actions = decide(&pulls, &BTreeMap::new(), &LIMITS, at(100));
    let failed = |pull, attempts, why: &str| Action::Fail {
        pull,
        attempts,
        message: format!("not there within 100 s: {why}"),
    };
    let early = "its turn had not come; give a later --deadline, or raise --parallel";
    assert_eq!(actions, [failed(0, 2, "it was not tried again"), failed(1, 0, early)]);
}

#[test]
fn pauses_grow_to_five_minutes() {
    let pauses: Vec<u64> = (1..7).map(|attempt| pause(attempt).as_secs()).collect();
    assert_eq!(pauses, [5, 15, 45, 135, 300, 300]);
    assert_eq!(pause(u32::MAX), LONGEST_PAUSE);
}

#[test]
fn actions_are_kept_and_name_the_pod_that_is_not_needed_any_more() {
    let mut pulls = wanted(&["n".to_owned()], &["a".to_owned()]);
    assert_eq!(
        take(&mut pulls, &Action::Create { pull: 0, attempt: 1 }, "p1", at(1)),
        None
    );
    let again = Action::Again {
        pull: 0,
        attempt: 2,
        not_before: at(6),
    };
    assert_eq!(take(&mut pulls, &again, "", at(1)).as_deref(), Some("p1"));
    assert_eq!(pulls[0].state, waiting(2, 6));
    assert!(!is_over(&pulls));
    take(&mut pulls, &Action::Create { pull: 0, attempt: 2 }, "p2", at(6));
    assert_eq!(
        take(&mut pulls, &Action::Pulled { pull: 0 }, "", at(7)).as_deref(),
        Some("p2")
    );
    assert!(is_over(&pulls));
}
