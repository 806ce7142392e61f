use super::*;

#[test]
fn every_try_has_a_folder_of_its_own_and_the_first_the_plain_name() {
    let key = EpisodeKey {
        scope: EpisodeScope::Iteration { iteration: 3 },
        instance: "django__django-1".into(),
        group: 2,
        sample: 7,
    };
    assert_eq!(key.dir(1), "rollouts/iter-000003/django__django-1__g2__i7");
    assert_eq!(key.dir(2), "rollouts/iter-000003/django__django-1__g2__i7__t2");
    let at_eval = EpisodeKey {
        scope: EpisodeScope::Evaluation {
            set: "heldout".into(),
            weights: "a-v4".into(),
        },
        ..key
    };
    assert_eq!(at_eval.dir(1), "evaluations/heldout/a-v4/django__django-1__g2__i7");
}
