use super::*;

#[test]
fn the_environment_is_what_follows_the_mark() {
    let activation = Activation::new("true").unwrap();
    let printed = format!(
        "hello\0A=fake\0\0{}\0A=1\0B=x=\ny\0PWD=/\0bad=\u{fffd}\0",
        activation.mark
    );
    let wanted: Variables = [("A", "1"), ("B", "x=\ny")]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into();
    assert_eq!(activation.result(&printed), Some(wanted));
    assert_eq!(activation.result("hello\0A=1\0"), None);
}

#[test]
fn each_script_and_user_has_one_environment_and_the_oldest_are_forgotten() {
    let environments = Environments::default();
    let first = environments.of("a", None);
    assert!(Arc::ptr_eq(&first, &environments.of("a", None)));
    assert!(!Arc::ptr_eq(&first, &environments.of("a", Some("agent"))));
    for nth in 0..KEPT {
        environments.of(&nth.to_string(), None);
    }
    assert!(!Arc::ptr_eq(&first, &environments.of("a", None)));
}
