//! Background commands: started, inspected, read, killed; and output beyond the size of a result.

use std::time::Instant;

use grpo_sandbox_protocol::{ErrorBody, ErrorCode, ExecState, KillRequest, Killed, OutputPart};
use reqwest::Method;

use crate::sandbox::{Sandbox, is_alive, shell};

fn kill(id: &str, signal: Option<i32>) -> KillRequest {
    KillRequest { id: id.into(), signal }
}

/// The output of a command, read in parts until it has ended.
async fn all_output(sandbox: &Sandbox, id: &str) -> (String, usize) {
    let (mut whole, mut next, mut parts) = (Vec::new(), 0, 0);
    loop {
        let target = format!("/exec/output?id={id}&from={next}&limit=100000&waitSeconds=20");
        let part: OutputPart = sandbox.look(&target).await;
        assert_eq!(part.from, next);
        parts += usize::from(!part.data.is_empty());
        whole.extend_from_slice(&part.data);
        next = part.next;
        if part.ended && next == part.written {
            return (String::from_utf8(whole).unwrap(), parts);
        }
    }
}

#[tokio::test]
async fn a_command_in_the_background_is_started_once_and_looked_at_until_it_ends() {
    let sandbox = Sandbox::bound().await;
    let (runs, go) = (sandbox.path("runs"), sandbox.path("go"));
    let script = format!("echo run >> {runs}; while [ ! -e {go} ]; do sleep 0.01; done; echo done; exit 3");
    for _ in 0..2 {
        let state: ExecState = sandbox.call("/exec/start", &shell("b1", &script)).await;
        assert_eq!(state.result, None);
    }
    let early: ExecState = sandbox.look("/exec?id=b1").await;
    assert_eq!(early.result, None);
    std::fs::write(go, "").unwrap();
    let late: ExecState = sandbox.look("/exec?id=b1&waitSeconds=20").await;
    let result = late.result.unwrap();
    assert_eq!((result.exit_code, result.output.as_str()), (Some(3), "done\n"));
    assert_eq!(sandbox.shell("b1", &script).await, result);
    assert_eq!(std::fs::read_to_string(runs).unwrap(), "run\n");
}

#[tokio::test]
async fn what_a_running_command_prints_arrives_as_it_is_printed() {
    let sandbox = Sandbox::bound().await;
    let go = sandbox.path("go");
    let script = format!("echo first; while [ ! -e {go} ]; do sleep 0.01; done; echo second >&2");
    let _: ExecState = sandbox.call("/exec/start", &shell("b1", &script)).await;
    let first: OutputPart = sandbox.look("/exec/output?id=b1&waitSeconds=20").await;
    assert_eq!((first.data.as_slice(), first.ended), (&b"first\n"[..], false));
    std::fs::write(go, "").unwrap();
    let second: OutputPart = sandbox.look("/exec/output?id=b1&from=6&waitSeconds=20").await;
    assert_eq!(second.data, b"second\n");
    assert_eq!(all_output(&sandbox, "b1").await.0, "first\nsecond\n");
}

#[tokio::test]
async fn what_a_result_leaves_out_can_be_fetched() {
    let sandbox = Sandbox::bound().await;
    let mut request = shell("e1", "i=0; while [ $i -lt 40000 ]; do echo line $i; i=$((i+1)); done");
    request.max_output_bytes = Some(1000);
    let result = sandbox.exec(&request).await;
    let wanted: String = (0..40000).map(|i| format!("line {i}\n")).collect();
    assert_eq!(result.omitted_bytes, wanted.len() as u64 - 1000);
    let (whole, parts) = all_output(&sandbox, "e1").await;
    assert!(whole == wanted && parts >= 4, "{} bytes in {parts} parts", whole.len());
    let middle: OutputPart = sandbox.look("/exec/output?id=e1&from=100000&limit=7").await;
    assert_eq!(middle.data, &wanted.as_bytes()[100_000..100_007]);
}

#[tokio::test]
async fn a_command_is_killed_with_all_that_it_started_and_keeps_what_it_printed() {
    let sandbox = Sandbox::bound().await;
    let script = "setsid sleep 1000 & echo $!; sleep 1000";
    let _: ExecState = sandbox.call("/exec/start", &shell("b1", script)).await;
    let pid: OutputPart = sandbox.look("/exec/output?id=b1&waitSeconds=20").await;
    let pid = String::from_utf8(pid.data).unwrap();
    assert!(is_alive(&pid));
    let state: ExecState = sandbox.call("/exec/kill", &kill("b1", None)).await;
    let result = state.result.unwrap();
    assert_eq!(
        (result.killed, result.timed_out, result.output),
        (Some(Killed::Request), false, pid.clone())
    );
    assert!(!is_alive(&pid));
    // A second kill changes nothing.
    let again: ExecState = sandbox.call("/exec/kill", &kill("b1", None)).await;
    assert_eq!(again.result.unwrap().killed, Some(Killed::Request));
}

