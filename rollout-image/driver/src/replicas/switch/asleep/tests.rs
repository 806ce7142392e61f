use super::*;
use grpo_contracts::driver_epoch::Superseded;

const SHORT: Duration = Duration::from_millis(50);
const HOUR: Duration = Duration::from_secs(3600);

fn view(asleep: usize, behind: usize, absent: usize) -> View {
    View {
        version: "a-v1".into(),
        known: asleep + behind + absent,
        sleeping: true,
        asleep,
        behind,
        absent,
        ..View::default()
    }
}

fn target(version: &str, asleep: bool) -> Option<Target> {
    Some(Target {
        version: version.into(),
        order: None,
        tensors_sha256: None,
        prefetch: None,
        asleep: Some(asleep),
    })
}

fn turn(view: View, target: Option<Target>, replicas: usize) -> (Turn, impl Sized) {
    let (views, view) = watch::channel(view);
    let (targets, target) = watch::channel(target);
    let turn = Turn { view, target, replicas };
    (turn, (views, targets))
}

async fn ends(view: View, target: Option<Target>, replicas: usize) -> bool {
    let (turn, _senders) = turn(view, target, replicas);
    let ends = tokio::time::timeout(SHORT, until_asleep(&turn, HOUR)).await.is_ok();
    assert_eq!(ends, turn.is_the_trainers());
    ends
}

#[tokio::test]
async fn the_trainer_waits_for_every_engine_and_there_is_no_grace_for_one() {
    let asleep = || target("a-v1", true);
    assert!(ends(view(2, 0, 0), asleep(), 2).await);
    assert!(!ends(view(1, 1, 0), asleep(), 2).await, "one is awake");
    assert!(!ends(view(1, 0, 1), asleep(), 2).await, "one does not answer");
    assert!(!ends(view(1, 0, 0), asleep(), 2).await, "one has no address yet");
    assert!(ends(view(3, 0, 0), asleep(), 2).await, "one more than the run asks for");
}

#[tokio::test]
async fn a_view_of_another_turn_does_not_count() {
    assert!(
        !ends(view(1, 0, 0), target("a-v1", false), 1).await,
        "they are to wake up"
    );
    assert!(
        !ends(view(1, 0, 0), target("a-v2", true), 1).await,
        "of the version before"
    );
    let awake = View {
        sleeping: false,
        ..view(1, 0, 0)
    };
    assert!(!ends(awake, target("a-v1", true), 1).await);
}

#[tokio::test]
async fn a_driver_whose_orders_are_refused_for_a_later_one_gives_no_devices() {
    let superseded = Superseded { attempt: 1, newer: 2 };
    let last = View {
        superseded: Some(superseded),
        ..view(1, 0, 0)
    };
    let (turn, _senders) = turn(last, target("a-v1", true), 1);
    assert!(!turn.is_the_trainers());
    let ended = until_asleep(&turn, HOUR).await.unwrap_err();
    assert_eq!(ended, SwitchError::Superseded(superseded));
}

#[tokio::test]
async fn engines_that_answer_and_never_sleep_end_the_attempt_with_their_reason() {
    let message = "engine 10.0.0.1:8000 is Failed: the engine does not take the call";
    let stuck = View {
        message: Some(message.into()),
        ..view(1, 1, 0)
    };
    let (turn_of_none, _senders) = turn(stuck, target("a-v1", true), 2);
    let ended = until_asleep(&turn_of_none, SHORT).await.unwrap_err();
    assert!(
        ended.to_string().contains(message) && ended.to_string().contains("1 of 2"),
        "{ended}"
    );
    // Pods that wait for a node are not the run's fault, whether or not the others sleep.
    for waits in [view(0, 0, 2), view(1, 0, 1)] {
        let (turn, _senders) = turn(waits, target("a-v1", true), 2);
        let waits = until_asleep(&turn, SHORT);
        assert!(tokio::time::timeout(4 * SHORT, waits).await.is_err());
    }
}
