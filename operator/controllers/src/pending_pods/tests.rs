use super::*;

#[test]
fn a_made_pod_is_known_until_a_watch_shows_it() {
    let pending = PendingPods::default();
    let made = PodFacts::just_made("demo-driver-1-0".into(), 1, 0);
    pending.made("uid", made.clone());
    assert_eq!(pending.with_made("uid", Vec::new()), vec![made.clone()]);
    assert_eq!(pending.with_made("uid", vec![made.clone()]), [made]);
    assert_eq!(
        pending.with_made("uid", Vec::new()),
        [],
        "once seen, a watch that shows it no more is right"
    );
}
