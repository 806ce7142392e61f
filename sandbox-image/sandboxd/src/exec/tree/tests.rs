use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

const MYSELF: i32 = 1;

fn process(pid: i32, parent: i32, exec: Option<&str>) -> Process {
    Process {
        pid,
        parent,
        group: pid,
        session: pid,
        began: 100 + pid as u64,
        zombie: false,
        exec: exec.map(str::to_owned),
    }
}

fn found(alone: bool, all: &[Process]) -> Vec<i32> {
    let target = Target {
        id: "e1".into(),
        pid: 10,
        began: 110,
        alone,
    };
    let mut found: Vec<i32> = belonging(&target, MYSELF, all).into_iter().collect();
    found.sort_unstable();
    found
}

#[test]
fn children_daemons_and_sessions_of_a_command_are_found_and_others_are_not() {
    let in_its_session = Process {
        session: 10,
        ..process(15, MYSELF, Some("e9"))
    };
    let all = [
        process(MYSELF, 0, None),
        process(10, MYSELF, Some("e1")),
        process(11, 10, None),
        process(12, 11, None),
        process(13, MYSELF, Some("e1")),
        process(14, 13, None),
        in_its_session,
        process(20, MYSELF, Some("e2")),
        process(21, 20, None),
    ];
    assert_eq!(found(false, &all), [10, 11, 12, 13, 14, 15]);
}

#[test]
fn a_daemon_without_environment_belongs_to_the_command_that_ran_alone() {
    let older = Process {
        began: 5,
        ..process(31, MYSELF, None)
    };
    let all = [
        process(MYSELF, 0, None),
        process(10, MYSELF, Some("e1")),
        process(30, MYSELF, None),
        older,
    ];
    assert_eq!(found(true, &all), [10, 30]);
    assert_eq!(found(false, &all), [10]);
}

#[test]
fn a_daemon_with_a_forged_environment_belongs_to_the_command_that_ran_alone() {
    let server_of_earlier = Process {
        began: 5,
        ..process(31, MYSELF, Some("e0"))
    };
    let all = [
        process(MYSELF, 0, None),
        process(10, MYSELF, Some("e1")),
        process(30, MYSELF, Some("x")),
        process(32, MYSELF, Some("e0")),
        server_of_earlier,
        process(33, 31, Some("e0")),
        Process {
            began: 110,
            ..process(9, MYSELF, Some("e0"))
        },
    ];
    assert_eq!(found(true, &all), [10, 30, 32]);
}

#[test]
fn a_daemon_of_the_commands_own_tick_is_found_also_where_pids_begin_anew() {
    // The command's pid, that of a process of the same tick, and whether it began after the command.
    let cases = [
        (10, 11, true),
        (10, 9, false),
        (32_760, 32_767, true),
        (32_760, 302, true),
        (302, 32_760, false),
        (4_194_300, 301, true),
        (301, 4_194_300, false),
        (40_000, 39_000, false),
    ];
    for (command, pid, expected) in cases {
        let target = Target {
            id: "e1".into(),
            pid: command,
            began: 110,
            alone: true,
        };
        let began_at = |began| Process {
            began,
            ..process(pid, MYSELF, None)
        };
        assert_eq!(is_later(&began_at(110), &target), expected, "{command} {pid}");
        assert!(is_later(&began_at(111), &target) && !is_later(&began_at(109), &target));
    }
}

#[test]
fn what_another_sandboxd_has_started_is_not_ours() {
    let all = [
        process(MYSELF, 0, None),
        process(10, MYSELF, Some("e1")),
        process(40, 0, None),
        process(41, 40, Some("e1")),
    ];
    assert_eq!(found(false, &all), [10]);
}

#[test]
fn a_process_that_got_the_pid_later_is_another_one() {
    let mut later = process(10, MYSELF, Some("e2"));
    later.began = 999;
    later.group = 7;
    later.session = 7;
    assert_eq!(found(false, &[process(MYSELF, 0, None), later]), Vec::<i32>::new());
}

#[test]
fn a_name_with_brackets_and_spaces_is_no_trouble() {
    let stat = "42 (a) b) c) S 7 8 9 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 12345 1000 100";
    let read = parse(42, stat, b"A=b\0GRPO_EXEC_ID=e1\0").unwrap();
    assert_eq!((read.parent, read.group, read.session, read.began), (7, 8, 9, 12345));
    assert_eq!((read.zombie, read.exec.as_deref()), (false, Some("e1")));
}

#[tokio::test]
async fn what_does_not_die_is_looked_for_within_a_bound_and_the_loop_works_meanwhile() {
    let looks = Arc::new(AtomicUsize::new(0));
    let counted = looks.clone();
    // No process has this pid, so none is killed, and one seems to be left for ever.
    let killing = kill_until_none(move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
        HashSet::from([i32::MAX])
    });
    tokio::pin!(killing);
    let (began, mut rounds) = (Instant::now(), 0);
    let all_dead = loop {
        tokio::select! {
            all_dead = &mut killing => break all_dead,
            () = tokio::task::yield_now() => rounds += 1,
        }
    };
    assert!(!all_dead && began.elapsed() >= KILLED_WITHIN);
    let looks = looks.load(Ordering::Relaxed);
    assert!((1..=200).contains(&looks), "{looks} looks");
    assert!(
        rounds > looks,
        "the loop waited for a look: {rounds} rounds, {looks} looks"
    );
}
