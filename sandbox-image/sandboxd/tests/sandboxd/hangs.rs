//! Attempts of a policy to keep sandboxd from answering: hold its children up before their programs begin, make it read
//! endless files, and leave processes beyond their commands' time limit.

use std::fs;
use std::time::{Duration, Instant};

use grpo_sandbox_protocol::{ExecResult, Killed};

use crate::sandbox::{Sandbox, is_alive, shell};

/// Takes a lease on a file: to open or execute it takes a minute, or until the holder ends.
const HOLD: &str = r#"
import fcntl, signal, sys, time
signal.signal(signal.SIGIO, signal.SIG_IGN)
file = open(sys.argv[1], "r+b")
fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
open(sys.argv[2], "w").close()
time.sleep(100)
"#;

/// A program that cannot begin, because another process of the sandbox holds its file.
async fn held_program(sandbox: &Sandbox) -> String {
    let (program, held) = (sandbox.path("program"), sandbox.path("held"));
    let script = format!(
        "cp /bin/true {program}; cat > {0}; python3 {0} {program} {held} > {0}.log 2>&1 & while [ ! -e {held} ]; do sleep 0.01; done",
        sandbox.path("hold.py"),
    );
    let mut request = shell("hold", &script);
    request.stdin = Some(HOLD.into());
    assert_eq!(sandbox.exec(&request).await.exit_code, Some(0));
    program
}

/// The child of a sandboxd thread that has not reached its program yet.
fn child_before_its_program(sandboxd: u32) -> Option<i32> {
    let tasks = fs::read_dir(format!("/proc/{sandboxd}/task")).unwrap().flatten();
    let other = tasks.filter(|task| task.file_name().to_str() != Some(&sandboxd.to_string()));
    let children = other.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    let pids = children.flat_map(|line| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
    // Before exec, the process has the name of its thread.
    let name = |pid: &String| fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let mut before = pids.filter(|pid| name(pid).starts_with("tokio"));
    before.next().and_then(|pid| pid.parse().ok())
}

/// Runs a command that cannot begin. Returns its result and the time until it was given up.
async fn given_up(sandbox: &Sandbox, id: &str, program: &str, timeout_seconds: u64) -> (ExecResult, Instant) {
    let mut request = shell(id, "");
    request.argv = vec![program.to_owned()];
    request.timeout_seconds = timeout_seconds;
    (sandbox.exec(&request).await, Instant::now())
}

#[tokio::test]
async fn a_program_that_does_not_begin_holds_neither_sandboxd_nor_its_command_beyond_its_time() {
    let sandbox = Sandbox::bound().await;
    let program = held_program(&sandbox).await;
    let others = async {
        for n in 0..20 {
            assert_eq!(sandbox.shell(&format!("other{n}"), "echo yes").await.output, "yes\n");
        }
        Instant::now()
    };
    let ((held, ended), others_done) = tokio::join!(given_up(&sandbox, "held", &program, 15), others);
    assert!(others_done < ended, "the other commands waited for it");
    assert_eq!(
        (held.exit_code, held.killed),
        (Some(126), Some(Killed::Timeout)),
        "{held:?}"
    );
    assert!(held.output.contains("held it up"), "{held:?}");
    assert!(held.duration_millis < 30_000, "{held:?}");
}

/// Between fork and exec a child holds a copy of every open pipe, including those whose end completes the start or the
/// input of another command.
#[tokio::test]
async fn commands_that_start_at_the_same_moment_do_not_wait_for_a_program_that_does_not_begin() {
    let sandbox = Sandbox::bound().await;
    let program = held_program(&sandbox).await;
    let (sandbox, program) = (&sandbox, &program);
    let held = (0..3).map(|n| async move { given_up(sandbox, &format!("held{n}"), program, 600).await });
    let others = (0..9).map(|n| async move {
        let mut request = shell(&format!("other{n}"), "cat");
        request.stdin = Some("yes".into());
        assert_eq!(sandbox.exec(&request).await.output, "yes");
    });
    tokio::select! {
        _ = futures::future::join_all(others) => {}
        (held, ..) = futures::future::select_all(held.map(Box::pin)) => panic!("a command outlasted {held:?}"),
    }
}

#[tokio::test]
async fn a_child_that_is_stopped_before_its_program_begins_is_killed_and_sandboxd_answers_meanwhile() {
    let sandbox = Sandbox::bound().await;
    let program = held_program(&sandbox).await;
    let sandboxd = sandbox.process.id();
    let stopping = tokio::task::spawn_blocking(move || {
        let child = loop {
            if let Some(child) = child_before_its_program(sandboxd) {
                break child;
            }
        };
        // Repeatedly: the child is resumed before it is killed. It may end while its file is looked up (ESRCH).
        while fs::exists(format!("/proc/{child}/stat")).unwrap_or(false) {
            let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(child), nix::sys::signal::Signal::SIGSTOP);
        }
    });
    let mut request = shell("held", "");
    request.argv = vec![program];
    request.timeout_seconds = 25;
    let held = sandbox.exec(&request).await;
    stopping.await.unwrap();
    assert_eq!((held.exit_code, held.killed), (Some(126), None), "{held:?}");
    assert!(held.duration_millis < 20_000, "{held:?}");
    assert_eq!(sandbox.shell("after", "echo yes").await.output, "yes\n");
}

