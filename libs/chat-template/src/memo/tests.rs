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

#[test]
fn ids_of_a_prompt_are_made_once_until_others_take_their_room() {
    let cache = PromptIds::default();
    let made = |text: &str| {
        let mut now = false;
        let ids = cache.get(text, || {
            now = true;
            Ok::<_, Infallible>(vec![7; text.len() / 4])
        });
        assert_eq!(ids, Ok(vec![7; text.len() / 4]));
        now
    };
    assert!(made("first prompt"));
    assert!(!made("first prompt"));
    let others = MOST_BYTES / (100 << 10) + 1;
    let text = "b".repeat(100 << 10);
    (0..others).for_each(|at| assert!(made(&format!("{at} {text}"))));
    assert!(made("first prompt"));
    let long = "c".repeat(LONGEST + 1);
    assert!(made(&long) && made(&long), "nothing is kept that is too long");
}
