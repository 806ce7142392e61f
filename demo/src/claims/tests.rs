use super::*;
use crate::report::BeforeAfter;

#[test]
fn a_report_that_flatters_is_found() {
    let found = Report {
        heldout: BeforeAfter {
            before: Some(0.1),
            after: Some(0.2),
        },
        ..Report::default()
    };
    assert!(check(&found, &found).disagreements.is_empty());
    let mut flattering = found.clone();
    flattering.heldout.after = Some(0.4);
    assert_eq!(check(&flattering, &found).disagreements.len(), 1);
}
