use super::*;

fn prefetcher(most: usize, held: &[&str]) -> ImagePrefetcher {
    let mut prefetcher = ImagePrefetcher::new(most);
    for image in held {
        prefetcher.saw(format!("pod-{image}"), image, Some("node".into()));
    }
    prefetcher
}

fn images(names: &[&str]) -> Vec<Arc<str>> {
    names.iter().map(|name| Arc::from(*name)).collect()
}

fn prefetch(image: &str) -> Step {
    Step::Prefetch { image: image.into() }
}

fn release(image: &str) -> Step {
    Step::Release {
        pod: format!("pod-{image}"),
    }
}

#[test]
fn the_most_urgent_images_are_prefetched_and_never_more_than_there_may_be() {
    let to_come = images(&["a", "b", "c"]);
    assert_eq!(
        prefetcher(2, &[]).plan(&to_come, |_| true, 0),
        [prefetch("a"), prefetch("b")]
    );
    assert_eq!(prefetcher(2, &["x"]).plan(&to_come, |_| true, 0), [prefetch("a")]);
    assert_eq!(prefetcher(2, &["a", "b"]).plan(&to_come, |_| true, 0), []);
    assert_eq!(prefetcher(0, &[]).plan(&to_come, |_| true, 0), []);
}

#[test]
fn what_nobody_wants_makes_room_at_once_and_goes_after_a_while_otherwise() {
    let is_wanted = |image: &str| image != "old";
    let mut full = prefetcher(2, &["old", "new"]);
    assert_eq!(full.plan(&images(&["next"]), is_wanted, 0), [release("old")]);
    assert_eq!(
        full.plan(&images(&["next"]), is_wanted, 1),
        [],
        "its place is not free yet"
    );
    full.gone("pod-old");
    assert_eq!(full.plan(&images(&["next"]), is_wanted, 1), [prefetch("next")]);

    let mut roomy = prefetcher(3, &["old", "new"]);
    assert_eq!(roomy.plan(&[], is_wanted, 0), []);
    assert_eq!(roomy.plan(&[], is_wanted, LINGER - 1), []);
    assert_eq!(roomy.plan(&[], is_wanted, LINGER), [release("old")]);
    let mut again = prefetcher(3, &["old", "new"]);
    assert_eq!(again.plan(&[], is_wanted, 0), []);
    assert_eq!(again.plan(&[], |_| true, LINGER), [], "wanted again");
    assert_eq!(again.plan(&[], is_wanted, LINGER + 1), []);
}

#[test]
fn a_deletion_is_ordered_until_the_prefetch_pod_is_gone() {
    let mut prefetcher = prefetcher(2, &["a"]);
    prefetcher.end("pod-a", 0);
    prefetcher.end("pod-of-another-spec", 0);
    let both = [release("a"), release("of-another-spec")];
    assert_eq!(prefetcher.plan(&[], |_| true, 0), both);
    assert_eq!(prefetcher.plan(&[], |_| true, DELETE_AGAIN - 1), []);
    assert_eq!(prefetcher.plan(&[], |_| true, DELETE_AGAIN), both);
    prefetcher.there_are(&[]);
    assert_eq!(
        prefetcher.plan(&images(&["a"]), |_| true, 2 * DELETE_AGAIN),
        [prefetch("a")]
    );
}

#[test]
fn an_image_whose_prefetch_pod_was_ended_from_outside_is_left_alone_for_a_while() {
    let mut prefetcher = prefetcher(2, &["a"]);
    prefetcher.pause("a", 0);
    prefetcher.gone("pod-a");
    assert_eq!(prefetcher.plan(&images(&["a", "b"]), |_| true, 1), [prefetch("b")]);
    assert_eq!(prefetcher.plan(&images(&["a"]), |_| true, ENDED_PAUSE), [prefetch("a")]);
}

#[test]
fn a_sandbox_is_made_near_its_image_once_a_node_has_it() {
    let mut prefetcher = ImagePrefetcher::new(2);
    prefetcher.saw("p".into(), "a", None);
    assert_eq!((prefetcher.node_of("a"), prefetcher.counts()), (None, (1, 0)));
    prefetcher.saw("p".into(), "a", Some("node-1".into()));
    assert_eq!(
        (prefetcher.node_of("a").as_deref(), prefetcher.counts()),
        (Some("node-1"), (1, 1))
    );
}
