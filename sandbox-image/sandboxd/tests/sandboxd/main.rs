//! sandboxd as a real process: its guarantees to the gateway, which hold under any workload in the sandbox.

#![allow(clippy::unwrap_used)]

mod background;
mod dice;
mod garbage;
mod hangs;
mod relays;
mod sandbox;
mod sessions;
mod surroundings;

use std::{
    path::Path,
    time::{Duration, Instant},
};

use grpo_sandbox_protocol::{ErrorBody, ErrorCode, FaultOrigin, Killed, RESET_EXIT};
use reqwest::Method;

use sandbox::{Sandbox, is_alive, shell, until_written};

#[tokio::test]
async fn a_command_gets_the_images_environment_and_its_own_and_not_the_key() {
    let sandbox = Sandbox::bound().await;
    let mut request = shell("e1", "echo $FROM_THE_IMAGE $MINE $GRPO_GATEWAY_KEY; cat; pwd; exit 3");
    request.env.insert("MINE".into(), "too".into());
    request.stdin = Some("fed\n".into());
    request.cwd = Some("/usr".into());
    let result = sandbox.exec(&request).await;
    assert_eq!(
        (result.output.as_str(), result.exit_code),
        ("yes too\nfed\n/usr\n", Some(3))
    );
    assert_eq!((result.signal, result.timed_out, result.killed), (None, false, None));
}

#[tokio::test]
async fn stdout_and_stderr_stay_in_the_order_they_were_written() {
    let sandbox = Sandbox::bound().await;
    let result = sandbox
        .shell("e1", "for i in 1 2 3; do echo out$i; echo err$i >&2; done")
        .await;
    assert_eq!(result.output, "out1\nerr1\nout2\nerr2\nout3\nerr3\n");
}

#[tokio::test]
async fn a_timeout_kills_children_sessions_and_daemons_and_keeps_what_was_printed() {
    let sandbox = Sandbox::bound().await;
    let pids = sandbox.path("pids");
    let script = format!(
        "echo before; sleep 1000 & echo $! >> {pids}
         setsid sh -c 'echo $$ >> {pids}; exec sleep 1000' &
         (setsid sh -c 'echo $$ >> {pids}; exec sleep 1000' &)
         (env -i setsid sh -c 'echo $$ >> {pids}; exec sleep 1000' &)
         while [ $(wc -l < {pids}) -lt 4 ]; do sleep 0.01; done; echo started; sleep 1000"
    );
    let mut request = shell("e1", &script);
    request.timeout_seconds = 5;
    let result = sandbox.exec(&request).await;
    assert_eq!(result.output, "before\nstarted\n");
    assert_eq!((result.timed_out, result.killed), (true, Some(Killed::Timeout)));
    assert!(result.duration_millis < 20_000, "{result:?}");
    let pids = std::fs::read_to_string(pids).unwrap();
    assert_eq!(pids.lines().count(), 4);
    assert_eq!(
        pids.lines().filter(|pid| is_alive(pid)).collect::<Vec<_>>(),
        Vec::<&str>::new()
    );
}

#[tokio::test]
async fn a_timeout_spares_what_an_earlier_command_left_running() {
    let sandbox = Sandbox::bound().await;
    let server = sandbox
        .shell("e1", "setsid sleep 1000 > /dev/null 2>&1 & echo $!")
        .await
        .output;
    let mut request = shell("e2", "sleep 1000");
    request.timeout_seconds = 1;
    assert!(sandbox.exec(&request).await.timed_out);
    assert!(is_alive(&server));
}

#[tokio::test]
async fn a_background_process_that_holds_the_output_does_not_hold_the_command() {
    let sandbox = Sandbox::bound().await;
    let began = Instant::now();
    let result = sandbox.shell("e1", "sleep 1000 & echo $!").await;
    assert_eq!(result.exit_code, Some(0));
    assert!(began.elapsed() < Duration::from_secs(30));
    assert!(is_alive(&result.output));
    // A process that keeps printing does not delay the command, and does not die when its output is dropped.
    let result = sandbox
        .shell("e2", "(while :; do echo x; sleep 0.01; done) & echo $!")
        .await;
    let pid = result.output.lines().find(|line| *line != "x").unwrap().to_owned();
    let later = sandbox.shell("e3", "sleep 0.3").await;
    assert_eq!(later.exit_code, Some(0));
    assert!(is_alive(&pid));
}

#[tokio::test]
async fn the_same_id_runs_once_also_when_asked_at_the_same_time() {
    let sandbox = Sandbox::bound().await;
    let runs = sandbox.path("runs");
    let script = format!("echo run >> {runs}; sleep 0.3; echo done");
    let asks = (0..4).map(|_| sandbox.shell("e1", &script));
    let results = futures::future::join_all(asks).await;
    let again = sandbox.shell("e1", &script).await;
    assert!(results.iter().all(|result| *result == again));
    assert_eq!(std::fs::read_to_string(runs).unwrap(), "run\n");
}

