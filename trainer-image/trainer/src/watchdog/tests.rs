use super::*;

fn limits() -> Limits {
    Limits {
        collective: Duration::from_secs(120),
        step: Some(Duration::from_secs(3600)),
        per_pod: 2,
        termination_log: PathBuf::new(),
    }
}

fn at(number: u64, busy: bool, doing: &str) -> Option<Position> {
    Some(Position {
        number,
        within: 0,
        busy,
        doing: doing.to_owned(),
    })
}

#[test]
fn a_collective_and_a_step_are_overdue_past_their_deadlines_and_not_before() {
    let now = Instant::now();
    let ago = |seconds: u64| now.checked_sub(Duration::from_secs(seconds)).unwrap();
    let look = |collective: Option<u64>, step: Option<u64>| {
        let doing = Doing {
            collective: collective.map(|seconds| ("all-gather", ago(seconds))),
            step: step.map(|seconds| (7, ago(seconds))),
        };
        let overdue = overdue(&doing, &limits(), now);
        overdue.map(|overdue| (overdue.collective, overdue.step))
    };
    assert_eq!(look(Some(119), Some(3000)), None);
    assert_eq!(look(Some(121), None), Some((Some("all-gather"), None)));
    assert_eq!(look(Some(121), Some(130)), Some((Some("all-gather"), Some(7))));
    assert_eq!(look(None, Some(3601)), Some((None, Some(7))));
    assert_eq!(look(None, None), None);
}

#[test]
fn the_verdict_names_collective_step_and_the_ranks_that_did_not_arrive_with_their_pods() {
    let overdue = Overdue {
        collective: Some("reduce-scatter"),
        step: Some(7),
        waited: Duration::from_secs(121),
    };
    let positions = vec![
        at(9, false, "reduce-scatter"),
        at(9, false, "reduce-scatter"),
        at(8, false, "all-gather"),
        None,
    ];
    let hang = verdict(&overdue, 1, Ok(positions), 2);
    assert_eq!((hang.ranks, hang.pods), (vec![2, 3], vec![1]));
    for words in [
        "rank 1 waited 121 s in reduce-scatter of step 7",
        "rank 2 did not arrive (last seen at all-gather",
        "rank 3 never came",
    ] {
        assert!(hang.message.contains(words), "{}", hang.message);
    }
}

#[test]
fn a_store_that_does_not_answer_is_rank_zeros_and_a_group_of_equals_blames_nobody() {
    let overdue = Overdue {
        collective: Some("barrier"),
        step: None,
        waited: Duration::from_secs(121),
    };
    let hang = verdict(&overdue, 3, Err(Unanswered::Silent(PATIENCE)), 1);
    assert_eq!((hang.ranks, hang.pods), (vec![0], vec![0]));
    let same = vec![at(4, false, "barrier"); 2];
    let hang = verdict(&overdue, 1, Ok(same), 1);
    assert!(hang.ranks.is_empty() && hang.message.contains("spec.trainer.deadlines"));
}

#[test]
fn whoever_says_that_it_writes_is_not_taken_for_hanging() {
    let writing = at(8, true, "publishing weights");
    assert!(only_busy_ones_are_late(&[writing.clone(), at(9, false, "barrier")]));
    assert!(!only_busy_ones_are_late(&[
        writing,
        at(9, false, "barrier"),
        at(8, false, "broadcast")
    ]));
    assert!(!only_busy_ones_are_late(&[
        at(9, false, "barrier"),
        at(9, true, "barrier")
    ]));
}

#[test]
fn nccl_ends_a_rank_only_when_the_watchdog_had_time_to_say_who_is_late() {
    let of = |seconds| Limits {
        collective: Duration::from_secs(seconds),
        ..limits()
    };
    for seconds in [1, 120, 1800, 7200] {
        let limits = of(seconds);
        let excused = BUSY.max(limits.collective);
        assert!(limits.gpu_collective() >= excused + limits.collective, "{seconds}");
        assert!(limits.gpu_collective() <= 2 * excused, "{seconds}: in hours, not days");
    }
}
