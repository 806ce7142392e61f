use super::*;

#[test]
fn different_leases_have_different_keys() {
    assert_eq!(key("a-b_1"), "a-b_1");
    assert_ne!(key("a/b"), key("a.b"));
    let (long, longer) = ("x".repeat(400), "x".repeat(401));
    assert!(key(&long).len() <= 253 && key(&"/".repeat(100)).len() <= 253);
    assert_ne!(key(&long), key(&longer));
    assert!(
        key("a/b.c")
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
    );
}