#[tokio::test]
async fn a_command_whose_caller_went_away_runs_on_and_its_result_can_be_had() {
    let sandbox = Sandbox::bound().await;
    let runs = sandbox.path("runs");
    let go = sandbox.path("go");
    let script = format!("echo run >> {runs}; while [ ! -e {go} ]; do sleep 0.01; done; echo done");
    tokio::select! {
        result = sandbox.shell("e1", &script) => panic!("it ended before it was let go: {result:?}"),
        () = until_written(&runs) => {}
    }
    let (again, ()) = tokio::join!(sandbox.shell("e1", &script), async { std::fs::write(go, "").unwrap() });
    assert_eq!(again.output, "done\n");
    assert_eq!(std::fs::read_to_string(runs).unwrap(), "run\n");
}

#[tokio::test]
async fn of_much_output_head_and_tail_are_kept() {
    let sandbox = Sandbox::bound().await;
    let mut request = shell(
        "e1",
        "echo first; head -c 5000000 /dev/zero | tr '\\0' x; echo; echo last",
    );
    request.max_output_bytes = Some(100);
    let result = sandbox.exec(&request).await;
    assert!(result.output.starts_with("first\n") && result.output.ends_with("\nlast\n"));
    assert_eq!(result.omitted_bytes, 5_000_000 + 12 - 100);
    assert!(result.output.len() < 200);
}

#[tokio::test]
async fn how_a_command_ended_is_told_apart() {
    let sandbox = Sandbox::bound().await;
    let killed = sandbox.shell("e1", "kill -TERM $$").await;
    assert_eq!((killed.exit_code, killed.signal, killed.killed), (None, Some(15), None));
    let mut missing = shell("e2", "");
    missing.argv = vec!["no-such-program".into()];
    assert_eq!(sandbox.exec(&missing).await.exit_code, Some(127));
    let mut nowhere = shell("e3", "true");
    nowhere.cwd = Some("/no/such/folder".into());
    let nowhere = sandbox.exec(&nowhere).await;
    assert_eq!(nowhere.exit_code, Some(126));
    assert!(nowhere.output.contains("/no/such/folder"));
}

