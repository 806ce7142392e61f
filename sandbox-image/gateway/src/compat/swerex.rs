//! The server side of SWE-ReX 1.4, so that its `RemoteRuntime` works in a leased sandbox.
//!
//! The runtime's host is `http://<pool>-gateway:8080/compat/swerex/<lease>`. Alternatively the lease's id is its
//! `auth_token`, and the path omits it. Every call renews the lease. Shells are sandboxd's sessions ([`shell`]); the
//! gateway keeps no state about them.

mod errors;
mod files;
mod shell;

use std::collections::BTreeMap;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{FromRequestParts, RawPathParams};
use axum::http::request::Parts;
use axum::routing::{get, post};
use axum::{Json, Router};
use grpo_sandbox_protocol::{ErrorBody, ExecRequest, ExecResult, MAX_FILE_BYTES};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::Compat;
use super::retries::{hex, random_hex, said};
use errors::{Kind, SwerexError};

/// Every call renews the lease for this long.
const TTL: Duration = Duration::from_secs(1800);
/// Default time limit of a call.
const LONGEST_SECONDS: u64 = 24 * 3600;
const OUTPUT_BYTES: u64 = 10 << 20;
/// Time limit of our own commands around a call.
const OWN_SECONDS: u64 = 30;
/// The maximum file size, plus room for the form around the file.
pub(super) const MAX_UPLOAD_BYTES: usize = MAX_FILE_BYTES + (1 << 20);

type Answer = Result<Json<Value>, SwerexError>;

pub fn router() -> Router<Compat> {
    calls().nest("/{lease}", calls())
}

fn calls() -> Router<Compat> {
    Router::new()
        .route("/", get(|| async { Json(json!({"message": "hello world"})) }))
        .route("/is_alive", get(is_alive))
        .route("/create_session", post(shell::create))
        .route("/run_in_session", post(shell::run))
        .route("/close_session", post(shell::close))
        .route("/execute", post(execute))
        .route("/read_file", post(files::read))
        .route("/write_file", post(files::write))
        .route("/upload", post(files::upload))
        .route("/close", post(close))
}

/// The sandbox of a call, and the call's name.
struct Runtime {
    compat: Compat,
    lease: String,
    /// The client's name for the call, or a generated one. It makes retries idempotent.
    call: String,
}

impl FromRequestParts<Compat> for Runtime {
    type Rejection = SwerexError;

    async fn from_request_parts(parts: &mut Parts, compat: &Compat) -> Result<Self, SwerexError> {
        let header = |name: &str| {
            let value = parts.headers.get(name).and_then(|value| value.to_str().ok());
            value.filter(|value| !value.is_empty()).map(str::to_owned)
        };
        let (call, key) = (header("x-request-id"), header("x-api-key"));
        let path = RawPathParams::from_request_parts(parts, compat).await.ok();
        let in_path = path.and_then(|path| {
            let mut named = path.iter().filter(|(name, _)| *name == "lease");
            named.next().map(|(_, lease)| lease.to_owned())
        });
        let lease = in_path.or(key).ok_or_else(SwerexError::no_key)?;
        Ok(Self {
            compat: compat.clone(),
            lease,
            call: call.map_or_else(|| random_hex(32), |name| hex(&said(&[name.as_bytes()]), 32)),
        })
    }
}

/// Parses a body and drops its bytes, which frees their room.
fn read<T: DeserializeOwned>(body: Bytes) -> Result<T, SwerexError> {
    serde_json::from_slice(&body).map_err(|error| SwerexError::unprocessable(&error.to_string()))
}

/// The limit in whole seconds. It may be absent or a fraction.
fn seconds(limit: Option<f64>) -> u64 {
    let whole = limit.filter(|limit| limit.is_finite()).map(|limit| limit.ceil() as u64);
    whole.unwrap_or(LONGEST_SECONDS).clamp(1, LONGEST_SECONDS)
}

impl Runtime {
    fn command(&self, step: &str, argv: Vec<String>, seconds: u64) -> ExecRequest {
        ExecRequest {
            id: format!("swerex-{}-{step}", self.call),
            argv,
            cwd: None,
            env: BTreeMap::new(),
            user: None,
            activate: None,
            stdin: None,
            timeout_seconds: seconds,
            max_output_bytes: Some(OUTPUT_BYTES),
        }
    }

    async fn exec(&self, request: &ExecRequest) -> Result<ExecResult, ErrorBody> {
        self.compat.own.exec(&self.lease, TTL, request).await
    }

