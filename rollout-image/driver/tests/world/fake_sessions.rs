//! Sessions of the gateway: real programs behind a real terminal, in the folder of the lease.

use super::*;
use regex_lite::Regex;
use std::process::Stdio;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

/// Becomes the program behind a terminal that neither echoes nor converts line ends, and forwards its input and output.
/// The program ends with its terminal even if tests run under nohup, whose ignored SIGHUP it would inherit: a debugger
/// without a terminal never stops asking.
const TERMINAL: &str = r"
import os, pty, select, signal, sys, termios
pid, fd = pty.fork()
if pid == 0:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    settings = termios.tcgetattr(0)
    settings[3] &= ~termios.ECHO
    settings[1] &= ~termios.ONLCR
    termios.tcsetattr(0, termios.TCSANOW, settings)
    os.execvp(sys.argv[1], sys.argv[1:])
while True:
    ready, _, _ = select.select([0, fd], [], [])
    try:
        if 0 in ready:
            typed = os.read(0, 65536)
            if not typed:
                break
            os.write(fd, typed)
        if fd in ready:
            said = os.read(fd, 65536)
            if not said:
                break
            os.write(1, said)
    except OSError:
        break
";

#[derive(Default)]
pub struct Sessions {
    /// By lease and id.
    running: HashMap<(String, String), Arc<tokio::sync::Mutex<Session>>>,
    /// Every typed text, in order.
    pub typed: Vec<String>,
}

struct Session {
    _child: Child,
    input: ChildStdin,
    output: ChildStdout,
    replies: HashMap<String, sandbox::SessionReply>,
}

pub(super) fn router() -> Router<Arc<Gateway>> {
    Router::new()
        .route("/v1/leases/{id}/sessions", post(begin))
        .route("/v1/leases/{id}/sessions/input", post(input))
        .route("/v1/leases/{id}/sessions/close", post(close))
}

fn unknown() -> Response {
    fake_gateway::refused(sandbox::ErrorCode::NoSuchExec, sandbox::FaultOrigin::Client)
}

async fn begin(
    State(gateway): State<Arc<Gateway>>,
    Path(lease): Path<String>,
    Json(request): Json<sandbox::SessionRequest>,
) -> Response {
    if !gateway.state.lock().unwrap().leases.contains_key(&lease) {
        return fake_gateway::refused(sandbox::ErrorCode::NoSuchLease, sandbox::FaultOrigin::Client);
    }
    let cwd = gateway.translate(&lease, request.cwd.as_deref().unwrap_or("/testbed"));
    let argv: Vec<String> = request
        .argv
        .iter()
        .map(|part| gateway.translate(&lease, part))
        .collect();
    let mut command = Command::new("python3");
    if let Some(programs) = &gateway.state.lock().unwrap().programs {
        let path = std::env::var("PATH").unwrap();
        command.env("PATH", format!("{}:{path}", programs.display()));
    }
    let mut child = command
        .env_remove("CI")
        .env_remove("BUILD_NUMBER")
        .args(["-c", TERMINAL])
        .args(argv)
        .current_dir(cwd)
        .env("TERM", "dumb")
        .envs(&request.env)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let session = Session {
        input: child.stdin.take().unwrap(),
        output: child.stdout.take().unwrap(),
        _child: child,
        replies: HashMap::new(),
    };
    let mut state = gateway.state.lock().unwrap();
    let place = state.sessions.running.entry((lease, request.id));
    place.or_insert_with(|| Arc::new(tokio::sync::Mutex::new(session)));
    StatusCode::NO_CONTENT.into_response()
}

async fn input(
    State(gateway): State<Arc<Gateway>>,
    Path(lease): Path<String>,
    Json(input): Json<sandbox::SessionInput>,
) -> Response {
    let session = {
        let mut state = gateway.state.lock().unwrap();
        let key = (lease.clone(), input.session.clone());
        let Some(session) = state.sessions.running.get(&key).cloned() else {
            return unknown();
        };
        state.sessions.typed.push(input.text.clone());
        session
    };
    let mut session = session.lock().await;
    if let Some(reply) = session.replies.get(&input.id) {
        return Json(reply.clone()).into_response();
    }
    // An ended program takes no more input.
    let _ = session
        .input
        .write_all(gateway.translate(&lease, &input.text).as_bytes())
        .await;
    let prompt = Regex::new(&format!("(?:{})\\z", input.prompt.as_deref().unwrap())).unwrap();
    let deadline = tokio::time::Instant::now() + Duration::from_millis(input.timeout_millis);
    let (mut said, mut buffer) = (Vec::new(), vec![0; 65536]);
    let until = loop {
        match tokio::time::timeout_at(deadline, session.output.read(&mut buffer)).await {
            Err(_) => break sandbox::Until::Timeout,
            Ok(Ok(0) | Err(_)) => break sandbox::Until::Ended,
            Ok(Ok(count)) => said.extend_from_slice(&buffer[..count]),
        }
        if prompt.is_match(&String::from_utf8_lossy(&said)) {
            break sandbox::Until::Prompt;
        }
    };
    let folder = gateway.translate(&lease, "/testbed");
    let reply = sandbox::SessionReply {
        id: input.id.clone(),
        output: String::from_utf8_lossy(&said).replace(&folder, "/testbed"),
        omitted_bytes: 0,
        until,
        busy: false,
        exit_code: None,
        signal: None,
    };
    session.replies.insert(input.id, reply.clone());
    Json(reply).into_response()
}

async fn close(
    State(gateway): State<Arc<Gateway>>,
    Path(lease): Path<String>,
    Json(request): Json<sandbox::CloseRequest>,
) -> StatusCode {
    gateway
        .state
        .lock()
        .unwrap()
        .sessions
        .running
        .remove(&(lease, request.id));
    StatusCode::NO_CONTENT
}
