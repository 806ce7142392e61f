//! The common part of the pool server and the exec server: commands, patches, evaluations, and error responses.

use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use axum::Json;
use axum::body::Bytes;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use grpo_sandbox_protocol::{
    ErrorBody, ErrorCode, ExecRequest, ExecResult, FaultOrigin, Lease, LeaseRequest, Priority, SandboxCause,
};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::Compat;
use super::retries::{AGAIN_WITHIN, Attempt, hex, random_hex, said};

/// Time of a lease that its holder has not used yet: the answer may have been lost, and the client has no other name
/// for the lease.
const UNUSED_TTL: Duration = Duration::from_secs(300);
/// Every call renews a lease for this long. The client itself ends a whole rollout after the same time.
pub const TTL: Duration = Duration::from_secs(1800);
/// Default name of the run. The queue is fair between names.
pub const RUN: &str = "compat";
/// The default working directory.
const FOLDER: &str = "/testbed";
const EXEC_SECONDS: u64 = 180;
const EVALUATE_SECONDS: u64 = 3600;
/// Time limit to create or to apply a patch.
const PATCH_SECONDS: u64 = 60;
/// Output that is kept, head and tail. As JSON it still fits into a response of sandboxd.
const OUTPUT_BYTES: u64 = 10 << 20;
/// Environment of every command. It is part of the client's configuration, but the client never sends it.
const ENVIRONMENT: [(&str, &str); 5] = [
    ("PAGER", "cat"),
    ("MANPAGER", "cat"),
    ("LESS", "-R"),
    ("PIP_PROGRESS_BAR", "off"),
    ("TQDM_DISABLE", "1"),
];
/// The suffix of an instance's id when it is leased to evaluate a patch.
const GRADING: &str = "__eval";
const REQUEST_ID: &str = "x-request-id";

/// The body of any call to either server.
#[derive(Default, Deserialize)]
#[serde(default)]
pub struct Body {
    pub lease_id: Option<String>,
    pub container_id: Option<String>,
    pub image: Option<String>,
    pub instance_id: Option<String>,
    pub command: Option<String>,
    cwd: Option<String>,
    timeout: Option<Value>,
    env: Option<BTreeMap<String, Value>>,
    patch: Option<String>,
    eval_script: Option<String>,
    /// Our extension: a name that makes a repeated call idempotent, like the header `X-Request-Id`.
    request_id: Option<String>,
}

/// An error response: `{ok: false, error}`, and the origin of the fault.
pub struct Failed {
    status: StatusCode,
    body: Value,
}

impl Failed {
    pub fn asked_wrong(error: impl Into<String>) -> Self {
        let error: String = error.into();
        Self {
            status: StatusCode::BAD_REQUEST,
            body: json!({"ok": false, "error": error, "code": ErrorCode::BadRequest, "fault": FaultOrigin::Client}),
        }
    }
}

impl From<ErrorBody> for Failed {
    fn from(error: ErrorBody) -> Self {
        let status = match error.code {
            ErrorCode::BadRequest => StatusCode::BAD_REQUEST,
            // No sandbox was free in time; if the client retries, it continues to wait.
            ErrorCode::QueueDeadline | ErrorCode::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        let mut body = json!({"ok": false, "error": error.message, "code": error.code, "fault": error.fault});
        if let (Some(cause), Some(fields)) = (error.cause, body.as_object_mut()) {
            fields.insert("cause".into(), json!(cause));
        }
        Self { status, body }
    }
}

impl IntoResponse for Failed {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.body)).into_response();
        if self.status == StatusCode::SERVICE_UNAVAILABLE {
            let after = HeaderValue::from_static("1");
            response.headers_mut().insert(header::RETRY_AFTER, after);
        }
        response
    }
}

pub type Answer = Result<Json<Value>, Failed>;

/// Parses a body and ignores its content type, as the original does. The bytes are dropped, which frees their room.
pub fn read(headers: &HeaderMap, body: Bytes) -> Result<Body, Failed> {
    let body: Option<Body> =
        serde_json::from_slice(&body).map_err(|error| Failed::asked_wrong(format!("reading the body: {error}")))?;
    let mut body = body.unwrap_or_default();
    let header = headers.get(REQUEST_ID).and_then(|value| value.to_str().ok());
    body.request_id = body.request_id.or_else(|| header.map(str::to_owned));
    body.request_id = body.request_id.filter(|id| !id.is_empty());
    Ok(body)
}

/// A required field, which must not be empty.
pub fn given(field: Option<String>, error: &str) -> Result<String, Failed> {
    field
        .filter(|text| !text.is_empty())
        .ok_or_else(|| Failed::asked_wrong(error))
}

