use super::*;

#[test]
fn an_account_is_allowed_by_its_name_or_by_its_end() {
    let driver = ServiceAccount::new("team", "demo-driver");
    let allows = |text: &str| text.parse::<AllowedAccount>().unwrap().allows(&driver);
    assert!(allows("team/demo-driver"));
    assert!(allows("team/*-driver"));
    assert!(!allows("other/demo-driver"));
    assert!(!allows("team/emo-driver"));
    assert!(!allows("team/*-engines"));
    let end: AllowedAccount = "team/*-driver".parse().unwrap();
    assert!(!end.allows(&ServiceAccount::new("team", "-driver")));
}

#[test]
fn what_allows_a_whole_namespace_is_refused() {
    for wrong in [
        "", "team", "team/", "/x", "team/*", "team/*-", "*/x", "team/a*b", "team/a/b", "Team/x",
    ] {
        assert!(wrong.parse::<AllowedAccount>().is_err(), "{wrong}");
    }
}
