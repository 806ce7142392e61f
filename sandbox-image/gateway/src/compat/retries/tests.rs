use super::*;

const ONE: Said = [1; 32];

#[tokio::test(start_paused = true)]
async fn a_call_whose_caller_went_away_is_taken_up_once_and_not_for_long() {
    let retries = Retries::default();
    drop(retries.begin(ONE, || "a".into()));
    let again = retries.begin(ONE, || "b".into());
    assert_eq!(again.name, "a");
    assert_eq!(retries.begin(ONE, || "b".into()).name, "b");
    again.heard();
    tokio::time::advance(AGAIN_WITHIN * 2).await;
    assert_eq!(retries.begin(ONE, || "c".into()).name, "c");
}

#[tokio::test]
async fn calls_that_say_the_same_at_one_time_are_two_and_answered_ones_are_not_repeated() {
    let retries = Retries::default();
    let (first, second) = (retries.begin(ONE, || "a".into()), retries.begin(ONE, || "b".into()));
    assert_eq!((first.name.as_str(), second.name.as_str()), ("a", "b"));
    first.heard();
    second.heard();
    assert_eq!(retries.begin(ONE, || "c".into()).name, "c");
    assert!(retries.give_up("c"));
    assert!(!retries.give_up("c"));
}

#[test]
fn what_is_said_keeps_its_parts_apart() {
    assert_ne!(said(&[b"ab", b"c"]), said(&[b"a", b"bc"]));
}