impl Body {
    fn folder(&self) -> &str {
        self.cwd.as_deref().unwrap_or(FOLDER)
    }

    /// Whole seconds. The original accepts every value that Python can convert to a number.
    pub fn seconds(&self, default: u64) -> Result<u64, Failed> {
        let seconds = match &self.timeout {
            None | Some(Value::Null) => Some(default),
            Some(Value::Number(number)) => number
                .as_u64()
                .or_else(|| number.as_f64().filter(|n| *n >= 1.0).map(|n| n as u64)),
            Some(Value::String(text)) => text.trim().parse().ok(),
            Some(_) => None,
        };
        let error = || Failed::asked_wrong("timeout must be a number of seconds, at least 1");
        seconds.filter(|seconds| *seconds > 0).ok_or_else(error)
    }

    fn environment(&self) -> Result<BTreeMap<String, String>, Failed> {
        let mut environment: BTreeMap<String, String> = ENVIRONMENT
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        for (name, value) in self.env.iter().flatten() {
            let text = match value {
                Value::String(text) => text.clone(),
                Value::Number(_) | Value::Bool(_) => value.to_string(),
                _ => return Err(Failed::asked_wrong(format!("env: {name} must be a text"))),
            };
            environment.insert(name.clone(), text);
        }
        Ok(environment)
    }

    /// Begins a call in a lease, under the caller's own name for it if there is one.
    fn attempt(&self, compat: &Compat, what: &str, lease: &str, parts: &[&str]) -> Attempt {
        let named = self.request_id.as_deref().unwrap_or_default();
        let mut all = vec![what.as_bytes(), lease.as_bytes(), named.as_bytes()];
        all.extend(parts.iter().map(|part| part.as_bytes()));
        compat.retries.begin(said(&all), || match named {
            "" => random_hex(32),
            name => hex(&said(&[what.as_bytes(), name.as_bytes()]), 64),
        })
    }
}

/// Leases a sandbox; waits in the queue for at most `wait`. `id` makes a lease id from a number of hexadecimal digits.
pub async fn lease(
    compat: &Compat,
    run: &str,
    body: &Body,
    wait: Duration,
    id: impl Fn(String) -> String,
    digits: usize,
) -> Result<Lease, Failed> {
    let image = given(body.image.clone(), "image is required")?;
    let instance = body.instance_id.as_deref().unwrap_or_default();
    let named = body.request_id.as_deref().unwrap_or_default();
    let what = said(&[
        b"lease",
        run.as_bytes(),
        image.as_bytes(),
        instance.as_bytes(),
        named.as_bytes(),
    ]);
    let attempt = compat.retries.begin(what, || match named {
        "" => id(random_hex(digits)),
        _ => id(hex(&what, digits)),
    });
    let request = LeaseRequest {
        id: attempt.name.clone(),
        run: run.to_owned(),
        image,
        ttl_seconds: UNUSED_TTL.as_secs(),
        wait_seconds: wait.as_secs(),
        priority: match instance.ends_with(GRADING) {
            true => Priority::Grader,
            false => Priority::Agent,
        },
    };
    let unheard = Unheard {
        compat: compat.clone(),
        lease: Some(attempt.name.clone()),
    };
    let leased = compat.own.lease(&request).await;
    unheard.heard();
    attempt.heard();
    Ok(leased?)
}

/// A lease whose caller does not know it yet. If the caller disconnects and does not retry, the lease is released.
struct Unheard {
    compat: Compat,
    lease: Option<String>,
}

impl Unheard {
    fn heard(mut self) {
        self.lease = None;
    }
}

impl Drop for Unheard {
    fn drop(&mut self) {
        let (Some(lease), Ok(runtime)) = (self.lease.take(), tokio::runtime::Handle::try_current()) else {
            return;
        };
        let compat = self.compat.clone();
        runtime.spawn(async move {
            tokio::time::sleep(AGAIN_WITHIN).await;
            if compat.retries.give_up(&lease) {
                let _ = compat.own.release(&lease).await;
            }
        });
    }
}

fn shell(id: String, script: &str, body: &Body, seconds: u64) -> Result<ExecRequest, Failed> {
    Ok(ExecRequest {
        id,
        argv: ["bash", "-lc", script].map(str::to_owned).into(),
        cwd: Some(body.folder().to_owned()),
        env: body.environment()?,
        user: None,
        activate: None,
        stdin: None,
        timeout_seconds: seconds,
        max_output_bytes: Some(OUTPUT_BYTES),
    })
}

