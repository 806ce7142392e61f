use super::*;

#[test]
fn a_gain_that_may_be_chance_is_called_so() {
    let mut report = Report::default();
    let gain = |low| SetReport {
        gain: Some(Estimate {
            value: 0.1,
            low,
            high: 0.2,
        }),
        ..SetReport::default()
    };
    report.sets.insert("heldout".into(), gain(-0.01));
    let doubtful = text(&report, Path::new("out"), Path::new("r.json"), None);
    assert!(doubtful.contains("contains 0"), "{doubtful}");
    report.sets.insert("heldout".into(), gain(0.01));
    assert!(text(&report, Path::new("out"), Path::new("r.json"), None).contains("excludes 0"));
}
