use super::*;

fn evaluation(set: &str, weights: &str) -> EpisodeScope {
    EpisodeScope::Evaluation {
        set: set.into(),
        weights: weights.into(),
    }
}

fn contents() -> Contents {
    Contents {
        scopes: vec![
            EpisodeScope::Iteration { iteration: 1 },
            EpisodeScope::Iteration { iteration: 2 },
            evaluation("heldout", "l1-v0"),
            evaluation("heldout", "l1-v12"),
            evaluation("heldout", "l1-v9"),
        ],
    }
}

#[test]
fn a_part_of_the_run_is_meant_by_iteration_or_by_set_and_weights() {
    let of = |part: Part| meant(&contents(), &part);
    let set = |weights: Option<&str>| Part {
        set: Some("heldout".into()),
        weights: weights.map(str::to_owned),
        ..Part::default()
    };
    assert_eq!(
        of(Part {
            iteration: Some(2),
            ..Part::default()
        }),
        [EpisodeScope::Iteration { iteration: 2 }]
    );
    assert_eq!(
        of(set(None)),
        ["l1-v12", "l1-v9", "l1-v0"].map(|version| evaluation("heldout", version))
    );
    assert_eq!(of(set(Some("l1-v0"))), [evaluation("heldout", "l1-v0")]);
    let all = of(Part::default());
    assert_eq!((all.len(), &all[0]), (5, &EpisodeScope::Iteration { iteration: 2 }));
}

#[test]
fn what_is_not_there_is_answered_with_what_is() {
    let asked = Part {
        iteration: Some(7),
        ..Part::default()
    };
    assert_eq!(
        nothing_there(&contents(), &asked),
        "there are no episodes of iteration 7; there are iterations 1-2; set heldout (l1-v0, l1-v9, l1-v12)"
    );
}
