use super::*;

#[test]
fn seeds_repeat_and_differ_in_every_part() {
    let scope = EpisodeScope::Iteration { iteration: 1 };
    let one = of_turn(0, &scope, "a", 0, 0, 0);
    assert_eq!(one, of_turn(0, &scope, "a", 0, 0, 0));
    let others = [
        of_turn(1, &scope, "a", 0, 0, 0),
        of_turn(0, &EpisodeScope::Iteration { iteration: 2 }, "a", 0, 0, 0),
        of_turn(0, &scope, "b", 0, 0, 0),
        of_turn(0, &scope, "a", 1, 0, 0),
        of_turn(0, &scope, "a", 0, 1, 0),
        of_turn(0, &scope, "a", 0, 0, 1),
    ];
    assert!(others.iter().all(|other| *other != one));
}

#[test]
fn two_weights_are_evaluated_with_the_same_dice() {
    let at = |weights: &str| EpisodeScope::Evaluation {
        set: "heldout".into(),
        weights: weights.into(),
    };
    assert_eq!(
        of_turn(0, &at("a-v0"), "a", 0, 0, 0),
        of_turn(0, &at("a-v9"), "a", 0, 0, 0)
    );
}
