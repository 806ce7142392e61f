use super::*;

/// A page of steps, with the numbers of its damaged files.
fn page(steps: &[u32], damaged: &[u32], more: bool) -> MetricsPage {
    let step = |step: &u32| StepMetrics {
        step: *step,
        loss: 0.5,
        ..StepMetrics::default()
    };
    MetricsPage {
        steps: steps.iter().map(step).collect(),
        damaged: damaged.iter().map(u32::to_string).collect(),
        more,
        ..MetricsPage::default()
    }
}

fn shown(metrics: &Metrics) -> Vec<&str> {
    metrics.damaged().iter().map(String::as_str).collect()
}

#[test]
fn a_read_continues_after_the_last_number() {
    let mut metrics = Metrics::default();
    // A run that continues another one has no first steps.
    assert!(metrics.add(page(&[7, 8], &[], true)));
    assert!(metrics.add(page(&[9], &[], false)));
    assert_eq!(metrics.wanted().steps_after, 9);
    assert!(!metrics.add(page(&[], &[], false)));
}

#[test]
fn a_repaired_file_has_its_numbers_and_its_message_goes() {
    let mut metrics = Metrics::default();
    metrics.add(page(&[1, 2], &[], false));
    assert!(metrics.add(page(&[3, 5], &[4], true)));
    assert_eq!(metrics.wanted().steps_after, 5);
    assert!(metrics.add(page(&[6], &[], false)));
    assert_eq!(shown(&metrics), ["4"]);
    // The next read begins before the damaged file. The same once more is no news.
    assert_eq!(metrics.wanted().steps_after, 3);
    assert!(!metrics.add(page(&[5, 6], &[4], false)));
    assert_eq!(metrics.wanted().steps_after, 3);
    assert!(metrics.add(page(&[4, 5, 6], &[], false)));
    assert!(shown(&metrics).is_empty());
    assert_eq!(metrics.wanted().steps_after, 6);
    let curves = metrics.curves(std::iter::empty());
    let loss = curves.iter().find(|curve| curve.name == "loss").unwrap();
    assert_eq!(loss.x, [1, 2, 3, 4, 5, 6]);
}

#[test]
fn the_message_stays_until_a_whole_read_finds_no_damage() {
    let mut metrics = Metrics::default();
    metrics.add(page(&[2], &[1], false));
    assert!(!metrics.add(page(&[2], &[1], true)));
    assert_eq!(shown(&metrics), ["1"]);
    assert!(metrics.add(page(&[3], &[], false)));
    assert_eq!(shown(&metrics), ["1"]);
}
