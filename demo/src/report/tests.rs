use super::*;
use crate::statistics::Tally;

fn evaluation(weights: &str, resolved: &[(&str, u32)]) -> Evaluation {
    Evaluation {
        set: "heldout".into(),
        weights: weights.into(),
        tasks: resolved
            .iter()
            .map(|(id, n)| ((*id).to_owned(), Tally { resolved: *n, valid: 4 }))
            .collect(),
        learnt: Learnt::default(),
    }
}

#[test]
fn a_gain_compares_each_task_with_itself() {
    let before = evaluation("a-v0", &[("x", 0), ("y", 4)]);
    let after = evaluation("a-v9", &[("x", 2), ("y", 4)]);
    let set = set_report(&before, Some(&after), &Tasks::default());
    assert_eq!(set.gain.unwrap().value, 0.25);
    assert_eq!((set.before.unwrap().value, set.after.unwrap().value), (0.5, 0.75));
}

#[test]
fn a_set_measured_once_has_no_gain() {
    let set = set_report(&evaluation("a-v0", &[("x", 1)]), None, &Tasks::default());
    assert_eq!((set.after, set.gain), (None, None));
}

#[test]
fn the_report_reads_back_as_it_was_written() {
    let before = evaluation("a-v0", &[("x", 1)]);
    let mut report = Report {
        phase: "Succeeded".into(),
        ..Report::default()
    };
    report
        .sets
        .insert("heldout".into(), set_report(&before, None, &Tasks::default()));
    let json = serde_json::to_string(&report).unwrap();
    assert_eq!(serde_json::from_str::<Report>(&json).unwrap(), report);
}
