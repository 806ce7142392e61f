use super::ToCome;

/// Three groups of two episodes, each group with its own image.
fn to_come(width: usize, groups_ahead: Option<u32>) -> ToCome {
    let episodes = (0..6u32).map(|at| (at / 2, format!("task:{}", at / 2)));
    ToCome {
        episodes: std::sync::Mutex::new(episodes.collect()),
        width,
        groups_ahead,
    }
}

#[test]
fn as_many_groups_are_warm_ahead_as_the_pool_says_else_as_many_episodes_as_run_at_once() {
    for (width, ahead, begun, wanted) in [
        (3, None, 0, vec![("task:0", 2), ("task:1", 1)]),
        (3, None, 5, vec![("task:2", 1)]),
        (3, None, 6, vec![]),
        (3, Some(0), 0, vec![]),
        (1, Some(1), 0, vec![("task:0", 2)]),
        // The rest of a started group.
        (1, Some(1), 1, vec![("task:0", 1)]),
        (1, Some(2), 1, vec![("task:0", 1), ("task:1", 2)]),
        (1, Some(9), 2, vec![("task:1", 2), ("task:2", 2)]),
    ] {
        let images = to_come(width, ahead).images(begun);
        let images: Vec<(&str, u32)> = images.iter().map(|(image, count)| (image.as_str(), *count)).collect();
        assert_eq!(images, wanted, "width {width}, ahead {ahead:?}, begun {begun}");
    }
}
