use super::*;

#[test]
fn looking_at_nothing_is_not_agreement() {
    assert!(!holds(&[Check::new("empty")]));
}

#[test]
fn one_disagreement_is_enough_and_is_written_out() {
    let mut check = Check::new("rates");
    check.expect(true, || "never".into());
    check.expect(false, || "heldout: 3 and not 4".into());
    assert!(!holds(std::slice::from_ref(&check)));
    assert!(text(&[check]).contains("heldout: 3 and not 4"));
}
