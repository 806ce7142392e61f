use super::*;

#[test]
fn what_is_made_anew_or_gone_is_counted_and_what_is_new_is_not() {
    let uids = |pairs: &[(&str, &str)]| -> Uids { pairs.iter().map(|(a, b)| (a.to_string(), b.to_string())).collect() };
    let before = uids(&[("a", "1"), ("b", "2"), ("c", "3")]);
    let after = uids(&[("a", "1"), ("b", "9"), ("d", "4")]);
    assert_eq!(recreated_or_lost(&before, &after), 2);
}
