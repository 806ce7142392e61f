use super::*;
use crate::{
    fixtures::{pod, running},
    names::PodKey,
    pods::PodState,
};
use grpo_crds::AttemptStatus;

fn hold_with(give_back: bool) -> Hold {
    Hold {
        message: "the quota is short".into(),
        give_back,
    }
}

fn update(create: &[u32]) -> GroupUpdate {
    GroupUpdate {
        status: AttemptStatus {
            current: 2,
            created: true,
            ..AttemptStatus::default()
        },
        create: create.iter().map(|rank| key(*rank)).collect(),
        delete: Vec::new(),
        state: GroupState::Running,
        retry_in: None,
        ended: None,
        outdated: 0,
    }
}

fn key(rank: u32) -> PodKey {
    PodKey {
        group: 0,
        attempt: 2,
        rank,
    }
}

fn unbound(rank: u32, attempt: u32) -> PodFacts {
    PodFacts::just_made(format!("run-trainer-{attempt}-{rank}"), attempt, rank)
}

fn bound(rank: u32) -> PodFacts {
    PodFacts {
        node_name: Some("node-a".into()),
        ..pod(&format!("run-trainer-2-{rank}"), 2, rank, running())
    }
}

#[test]
fn pods_are_held_back_and_only_an_attempt_without_a_bound_pod_is_given_back() {
    let ended = PodFacts {
        state: PodState::Succeeded,
        ..unbound(0, 2)
    };
    /// Ranks to create, existing pods, whether the run gives back; expected: whether it holds, and what it gives back.
    type Case = (&'static [u32], Vec<PodFacts>, bool, bool, &'static [&'static str]);
    let cases: [Case; 8] = [
        (&[0, 1], vec![], false, true, &[]),
        (&[], vec![bound(0), bound(1)], true, false, &[]),
        (&[], vec![unbound(0, 2), unbound(1, 2)], false, false, &[]),
        (
            &[],
            vec![unbound(0, 2), unbound(1, 2)],
            true,
            true,
            &["run-trainer-2-0", "run-trainer-2-1"],
        ),
        (&[1], vec![unbound(0, 2)], true, true, &["run-trainer-2-0"]),
        (&[1], vec![bound(0)], true, true, &[]),
        (&[], vec![unbound(0, 1)], true, false, &[]),
        (&[], vec![ended], true, false, &[]),
    ];
    for (create, pods, give_back, held, given) in cases {
        let AfterHold {
            update: after,
            held: is_held,
            give_back,
        } = held_back(update(create), Some(&hold_with(give_back)), &pods);
        assert_eq!(is_held, held, "{create:?} {pods:?}");
        assert_eq!(give_back, given);
        assert!(after.delete.is_empty(), "these are not pods of an attempt that failed");
        assert!(after.create.is_empty());
        assert_eq!(after.status.created, !held, "what is not made cannot be lost");
        assert_eq!(after.status.current, 2, "it is no other attempt");
    }
}

#[test]
fn without_a_reason_and_for_a_group_that_is_over_nothing_is_held_back() {
    assert_eq!(held_back(update(&[0]), None, &[]), AfterHold::unchanged(update(&[0])));
    let over = GroupUpdate {
        state: GroupState::Succeeded,
        ..update(&[])
    };
    assert_eq!(
        held_back(over.clone(), Some(&hold_with(true)), &[unbound(0, 2)]),
        AfterHold::unchanged(over)
    );
}
