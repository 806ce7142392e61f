use super::*;
use std::convert::Infallible;

#[test]
fn a_text_is_made_once_until_so_many_others_came() {
    let memo = Memo::new();
    let made = |text: &str| {
        let mut now = false;
        let length = memo.get(text, || {
            now = true;
            Ok::<_, Infallible>(text.len())
        });
        assert_eq!(length, Ok(text.len()));
        now
    };
    assert!(made("a"));
    assert!(!made("a"));
    (0..MOST).for_each(|at| assert!(made(&"b".repeat(2 + at))));
    assert!(made("a"));
    let long = "c".repeat(LONGEST + 1);
    assert!(made(&long) && made(&long), "nothing is kept that is too long");
}

#[test]
fn a_failure_is_not_kept() {
    let memo = Memo::new();
    assert_eq!(memo.get("a", || Err::<u8, _>("no")), Err("no"));
    assert_eq!(memo.get("a", || Ok::<_, &str>(1)), Ok(1));
}