#[tokio::test]
async fn commands_that_run_are_spared_when_a_later_program_does_not_begin() {
    let sandbox = Sandbox::bound().await;
    let program = held_program(&sandbox).await;
    // More than the threads that start programs.
    let running = (0..12).map(|n| {
        let (sandbox, id) = (&sandbox, format!("running{n}"));
        async move { sandbox.shell(&id, "sleep 4; echo done").await }
    });
    let mut request = shell("held", "");
    request.argv = vec![program];
    request.timeout_seconds = 1;
    let held = async {
        sandbox.shell("first", "true").await;
        sandbox.exec(&request).await
    };
    let (running, held) = tokio::join!(futures::future::join_all(running), held);
    assert!(running.iter().all(|result| result.output == "done\n"), "{running:?}");
    assert_eq!(held.exit_code, Some(126), "{held:?}");
}

#[tokio::test]
async fn many_programs_that_do_not_begin_do_not_hold_sandboxd() {
    let sandbox = Sandbox::bound().await;
    let program = held_program(&sandbox).await;
    let held = (0..12).map(|n| {
        let mut request = shell(&format!("held{n}"), "");
        request.argv = vec![program.clone()];
        request.timeout_seconds = 10;
        let sandbox = &sandbox;
        async move { sandbox.exec(&request).await }
    });
    let healthz = format!("http://{}/healthz", sandbox.address);
    let health = async {
        for _ in 0..100 {
            let began = Instant::now();
            assert_eq!(sandbox.http.get(&healthz).send().await.unwrap().status(), 200);
            assert!(began.elapsed() < Duration::from_secs(8));
        }
    };
    let (held, ()) = tokio::join!(futures::future::join_all(held), health);
    assert!(held.iter().all(|result| result.exit_code == Some(126)), "{held:?}");
    assert_eq!(sandbox.shell("after", "echo yes").await.output, "yes\n");
}

#[tokio::test]
async fn commands_that_end_at_once_all_tell_their_own_end() {
    let sandbox = Sandbox::bound().await;
    for round in 0..10 {
        let commands = (0..12).map(|n| {
            let (sandbox, id) = (&sandbox, format!("e{round}-{n}"));
            async move { sandbox.shell(&id, &format!("exit {n}")).await.exit_code }
        });
        let codes = futures::future::join_all(commands).await;
        assert_eq!(codes, (0..12).map(Some).collect::<Vec<_>>());
    }
}

#[tokio::test]
async fn a_daemon_that_forges_its_mark_does_not_outlive_its_commands_time() {
    let sandbox = Sandbox::bound().await;
    let earlier = sandbox
        .shell("e1", "setsid sleep 1000 > /dev/null 2>&1 & echo $!")
        .await
        .output;
    let pids = sandbox.path("pids");
    let script = format!(
        "for mark in x e1; do (GRPO_EXEC_ID=$mark setsid sh -c 'echo $$ >> {pids}; exec sleep 1000' > /dev/null 2>&1 &); done
         while [ $(wc -l < {pids}) -lt 2 ]; do sleep 0.01; done; sleep 1000"
    );
    let mut request = shell("e2", &script);
    request.timeout_seconds = 5;
    assert!(sandbox.exec(&request).await.timed_out);
    let pids = fs::read_to_string(pids).unwrap();
    assert_eq!(pids.lines().filter(|pid| is_alive(pid)).count(), 0, "{pids}");
    assert!(is_alive(&earlier), "what an earlier command left is spared");
}

/// A process of the same user tampers with sandboxd. Returns sandboxd's exit code.
async fn tampered(what: &str) -> Option<i32> {
    let mut sandbox = Sandbox::bound().await;
    let script = format!("import os, resource; pid = {}; {what}", sandbox.process.id());
    let mut request = shell("tamper", "");
    request.argv = ["python3", "-c", &script].map(str::to_owned).into();
    // sandboxd may end before it answers.
    let _ = tokio::time::timeout(Duration::from_secs(10), sandbox.try_exec(&request)).await;
    let ended = tokio::task::spawn_blocking(move || sandbox.process.wait().unwrap());
    let ended = tokio::time::timeout(Duration::from_secs(60), ended).await;
    ended.unwrap().unwrap().code()
}

#[tokio::test]
async fn a_sandboxd_whose_descriptors_are_taken_ends_by_itself() {
    assert_eq!(
        tampered("resource.prlimit(pid, resource.RLIMIT_NOFILE, (0, 0))").await,
        Some(70)
    );
}

#[tokio::test]
async fn a_sandboxd_whose_processor_time_is_taken_ends_by_itself() {
    assert_eq!(tampered("os.setpriority(os.PRIO_PROCESS, pid, 19)").await, Some(70));
    assert_eq!(
        tampered("os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0))").await,
        Some(70)
    );
}
