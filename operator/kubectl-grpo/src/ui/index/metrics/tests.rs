use super::*;

fn message(step: u32) -> String {
    format!("{} in the store cannot be read", paths::trainer_metrics(step))
}

/// A page of steps, with the steps of its damaged files.
fn page(steps: &[u32], damaged: &[u32], more: bool) -> MetricsPage {
    let step = |step: &u32| StepMetrics {
        step: *step,
        loss: 0.5,
        ..StepMetrics::default()
    };
    MetricsPage {
        steps: steps.iter().map(step).collect(),
        damaged: damaged.iter().copied().map(message).collect(),
        more,
        ..MetricsPage::default()
    }
}

/// The number after which the next page begins; `None` if no page is wanted.
fn next_page(metrics: &Metrics, now: Instant) -> Option<u32> {
    match metrics.wanted(now)? {
        MetricsWanted::Page(of) => Some(of.steps_after),
        MetricsWanted::File(_) => None,
    }
}

#[test]
fn a_read_continues_after_the_last_number() {
    let (mut metrics, now) = (Metrics::default(), Instant::now());
    assert_eq!(next_page(&metrics, now), Some(0));
    // A run that continues another one has no first steps.
    assert!(metrics.add(page(&[7, 8], &[], true), now));
    assert_eq!(next_page(&metrics, now), Some(8));
    assert!(metrics.add(page(&[9], &[], false), now));
    assert_eq!(metrics.wanted(now + LOOK_AGAIN), None);
    metrics.expect_more();
    assert_eq!(next_page(&metrics, now), Some(9));
    assert!(!metrics.add(page(&[], &[], false), now));
}

#[test]
fn pages_continue_after_a_damaged_file_also_if_it_is_the_last_one() {
    let (mut metrics, now) = (Metrics::default(), Instant::now());
    assert!(metrics.add(page(&[1, 3], &[2], true), now));
    assert_eq!(next_page(&metrics, now), Some(3));
    assert!(metrics.add(page(&[4], &[5], false), now));
    metrics.expect_more();
    assert_eq!(next_page(&metrics, now), Some(5));
    assert_eq!(metrics.damaged(), BTreeSet::from([message(2), message(5)]));
}

#[test]
fn a_repaired_file_has_its_numbers_and_its_message_goes() {
    let (mut metrics, now) = (Metrics::default(), Instant::now());
    metrics.add(page(&[3, 5], &[4], false), now);
    let damaged = MetricsFile::Step(4);
    assert!(metrics.add_again(damaged, Some(b"{"), now), "another cause");
    assert!(!metrics.add_again(damaged, Some(b"{"), now), "the same once more");
    let shown = metrics.damaged();
    assert_eq!(MetricsFile::of_message(shown.first().unwrap()), Some(damaged));
    assert!(metrics.add_again(damaged, Some(br#"{"step": 4, "loss": 0.5}"#), now));
    assert!(metrics.damaged().is_empty());
    let curves = metrics.curves(std::iter::empty());
    let loss = curves.iter().find(|curve| curve.name == "loss").unwrap();
    assert_eq!(loss.x, [3, 4, 5]);
}

#[test]
fn a_damaged_file_that_is_deleted_is_named_no_more() {
    let (mut metrics, now) = (Metrics::default(), Instant::now());
    metrics.add(page(&[1], &[2, 3], false), now);
    assert!(metrics.add_again(MetricsFile::Step(2), None, now));
    assert_eq!(metrics.damaged(), BTreeSet::from([message(3)]));
}

#[test]
fn a_message_names_the_file_of_an_iteration_or_a_step() {
    for (message, file) in [
        ("metrics/driver/000012.json is", Some(MetricsFile::Iteration(12))),
        ("metrics/trainer/1000001.json is", Some(MetricsFile::Step(1_000_001))),
        ("metrics/trainer/a.json is", None),
        ("metrics/other/000001.json is", None),
        ("cannot read metrics/trainer/000001.json", None),
    ] {
        assert_eq!(MetricsFile::of_message(message), file, "{message}");
    }
}

#[test]
fn a_file_of_an_unknown_message_is_named_once_and_not_read_again() {
    let (mut metrics, now) = (Metrics::default(), Instant::now());
    let unknown = || MetricsPage {
        damaged: vec!["something else".to_owned()],
        ..MetricsPage::default()
    };
    assert!(metrics.add(unknown(), now));
    assert!(!metrics.add(unknown(), now));
    assert_eq!(metrics.damaged(), BTreeSet::from(["something else".to_owned()]));
    assert_eq!(metrics.wanted(now + LOOK_AGAIN), None);
}