/// The exit code in `docker exec`'s convention.
fn returncode(result: &ExecResult) -> i64 {
    match (result.timed_out, result.exit_code, result.signal) {
        (true, ..) => -1,
        (false, Some(code), _) => code.into(),
        (false, None, signal) => 128 + i64::from(signal.unwrap_or(9)),
    }
}

/// The output before the timeout, with a note about the timeout.
fn timed_out(result: &ExecResult, seconds: u64) -> String {
    let said = format!("Command timed out after {seconds}s");
    match result.output.as_str() {
        "" => said,
        output if output.ends_with('\n') => format!("{output}{said}"),
        output => format!("{output}\n{said}"),
    }
}

/// A sandbox that ended through the workload's own doing is a result. It is not an error that the client should retry.
fn own_doing(error: &ErrorBody) -> bool {
    error.fault == FaultOrigin::Workload
}

pub async fn exec(compat: &Compat, lease: &str, body: &Body, command: &str) -> Answer {
    let seconds = body.seconds(EXEC_SECONDS)?;
    let environment = format!("{:?}", body.environment()?);
    let parts = [command, body.folder(), &environment];
    let attempt = body.attempt(compat, "exec", lease, &parts);
    let request = shell(attempt.name.clone(), command, body, seconds)?;
    let result = compat.own.exec(lease, TTL, &request).await;
    attempt.heard();
    Ok(Json(match result {
        Ok(result) if result.timed_out => {
            json!({"ok": true, "returncode": -1, "output": timed_out(&result, seconds)})
        }
        Ok(result) => json!({"ok": true, "returncode": returncode(&result), "output": result.output}),
        Err(error) if own_doing(&error) => json!({"ok": true, "returncode": -1, "output": error.message}),
        Err(error) => return Err(error.into()),
    }))
}

/// The patch is git's standard output and nothing else; git's complaints are in `error`.
pub async fn diff(compat: &Compat, lease: &str, body: &Body) -> Answer {
    let attempt = body.attempt(compat, "diff", lease, &[body.folder()]);
    let script = |step: &str, script: &str| shell(format!("{}-{step}", attempt.name), script, body, PATCH_SECONDS);
    let (add, diff, why) = (
        script("add", "git add -A")?,
        script("diff", "git diff --cached 2> /dev/null")?,
        script("why", "git diff --cached 2>&1 > /dev/null")?,
    );
    let taken = async {
        let added = in_time(compat.own.exec(lease, TTL, &add).await?)?;
        if added.exit_code != Some(0) {
            return Ok((String::new(), added));
        }
        let patch = in_time(compat.own.exec(lease, TTL, &diff).await?)?;
        if patch.exit_code != Some(0) {
            return Ok((patch.output, in_time(compat.own.exec(lease, TTL, &why).await?)?));
        }
        match patch.omitted_bytes {
            0 => Ok((patch.output.clone(), patch)),
            more => Err(no_patch(format!("it has {} bytes", OUTPUT_BYTES + more))),
        }
    };
    let taken: Result<(String, ExecResult), ErrorBody> = taken.await;
    attempt.heard();
    let (patch, last) = taken?;
    let code = returncode(&last);
    let error = if code == 0 { String::new() } else { last.output };
    Ok(Json(
        json!({"ok": true, "patch": patch, "returncode": code, "error": error}),
    ))
}

fn in_time(result: ExecResult) -> Result<ExecResult, ErrorBody> {
    match result.timed_out {
        false => Ok(result),
        true => Err(no_patch(format!("git took longer than {PATCH_SECONDS} s"))),
    }
}

fn no_patch(why: String) -> ErrorBody {
    ErrorBody::new(
        ErrorCode::Internal,
        FaultOrigin::Workload,
        format!("taking the patch: {why}"),
    )
}

/// The original's test for a patch: it must change a file's text.
fn is_patch(text: &str) -> bool {
    let has = |part| text.contains(part);
    has("diff --git ") && (has("--- a/") || has("--- /dev/null")) && has("+++ b/")
}

/// Stage times in the format of the newer original.
struct Stages {
    at: SystemTime,
    began: Instant,
    apply: Duration,
    eval: Duration,
}

impl Stages {
    fn begin() -> Self {
        Self {
            at: SystemTime::now(),
            began: Instant::now(),
            apply: Duration::ZERO,
            eval: Duration::ZERO,
        }
    }

