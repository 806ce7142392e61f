//! All kinds of requests, damaged at random, with and without the gateway's signature.

use std::time::{Duration, Instant};

use grpo_sandbox_protocol::{CloseRequest, ExecResult, KillRequest, SessionInput, SessionRequest};
use reqwest::Method;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::dice::{Dice, rounds};
use crate::sandbox::{Sandbox, shell};

/// No caller may wait longer.
const WITHIN: Duration = Duration::from_secs(20);
/// Seconds: no lease ends during a test.
const LONG: u64 = 3600;
/// All requests here are small, so sandboxd must stay small: maximum in kibibytes.
const MEMORY: u64 = 32 << 10;

/// sandboxd's peak memory.
fn memory(sandbox: &Sandbox) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", sandbox.process.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// Checks that sandboxd serves a command once the started commands have ended.
async fn still_serves(sandbox: &Sandbox) {
    let (body, began) = (
        serde_json::to_vec(&shell("after", "echo alive")).unwrap(),
        Instant::now(),
    );
    loop {
        let answer = sandbox.send(Method::POST, "/exec", body.clone()).await;
        if answer.status() != 503 {
            let result: ExecResult = answer.json().await.unwrap();
            assert_eq!(result.output, "alive\n");
            break;
        }
        assert!(began.elapsed() < WITHIN);
    }
    assert!(memory(sandbox) < MEMORY, "{} KiB", memory(sandbox));
}

#[tokio::test]
async fn bytes_that_are_no_request_are_refused_or_dropped() {
    let sandbox = Sandbox::bound_for(LONG).await;
    let mut dice = Dice::new(1);
    let requests: [&[u8]; 3] = [
        b"GET /healthz HTTP/1.1\r\nhost: s\r\n\r\n",
        b"POST /exec HTTP/1.1\r\nhost: s\r\ncontent-length: 12\r\nx-grpo-lease: l1\r\nx-grpo-epoch: 1\r\n\r\n{\"id\": \"e1\"}",
        b"PUT /files?path=/none HTTP/1.1\r\nhost: s\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    ];
    for round in rounds(600) {
        let bytes = dice.spoil(requests[round % requests.len()]);
        let exchange = async {
            let mut stream = TcpStream::connect(&sandbox.address).await.unwrap();
            // sandboxd may close the connection before all is sent.
            let _ = stream.write_all(&bytes).await;
            let _ = stream.shutdown().await;
            let mut answer = Vec::new();
            let _ = stream.read_to_end(&mut answer).await;
        };
        let ended = tokio::time::timeout(WITHIN, exchange).await;
        assert!(ended.is_ok(), "held by {:?}", String::from_utf8_lossy(&bytes));
    }
    still_serves(&sandbox).await;
}

#[tokio::test]
async fn a_signed_call_with_a_spoilt_body_is_answered() {
    let sandbox = Sandbox::bound_for(LONG).await;
    let mut dice = Dice::new(2);
    let mut command = shell("e1", "");
    command.argv = vec!["true".into()];
    command.timeout_seconds = 1;
    command.activate = Some("A=1".into());
    let session = SessionRequest {
        id: "s1".into(),
        argv: ["timeout", "2", "cat"].map(str::to_owned).into(),
        cwd: Some("/".into()),
        env: [("A".to_owned(), "b".to_owned())].into(),
        user: None,
        activate: None,
    };
    let input = SessionInput {
        session: "s1".into(),
        id: "i1".into(),
        text: "x\n".into(),
        prompt: Some("[xy]+(a|b)*\\s".into()),
        idle_millis: Some(5),
        timeout_millis: 9,
    };
    let kill = KillRequest {
        id: "e1".into(),
        signal: Some(15),
    };
    let calls = [
        ("/exec/start", serde_json::to_vec(&command).unwrap()),
        ("/exec/kill", serde_json::to_vec(&kill).unwrap()),
        ("/sessions", serde_json::to_vec(&session).unwrap()),
        ("/sessions/input", serde_json::to_vec(&input).unwrap()),
        (
            "/sessions/close",
            serde_json::to_vec(&CloseRequest { id: "s1".into() }).unwrap(),
        ),
    ];
    for round in rounds(500) {
        let (target, body) = &calls[round % calls.len()];
        let spoilt = dice.spoil(body);
        let shown = String::from_utf8_lossy(&spoilt).into_owned();
        let answer = tokio::time::timeout(WITHIN, sandbox.send(Method::POST, target, spoilt)).await;
        let status = answer.unwrap_or_else(|_| panic!("{target} held by {shown}")).status();
        assert!(
            status.is_success() || status.is_client_error() || status == 503,
            "{target} {status}: {shown}"
        );
    }
    still_serves(&sandbox).await;
}

#[tokio::test]
async fn a_spoilt_tar_writes_nowhere_but_below_its_folder() {
    let sandbox = Sandbox::bound_for(LONG).await;
    let from = sandbox.path("from");
    let script = format!(
        "mkdir -p {from}/a/b {from}/../beside && cd {from} && echo text > a/b/c && ln -s ../beside d && tar -cf ../t a d && rm -r {from}"
    );
    assert_eq!(sandbox.shell("e1", &script).await.exit_code, Some(0));
    let tar = std::fs::read(sandbox.path("t")).unwrap();
    let mut dice = Dice::new(3);
    for round in rounds(400) {
        let mut spoilt = tar.clone();
        // Damages the tar headers only, and corrects the checksum.
        let head = 512 * [0, 1, 2, 4][round % 4];
        for _ in 0..=dice.roll(3) {
            let byte = [b'/', b'.', 0, b'1', b'5', dice.roll(256) as u8][dice.roll(6)];
            spoilt[head + dice.roll(500)] = byte;
        }
        spoilt[head + 148..head + 156].fill(b' ');
        let sum: u32 = spoilt[head..head + 512].iter().map(|byte| u32::from(*byte)).sum();
        spoilt[head + 148..head + 155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
        let target = format!("/tree?path={}", sandbox.path("into"));
        let answer = tokio::time::timeout(WITHIN, sandbox.send(Method::PUT, &target, spoilt)).await;
        let status = answer.unwrap().status();
        assert!(status.is_success() || status.is_client_error(), "{status}");
    }
    assert_eq!(std::fs::read_dir(sandbox.path("beside")).unwrap().count(), 0);
    let mut beside: Vec<_> = std::fs::read_dir(sandbox.folder.path())
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    beside.sort();
    assert_eq!(beside, ["beside", "into", "t"]);
    still_serves(&sandbox).await;
}
