use super::*;

#[test]
fn what_nobody_changes_holds() {
    assert!(Standing::now().unwrap().holds());
}

#[test]
fn threads_that_end_while_they_are_looked_at_change_nothing() {
    let until = std::time::Instant::now() + std::time::Duration::from_millis(300);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while std::time::Instant::now() < until {
                std::thread::spawn(|| ()).join().unwrap();
            }
        });
        let first = Standing::now().unwrap();
        while std::time::Instant::now() < until {
            assert!(first.holds());
        }
    });
}

#[test]
fn other_limits_or_another_priority_are_noticed() {
    let now = Standing::now().unwrap();
    let lowered = Standing {
        limits: now.limits.replace("Max open files", "Max open files 0"),
        ..now.clone()
    };
    assert!(!lowered.holds());
    let mut demoted = now;
    // This thread: another one may end before it is looked at again.
    let own = Path::new("/proc/self/task").join(nix::unistd::gettid().to_string());
    let own = demoted.threads.iter_mut().find(|(thread, _)| *thread == own);
    own.unwrap().1[0] = "19".into();
    assert!(!demoted.holds());
}

#[test]
fn niceness_and_policy_are_read_behind_any_name() {
    let stat =
        "1 (a) b) S 0 1 1 0 -1 4194560 1 0 0 0 0 0 0 0 20 -5 1 0 9 8 7 6 5 4 3 2 1 0 0 0 0 0 0 0 17 3 99 2 0 0 0";
    assert_eq!(scheduling(stat).unwrap(), ["-5", "99", "2"]);
}
