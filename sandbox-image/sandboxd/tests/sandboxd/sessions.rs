//! Programs behind a terminal.

use std::time::{Duration, Instant};

use grpo_sandbox_protocol::{ErrorBody, ErrorCode, SessionInput, SessionReply, SessionRequest, Until};
use reqwest::Method;

use crate::sandbox::{Sandbox, is_alive, until_written};

async fn begun(argv: &[&str]) -> Sandbox {
    let sandbox = Sandbox::bound().await;
    begin(&sandbox, argv).await;
    sandbox
}

async fn begin(sandbox: &Sandbox, argv: &[&str]) {
    let request = SessionRequest {
        id: "s".into(),
        argv: argv.iter().map(|word| (*word).to_owned()).collect(),
        cwd: Some("/usr".into()),
        env: [("PS1".to_owned(), "ready> ".to_owned())].into(),
        user: None,
        activate: None,
    };
    let body = serde_json::to_vec(&request).unwrap();
    let answer = sandbox.send(Method::POST, "/sessions", body).await;
    assert_eq!(answer.status(), 204);
}

fn input(id: &str, text: &str, prompt: Option<&str>) -> SessionInput {
    SessionInput {
        session: "s".into(),
        id: id.into(),
        text: text.into(),
        prompt: prompt.map(str::to_owned),
        idle_millis: None,
        timeout_millis: 20_000,
    }
}

async fn typed(sandbox: &Sandbox, id: &str, text: &str) -> SessionReply {
    sandbox.call("/sessions/input", &input(id, text, Some("ready> "))).await
}

async fn shell() -> Sandbox {
    let sandbox = begun(&["sh", "-i"]).await;
    let first = typed(&sandbox, "i0", "").await;
    assert_eq!((first.until, first.busy), (Until::Prompt, false), "{first:?}");
    sandbox
}

#[tokio::test]
async fn a_shell_keeps_folder_and_variables_from_one_line_to_the_next() {
    let sandbox = shell().await;
    let reply = typed(&sandbox, "i1", "cd /tmp; X=5\n").await;
    assert_eq!((reply.output.as_str(), reply.until), ("ready> ", Until::Prompt));
    let reply = typed(&sandbox, "i2", "pwd; echo $X; tty > /dev/null && echo terminal\n").await;
    assert_eq!(reply.output, "/tmp\n5\nterminal\nready> ");
}

#[tokio::test]
async fn a_reply_waits_for_the_prompt_and_not_for_a_pause() {
    let sandbox = shell().await;
    let reply = typed(&sandbox, "i1", "echo one; sleep 1; echo two\n").await;
    assert_eq!(
        (reply.output.as_str(), reply.until),
        ("one\ntwo\nready> ", Until::Prompt)
    );
}

#[tokio::test]
async fn without_a_prompt_a_silence_ends_the_wait_and_says_what_has_the_terminal() {
    let sandbox = begun(&["bash", "--norc", "--noediting", "-i"]).await;
    // Before its prompt the shell may be silent too.
    assert_eq!(typed(&sandbox, "i0", "").await.until, Until::Prompt);
    let mut slow = input("i1", "sleep 1000\n", None);
    slow.idle_millis = Some(1500);
    let reply: SessionReply = sandbox.call("/sessions/input", &slow).await;
    assert_eq!((reply.until, reply.busy), (Until::Idle, true), "{reply:?}");
    // As a person would.
    let reply = typed(&sandbox, "i2", "\u{3}").await;
    assert_eq!((reply.until, reply.busy), (Until::Prompt, false), "{reply:?}");
}

#[tokio::test]
async fn an_input_is_typed_once_however_often_it_is_sent() {
    let sandbox = shell().await;
    let runs = sandbox.path("runs");
    let go = sandbox.path("go");
    let line = format!("echo run >> {runs}; while [ ! -e {go} ]; do sleep 0.01; done; echo done\n");
    tokio::select! {
        reply = typed(&sandbox, "i1", &line) => panic!("it ended before it was let go: {reply:?}"),
        () = until_written(&runs) => {}
    }
    let again = futures::future::join_all((0..3).map(|_| typed(&sandbox, "i1", &line)));
    let (asked, ()) = tokio::join!(again, async { std::fs::write(go, "").unwrap() });
    assert!(asked.iter().all(|reply| reply.output == "done\nready> "), "{asked:?}");
    assert_eq!(std::fs::read_to_string(runs).unwrap(), "run\n");
}