#[tokio::test]
async fn a_signal_reaches_the_command_and_what_an_ended_one_left_running_can_be_killed() {
    let sandbox = Sandbox::bound().await;
    let file = sandbox.path("pid");
    let script = format!(
        "setsid sh -c 'echo $$ > {file}; exec sleep 1000' > /dev/null 2>&1 &
         trap 'echo caught; exit 5' INT; while [ ! -s {file} ]; do sleep 0.01; done; cat {file}
         while :; do sleep 0.01; done"
    );
    let _: ExecState = sandbox.call("/exec/start", &shell("b1", &script)).await;
    let pid: OutputPart = sandbox.look("/exec/output?id=b1&waitSeconds=20").await;
    let pid = String::from_utf8(pid.data).unwrap();
    let _: ExecState = sandbox.call("/exec/kill", &kill("b1", Some(2))).await;
    let state: ExecState = sandbox.look("/exec?id=b1&waitSeconds=20").await;
    let result = state.result.unwrap();
    assert_eq!((result.exit_code, result.killed), (Some(5), None));
    assert!(result.output.ends_with("caught\n"));
    assert!(is_alive(&pid));
    let _: ExecState = sandbox.call("/exec/kill", &kill("b1", None)).await;
    let began = Instant::now();
    while is_alive(&pid) {
        assert!(began.elapsed().as_secs() < 30);
    }
}

#[tokio::test]
async fn a_command_that_never_was_is_told_from_one_without_output() {
    let sandbox = Sandbox::bound().await;
    for target in ["/exec?id=none", "/exec/output?id=none", "/exec/output"] {
        let answer = sandbox.send(Method::GET, target, Vec::new()).await;
        assert_eq!(answer.status(), 404, "{target}");
        assert_eq!(answer.json::<ErrorBody>().await.unwrap().code, ErrorCode::NoSuchExec);
    }
    let bad = sandbox
        .send(Method::GET, "/exec/output?id=none&from=x", Vec::new())
        .await;
    assert_eq!(bad.status(), 400);
}

/// `/proc` shows it as a zombie.
#[tokio::test]
async fn a_program_whose_first_thread_has_ended_is_killed() {
    let sandbox = Sandbox::bound().await;
    let program = "import ctypes, os, threading, time\n\
        threading.Thread(target=time.sleep, args=(1000,)).start()\n\
        print(os.getpid(), flush=True)\n\
        ctypes.CDLL(None).syscall(60, 0)";
    let mut request = shell("b1", "");
    request.argv = ["python3", "-c", program].map(str::to_owned).into();
    let _: ExecState = sandbox.call("/exec/start", &request).await;
    let pid: OutputPart = sandbox.look("/exec/output?id=b1&waitSeconds=20").await;
    let pid = String::from_utf8(pid.data).unwrap();
    let threads = || std::fs::read_dir(format!("/proc/{}/task", pid.trim())).map_or(0, |threads| threads.count());
    assert_eq!(threads(), 2);
    let state: ExecState = sandbox.call("/exec/kill", &kill("b1", None)).await;
    assert_eq!(state.result.unwrap().killed, Some(Killed::Request));
    let began = Instant::now();
    while threads() > 1 {
        assert!(began.elapsed().as_secs() < 30);
    }
}

/// The kernel cuts the name in the middle of its eighth character.
#[tokio::test]
async fn a_program_whose_name_is_no_text_is_killed_with_what_it_started() {
    let sandbox = Sandbox::bound().await;
    let program = sandbox.path("программа");
    let script = format!("cp /bin/bash {program}; exec {program} -c 'sleep 1000 & echo $!; wait'");
    let _: ExecState = sandbox.call("/exec/start", &shell("b1", &script)).await;
    let pid: OutputPart = sandbox.look("/exec/output?id=b1&waitSeconds=20").await;
    let pid = String::from_utf8(pid.data).unwrap();
    assert!(is_alive(&pid));
    let state: ExecState = sandbox.call("/exec/kill", &kill("b1", None)).await;
    assert_eq!(state.result.unwrap().killed, Some(Killed::Request));
    assert!(!is_alive(&pid));
}
