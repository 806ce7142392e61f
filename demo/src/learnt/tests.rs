use super::*;
use grpo_records::VoidReason;
use grpo_records::fixture::{edit_turn, episode, look_turn};

#[test]
fn persistence_and_first_guesses_are_told_apart() {
    let mut learnt = Learnt::default();
    let once_right = [look_turn(), edit_turn(1, "1 passed")];
    let twice = [look_turn(), edit_turn(1, "1 failed"), edit_turn(2, "1 passed")];
    learnt.take(&episode("a", 0, Outcome::Resolved), &once_right);
    learnt.take(&episode("a", 1, Outcome::Resolved), &twice);
    assert_eq!((learnt.resolved, learnt.first_guess_passed, learnt.edits), (2, 1, 3));
}

#[test]
fn a_patch_that_does_not_apply_is_told_from_one_that_does_not_resolve() {
    let mut learnt = Learnt::default();
    let mut refused = episode("a", 0, Outcome::Unresolved);
    refused.meta.grade.as_mut().unwrap().status = REFUSED.into();
    learnt.take(&refused, &[look_turn()]);
    learnt.take(&episode("a", 1, Outcome::Unresolved), &[look_turn()]);
    assert_eq!((learnt.non_empty, learnt.applied, learnt.resolved), (2, 1, 0));
}

#[test]
fn a_void_is_counted_and_nothing_else_of_it() {
    let mut learnt = Learnt::default();
    learnt.take(&episode("a", 0, Outcome::void(VoidReason::SandboxLost)), &[look_turn()]);
    assert_eq!((learnt.voids, learnt.episodes, learnt.turns), (1, 0, 0));
}

#[test]
fn a_retry_with_a_verdict_stands_for_its_episode() {
    let lost = episode("a", 0, Outcome::void(VoidReason::SandboxLost));
    let mut again = episode("a", 0, Outcome::Unresolved);
    again.meta.attempt = 2;
    let kept = counting(vec![again, lost]);
    assert_eq!(kept.len(), 1);
    assert_eq!(kept[0].meta.outcome, Outcome::Unresolved);
}