#[tokio::test]
async fn what_takes_too_long_runs_on_and_its_output_is_in_the_next_reply() {
    let sandbox = shell().await;
    let go = sandbox.path("go");
    let line = format!("while [ ! -e {go} ]; do sleep 0.01; done; echo done\n");
    let mut short = input("i1", &line, Some("ready> "));
    short.timeout_millis = 100;
    let reply: SessionReply = sandbox.call("/sessions/input", &short).await;
    assert_eq!((reply.until, reply.output.as_str()), (Until::Timeout, ""));
    std::fs::write(go, "").unwrap();
    assert_eq!(typed(&sandbox, "i2", "").await.output, "done\nready> ");
}

#[tokio::test]
async fn a_debugger_is_stepped_through() {
    let sandbox = Sandbox::bound().await;
    let program = sandbox.path("program.py");
    std::fs::write(&program, "a = 1\nb = a + 1\nprint(b)\n").unwrap();
    begin(&sandbox, &["python3", "-m", "pdb", &program]).await;
    let prompt = Some(r"\(Pdb\) ");
    let first: SessionReply = sandbox.call("/sessions/input", &input("i0", "", prompt)).await;
    assert!(first.output.contains("a = 1"), "{first:?}");
    for (id, line) in [("i1", "next\n"), ("i2", "next\n")] {
        let reply: SessionReply = sandbox.call("/sessions/input", &input(id, line, prompt)).await;
        assert_eq!(reply.until, Until::Prompt, "{reply:?}");
    }
    let value: SessionReply = sandbox.call("/sessions/input", &input("i3", "p b\n", prompt)).await;
    assert!(value.output.contains("2\n"), "{value:?}");
    let end: SessionReply = sandbox.call("/sessions/input", &input("i4", "quit\n", prompt)).await;
    assert_eq!(end.until, Until::Ended, "{end:?}");
    assert!(end.exit_code.is_some());
}

#[tokio::test]
async fn a_program_that_ends_says_how_and_one_that_does_not_exist_is_told() {
    let sandbox = shell().await;
    let end = typed(&sandbox, "i1", "echo bye; exit 7\n").await;
    assert_eq!(
        (end.until, end.exit_code, end.output.as_str()),
        (Until::Ended, Some(7), "bye\n")
    );
    let after = typed(&sandbox, "i2", "echo more\n").await;
    assert_eq!((after.until, after.exit_code), (Until::Ended, Some(7)));
    let missing = begun(&["no-such-program"]).await;
    let reply: SessionReply = missing.call("/sessions/input", &input("i1", "", Some("ready> "))).await;
    assert_eq!((reply.until, reply.exit_code), (Until::Ended, Some(127)), "{reply:?}");
}

#[tokio::test]
async fn closing_a_session_kills_what_it_started() {
    let sandbox = shell().await;
    let file = sandbox.path("pid");
    let line = format!(
        "setsid sh -c 'echo $$ > {file}; exec sleep 1000' & while [ ! -s {file} ]; do sleep 0.01; done; cat {file}\n"
    );
    let pid = typed(&sandbox, "i1", &line).await.output;
    let pid = pid.lines().find(|line| line.parse::<u32>().is_ok()).unwrap().to_owned();
    assert!(is_alive(&pid));
    for _ in 0..2 {
        let closed = sandbox
            .send(Method::POST, "/sessions/close", br#"{"id": "s"}"#.to_vec())
            .await;
        assert_eq!(closed.status(), 204);
    }
    let began = Instant::now();
    while is_alive(&pid) {
        assert!(began.elapsed() < Duration::from_secs(30));
    }
    let body = serde_json::to_vec(&input("i2", "x\n", None)).unwrap();
    let gone = sandbox.send(Method::POST, "/sessions/input", body).await;
    assert_eq!(gone.json::<ErrorBody>().await.unwrap().code, ErrorCode::NoSuchExec);
}

#[tokio::test]
async fn a_prompt_that_is_no_pattern_is_refused() {
    let sandbox = shell().await;
    let body = serde_json::to_vec(&input("i1", "x\n", Some("("))).unwrap();
    assert_eq!(sandbox.send(Method::POST, "/sessions/input", body).await.status(), 400);
}