#[tokio::test]
async fn orphans_are_reaped() {
    let sandbox = Sandbox::bound().await;
    let pid = sandbox
        .shell("e1", "(sleep 0.1 > /dev/null 2>&1 & echo $!)")
        .await
        .output;
    let there = |pid: &str| Path::new("/proc").join(pid.trim()).exists();
    let until = Instant::now() + Duration::from_secs(60);
    while there(&pid) {
        assert!(Instant::now() < until, "{pid} is a zombie");
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn files_go_in_and_come_out_with_their_mode() {
    let sandbox = Sandbox::bound().await;
    let target = format!("/files?path={}&mode=0755", sandbox.path("a/b/c%20d"));
    assert_eq!(
        sandbox
            .send(Method::PUT, &target, b"\x00bytes\xff".to_vec())
            .await
            .status(),
        204
    );
    let answer = sandbox.send(Method::GET, &target, Vec::new()).await;
    assert_eq!(answer.bytes().await.unwrap().as_ref(), b"\x00bytes\xff");
    let mode = sandbox
        .shell("e1", &format!("stat -c %a '{}'", sandbox.path("a/b/c d")))
        .await;
    assert_eq!(mode.output, "755\n");
    let missing = format!("/files?path={}", sandbox.path("none"));
    let missing = sandbox.send(Method::GET, &missing, Vec::new()).await;
    assert_eq!(missing.status(), 404);
    assert_eq!(missing.json::<ErrorBody>().await.unwrap().code, ErrorCode::NoSuchFile);
    for bad in ["/files?path=relative", "/files?path=/a/../b", "/files"] {
        assert_eq!(sandbox.send(Method::PUT, bad, Vec::new()).await.status(), 400, "{bad}");
    }
    let device = sandbox.send(Method::GET, "/files?path=/dev/zero", Vec::new()).await;
    assert!(device.status().is_client_error());
}

#[tokio::test]
async fn a_whole_folder_goes_in_and_comes_out_as_a_tar() {
    let sandbox = Sandbox::bound().await;
    let made = sandbox
        .shell(
            "e1",
            &format!(
                "mkdir -p {0}/a && echo x > {0}/a/x && ln -s a {0}/b && tar -C {0} -cf {0}.tar .",
                sandbox.path("from")
            ),
        )
        .await;
    assert_eq!(made.exit_code, Some(0), "{made:?}");
    let tar = std::fs::read(sandbox.path("from.tar")).unwrap();
    let into = format!("/tree?path={}&links=refuse", sandbox.path("to/here"));
    assert_eq!(sandbox.send(Method::PUT, &into, tar).await.status(), 204);
    let out = sandbox.send(Method::GET, &into, Vec::new()).await;
    std::fs::write(sandbox.path("out.tar"), out.bytes().await.unwrap()).unwrap();
    let seen = sandbox
        .shell(
            "e2",
            &format!("cd {} && tar -tf out.tar && cat to/here/b/x", sandbox.path("")),
        )
        .await;
    assert_eq!(seen.output, "a/\na/x\nb\nx\n");
    for (method, target, status) in [
        (Method::PUT, into.clone(), 400),
        (Method::GET, format!("/tree?path={}", sandbox.path("none")), 404),
        (Method::GET, format!("/tree?path={}", sandbox.path("from.tar")), 404),
        (Method::GET, "/tree?path=/tmp&links=some".to_owned(), 400),
    ] {
        let answer = sandbox.send(method, &target, b"no tar".to_vec()).await;
        assert_eq!(answer.status(), status, "{target}");
    }
}

#[tokio::test]
async fn nobody_is_obeyed_without_signature_or_for_another_lease() {
    let sandbox = Sandbox::start();
    let healthz = format!("http://{}/healthz", sandbox.address);
    assert_eq!(sandbox.http.get(healthz).send().await.unwrap().status(), 200);
    let body = serde_json::to_vec(&shell("e1", "true")).unwrap();
    let unbound = sandbox.send(Method::POST, "/exec", body.clone()).await;
    let unbound: ErrorBody = unbound.json().await.unwrap();
    assert_eq!(
        (unbound.code, unbound.fault),
        (ErrorCode::WrongLease, FaultOrigin::Infrastructure)
    );
    assert_eq!(sandbox.bind("l1", 1, 60).await.status(), 204);
    let unsigned = sandbox
        .http
        .post(format!("http://{}/exec", sandbox.address))
        .body(body.clone());
    let unsigned = unsigned.send().await.unwrap();
    assert_eq!(unsigned.status(), 401);
    let unsigned: ErrorBody = unsigned.json().await.unwrap();
    assert_eq!(
        (unsigned.code, unsigned.fault),
        (ErrorCode::BadSignature, FaultOrigin::Infrastructure)
    );
    assert_eq!(sandbox.bind("l2", 2, 60).await.status(), 409);
    let other = sandbox.send_as("l1", 2, Method::POST, "/exec", body.clone()).await;
    assert_eq!(other.json::<ErrorBody>().await.unwrap().code, ErrorCode::WrongLease);
    assert_eq!(sandbox.send(Method::POST, "/exec", body).await.status(), 200);
}

#[tokio::test]
async fn what_runs_in_the_sandbox_is_not_let_in() {
    let sandbox = Sandbox::started_with(&[]);
    let healthz = format!("http://{}/healthz", sandbox.address);
    assert!(sandbox.http.get(healthz).send().await.is_err());
}

#[tokio::test]
async fn a_sandbox_that_is_given_back_ends_with_the_code_by_which_its_container_begins_anew() {
    let mut sandbox = Sandbox::bound().await;
    let left = sandbox
        .shell("e1", "env -i setsid sleep 1000 > /dev/null 2>&1 & echo $!")
        .await
        .output;
    assert_eq!(
        sandbox
            .send_as("l2", 2, Method::POST, "/reset", Vec::new())
            .await
            .status(),
        409
    );
    assert_eq!(sandbox.send(Method::POST, "/reset", Vec::new()).await.status(), 204);
    let ended = tokio::task::spawn_blocking(move || sandbox.process.wait().unwrap());
    let ended = tokio::time::timeout(Duration::from_secs(60), ended)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(ended.code(), Some(RESET_EXIT.into()));
    assert!(!is_alive(&left));
}

#[tokio::test]
async fn when_the_lease_has_run_out_everything_is_killed_and_sandboxd_ends_well() {
    let mut sandbox = Sandbox::start();
    // Seconds: enough for the call that follows on a machine under load.
    assert_eq!(sandbox.bind("l1", 1, 5).await.status(), 204);
    let left = sandbox
        .shell("e1", "env -i setsid sleep 1000 > /dev/null 2>&1 & echo $!")
        .await
        .output;
    assert!(is_alive(&left));
    let ended = tokio::task::spawn_blocking(move || (sandbox.process.wait().unwrap(), sandbox));
    let (ended, _sandbox) = tokio::time::timeout(Duration::from_secs(60), ended)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(ended.code(), Some(0));
    assert!(!is_alive(&left));
}