    /// Runs one of our shell scripts with arguments. Returns its output if it succeeds.
    async fn script(&self, step: &str, script: &str, arguments: &[&str]) -> Result<String, SwerexError> {
        let words = [&["sh", "-c", script, "sh"], arguments].concat();
        let request = self.command(step, words.into_iter().map(str::to_owned).collect(), OWN_SECONDS);
        let result = self.exec(&request).await?;
        match result.exit_code {
            Some(0) => Ok(result.output),
            _ => Err(Kind::Os.error(result.output.trim())),
        }
    }

    async fn call<T: DeserializeOwned>(&self, rest: &str, body: &Value) -> Result<T, ErrorBody> {
        self.compat.own.in_lease(&self.lease, TTL, rest, body).await
    }
}

async fn is_alive(runtime: Runtime) -> Answer {
    let renewed = runtime.compat.own.renew(&runtime.lease, TTL).await;
    let message = renewed.as_ref().err().map(|error| error.message.as_str());
    Ok(Json(
        json!({"is_alive": renewed.is_ok(), "message": message.unwrap_or_default()}),
    ))
}

/// A program with arguments, or a shell command line.
#[derive(Deserialize)]
#[serde(untagged)]
enum Line {
    Text(String),
    Words(Vec<String>),
}

#[derive(Deserialize)]
struct Command {
    command: Line,
    #[serde(default)]
    timeout: Option<f64>,
    #[serde(default)]
    shell: bool,
    #[serde(default)]
    check: bool,
    #[serde(default)]
    error_msg: String,
    #[serde(default)]
    env: Option<BTreeMap<String, String>>,
    #[serde(default)]
    cwd: Option<String>,
    #[serde(default)]
    merge_output_streams: bool,
}

impl Command {
    /// As in Python's `subprocess.run`: a given environment replaces the whole environment.
    fn argv(&self) -> Result<Vec<String>, SwerexError> {
        let line = match &self.command {
            Line::Text(text) => vec![text.clone()],
            Line::Words(words) => words.clone(),
        };
        if line.is_empty() {
            return Err(Kind::Value.error("command has no words"));
        }
        let mut argv: Vec<String> = Vec::new();
        if let Some(env) = &self.env {
            argv.extend(["/usr/bin/env".to_owned(), "-i".to_owned()]);
            argv.extend(env.iter().map(|(name, value)| format!("{name}={value}")));
        }
        if self.shell {
            argv.extend(["/bin/sh".to_owned(), "-c".to_owned()]);
        }
        argv.extend(line);
        Ok(argv)
    }

    fn named(&self) -> String {
        match &self.command {
            Line::Text(text) => format!("{text:?}"),
            Line::Words(words) => format!("{words:?}"),
        }
    }
}

async fn execute(runtime: Runtime, body: Bytes) -> Answer {
    let command: Command = read(body)?;
    let mut argv = command.argv()?;
    let errors = format!("/tmp/.swerex-{}.err", random_hex(32));
    if !command.merge_output_streams {
        let apart = ["/bin/sh", "-c", "exec \"$@\" 2> \"$0\"", &errors].map(str::to_owned);
        argv.splice(0..0, apart);
    }
    let mut request = runtime.command("run", argv, seconds(command.timeout));
    request.cwd.clone_from(&command.cwd);
    let result = runtime.exec(&request).await?;
    let stderr = match command.merge_output_streams {
        true => String::new(),
        false => {
            let told = "cat -- \"$1\" 2> /dev/null; rm -f -- \"$1\"";
            runtime.script("errors", told, &[&errors]).await?
        }
    };
    if result.timed_out {
        let limit = command.timeout.unwrap_or_default();
        return Err(Kind::CommandTimeout.error(format!("Timeout ({limit}s) exceeded while running command")));
    }
    let code = result.exit_code.unwrap_or_else(|| -result.signal.unwrap_or(9));
    if command.check && code != 0 {
        let named = command.named();
        let why = format!(
            "Command {named} failed with exit code {code}. Stdout:\n{:?}\nStderr:\n{stderr:?}",
            result.output
        );
        return Err(Kind::NonZeroExitCode.error(prefixed(&command.error_msg, why)));
    }
    Ok(Json(
        json!({"stdout": result.output, "stderr": stderr, "exit_code": code}),
    ))
}

fn prefixed(message: &str, why: String) -> String {
    match message {
        "" => why,
        message => format!("{message}: {why}"),
    }
}

/// The runtime's only way to end its use of the sandbox.
async fn close(runtime: Runtime) -> Answer {
    runtime.compat.own.release(&runtime.lease).await?;
    Ok(Json(json!({})))
}
