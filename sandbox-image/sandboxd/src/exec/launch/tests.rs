use super::*;

#[test]
fn users_are_found_by_name_and_by_number_and_unknown_numbers_are_users_too() {
    let users = "root:x:0:0:root:/root:/bin/sh\nbroken\nagent:x:1000:1001:,,,:/home/agent:/bin/bash\n";
    let groups = "root:x:0:\nwheel:x:10:agent\n";
    let found = |wanted| User::among(wanted, users, groups).map(|user| (user.uid, user.gid));
    assert_eq!(found("agent"), Some((1000, 1001)));
    assert_eq!(found("1000"), Some((1000, 1001)));
    assert_eq!(found("agent:wheel"), Some((1000, 10)));
    assert_eq!(found("agent:5"), Some((1000, 5)));
    assert_eq!(found("4242"), Some((4242, 4242)));
    for missing in ["nobody", "", "agent:none", ":wheel", "-1"] {
        assert_eq!(found(missing), None, "{missing:?}");
    }
    assert_eq!(
        User::among("agent", users, groups).unwrap().home.as_deref(),
        Some("/home/agent")
    );
}