    fn told(&self) -> Value {
        let millis = |of: Duration| of.as_millis() as u64;
        json!({
            "stage_started_at_ms": millis(self.at.duration_since(UNIX_EPOCH).unwrap_or_default()),
            "apply_elapsed_ms": millis(self.apply),
            "eval_elapsed_ms": millis(self.eval),
            "total_elapsed_ms": millis(self.began.elapsed()),
        })
    }
}

/// Applies a patch and runs a script. The patch resolves the task if the script exits with 0.
pub async fn evaluate(compat: &Compat, lease: &str, body: &Body) -> Answer {
    let seconds = body.seconds(EVALUATE_SECONDS)?;
    let patch = body.patch.as_deref().unwrap_or_default();
    let script = body.eval_script.as_deref().unwrap_or_default();
    if !is_patch(patch) {
        compat.own.renew(lease, TTL).await?;
        let error = "patch validation failed: expected unified git diff with diff --git headers";
        return Ok(Json(json!({"ok": true, "resolved": false, "error": error})));
    }
    let environment = format!("{:?}", body.environment()?);
    let parts = [patch, script, body.folder(), &environment];
    let attempt = body.attempt(compat, "evaluate", lease, &parts);
    let name = attempt.name.clone();
    // No part of the patch is read as shell: it comes on standard input.
    let apply = "git reset --hard HEAD < /dev/null && git clean -fd < /dev/null && git apply";
    let mut apply = shell(format!("{name}-apply"), apply, body, PATCH_SECONDS)?;
    apply.stdin = Some(format!("{patch}\n"));
    // The script is a file, so no line of it can act as an end mark. The patch cannot guess the file's name.
    let file = format!(
        "/tmp/evaluate-{}.sh",
        hex(&said(&[name.as_bytes(), lease.as_bytes()]), 32)
    );
    let run = format!("bash {file}; r=$?; rm -f {file}; exit $r");
    let run = shell(format!("{name}-run"), &run, body, seconds)?;
    let told = evaluated(compat, lease, script, &file, (&apply, &run)).await;
    attempt.heard();
    match told {
        Ok(fields) => Ok(Json(Value::Object(fields))),
        Err(error) if own_doing(&error) => {
            let error = format!("the sandbox did not outlive the evaluation: {}", error.message);
            Ok(Json(
                json!({"ok": true, "resolved": false, "returncode": -1, "error": error}),
            ))
        }
        Err(error) => Err(error.into()),
    }
}

async fn evaluated(
    compat: &Compat,
    lease: &str,
    script: &str,
    file: &str,
    (apply, run): (&ExecRequest, &ExecRequest),
) -> Result<Map<String, Value>, ErrorBody> {
    let mut stages = Stages::begin();
    let applied = compat.own.exec(lease, TTL, apply).await?;
    stages.apply = stages.began.elapsed();
    let mut told = Map::new();
    let mut tell = |name: &str, value: Value| drop(told.insert(name.to_owned(), value));
    tell("ok", json!(true));
    tell("apply_returncode", json!(returncode(&applied)));
    tell("apply_output", json!(applied.output));
    if applied.exit_code != Some(0) || applied.timed_out {
        let output = match applied.timed_out {
            true => timed_out(&applied, apply.timeout_seconds),
            false => applied.output,
        };
        tell("resolved", json!(false));
        tell("returncode", json!(-1));
        tell("error", json!(format!("git apply failed: {output}")));
        tell("timing", stages.told());
        return Ok(told);
    }
    compat
        .own
        .put(lease, file, "0644", script.as_bytes().to_vec().into())
        .await?;
    let began = Instant::now();
    let result = compat.own.exec(lease, TTL, run).await?;
    stages.eval = began.elapsed();
    tell("resolved", json!(result.exit_code == Some(0) && !result.timed_out));
    tell("returncode", json!(returncode(&result)));
    if result.timed_out {
        tell(
            "error",
            json!(format!("Evaluation timed out after {}s", run.timeout_seconds)),
        );
    }
    tell("output_truncated", json!(result.omitted_bytes > 0));
    tell("output", json!(result.output));
    tell("timing", stages.told());
    Ok(told)
}

/// The original's error for an unknown name, with the reason if it is known.
pub fn unknown(error: ErrorBody, what: &str, id: &str) -> Failed {
    let gone = error.cause == Some(SandboxCause::Expired);
    match error.code {
        ErrorCode::NoSuchLease => {
            let message = format!("Unknown {what}: {id}");
            ErrorBody { message, ..error }.into()
        }
        ErrorCode::SandboxLost if gone => {
            let message = format!("Unknown {what}: {id} (it was not renewed or not used for too long)");
            ErrorBody { message, ..error }.into()
        }
        _ => error.into(),
    }
}
