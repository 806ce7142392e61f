//! Bash sessions: a shell behind a terminal of sandboxd.
//!
//! A command goes into a file that the shell sources, so it may have any number of lines of any length, despite the
//! line limit of a terminal. After it the shell prints this call's mark with the exit code, and then the prompt. The
//! prompt is unique: it is made from the lease and the session's name. No input is typed twice: sandboxd knows each
//! input by the call's name.

use std::time::Duration;

use axum::Json;
use axum::body::Bytes;
use grpo_sandbox_protocol::{ErrorBody, ErrorCode, SessionReply, Until};
use regex_lite::Regex;
use serde::Deserialize;
use serde_json::{Value, json};

use super::errors::{Kind, SwerexError};
use super::{Answer, OWN_SECONDS, Runtime, TTL, prefixed, read, seconds};
use crate::compat::retries::{hex, random_hex, said};

/// Seconds added to the client's limit for the start of a shell: on a busy node it takes longer than the client
/// expects.
const BEGINNING: f64 = 10.0;
const DEFAULT: &str = "default";

fn default_session() -> String {
    DEFAULT.to_owned()
}

#[derive(Deserialize)]
pub(super) struct Create {
    #[serde(default)]
    startup_source: Vec<String>,
    #[serde(default = "default_session")]
    session: String,
    #[serde(default)]
    startup_timeout: Option<f64>,
}

/// One of the client's actions, by `action_type`.
#[derive(Deserialize)]
pub(super) struct Action {
    #[serde(default = "default_session")]
    session: String,
    #[serde(default)]
    action_type: String,
    #[serde(default)]
    command: String,
    #[serde(default)]
    timeout: Option<f64>,
    #[serde(default)]
    is_interactive_command: bool,
    #[serde(default)]
    is_interactive_quit: bool,
    #[serde(default)]
    check: Option<String>,
    #[serde(default)]
    error_msg: String,
    #[serde(default)]
    expect: Vec<String>,
    #[serde(default)]
    n_retry: Option<u32>,
}

#[derive(Deserialize)]
pub(super) struct Close {
    #[serde(default = "default_session")]
    session: String,
}

/// A shell in a sandbox.
struct Shell<'a> {
    runtime: &'a Runtime,
    session: &'a str,
    prompt: String,
}

/// The output of a shell before its next prompt.
struct Printed {
    output: String,
    /// The awaited pattern that ended the output.
    expected: String,
}

impl<'a> Shell<'a> {
    fn of(runtime: &'a Runtime, session: &'a str) -> Self {
        let name = said(&[runtime.lease.as_bytes(), session.as_bytes()]);
        Self {
            runtime,
            session,
            prompt: format!("ready-{}> ", hex(&name, 16)),
        }
    }

    fn id(&self) -> String {
        format!("swerex-{}", self.session)
    }

    async fn input(
        &self,
        step: &str,
        text: &str,
        prompt: Option<&str>,
        within: Duration,
    ) -> Result<SessionReply, SwerexError> {
        let id = format!("{}-{step}", self.runtime.call);
        let millis = within.as_millis() as u64;
        let mut input = json!({"session": self.id(), "id": id, "text": text, "timeoutMillis": millis});
        match prompt {
            Some(prompt) => input["prompt"] = json!(prompt),
            None => input["idleMillis"] = json!(0),
        }
        let reply: Result<SessionReply, ErrorBody> = self.runtime.call("/sessions/input", &input).await;
        reply.map_err(|error| match error.code {
            ErrorCode::NoSuchExec => Kind::NoSession.error(format!("session {:?} does not exist", self.session)),
            _ => error.into(),
        })
    }

    /// Types the input, and waits for the prompt or one of the patterns. `None` if the time is up first.
    async fn typed(
        &self,
        step: &str,
        text: &str,
        expect: &[String],
        within: Duration,
    ) -> Result<Option<Printed>, SwerexError> {
        let own = regex_lite::escape(&self.prompt);
        let patterns: Vec<&str> = expect.iter().map(String::as_str).chain([own.as_str()]).collect();
        let any = patterns.join("|");
        let reply = self.input(step, text, Some(&any), within).await?;
        let output = plain(&reply.output);
        match reply.until {
            Until::Prompt => {}
            Until::Ended => {
                let how = (reply.exit_code, reply.signal);
                return Err(Kind::ShellEnded.with(
                    format!(
                        "the shell of session {:?} has ended; it had printed:\n{output}",
                        self.session
                    ),
                    json!({"exit_code": how.0, "signal": how.1}),
                ));
            }
            Until::Idle | Until::Timeout => return Ok(None),
        }
        for (nth, pattern) in patterns.iter().enumerate() {
            let at_end = Regex::new(&format!("(?:{pattern})\\z"))
                .map_err(|error| Kind::Value.error(format!("expect {pattern:?}: {error}")))?;
            if let Some(found) = at_end.find(&output) {
                let expected = expect.get(nth).unwrap_or(&self.prompt).clone();
                return Ok(Some(Printed {
                    output: output[..found.start()].replace(&self.prompt, ""),
                    expected,
                }));
            }
        }
        Ok(Some(Printed {
            output,
            expected: self.prompt.clone(),
        }))
    }

    /// Whether the session exists. Only sandboxd knows.
    async fn exists(&self) -> Result<bool, SwerexError> {
        let input =
            json!({"session": self.id(), "id": random_hex(32), "text": "", "idleMillis": 0, "timeoutMillis": 0});
        let reply: Result<Value, ErrorBody> = self.runtime.call("/sessions/input", &input).await;
        match reply {
            Ok(_) => Ok(true),
            Err(error) if error.code == ErrorCode::NoSuchExec => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

fn observed(output: &str, exit_code: Option<i64>, expected: &str) -> Answer {
    Ok(Json(json!({
        "output": output,
        "exit_code": exit_code,
        "failure_reason": "",
        "expect_string": expected,
        "session_type": "bash",
    })))
}

pub(super) async fn create(runtime: Runtime, body: Bytes) -> Answer {
    let asked: Create = read(body)?;
    let shell = Shell::of(&runtime, &asked.session);
    if shell.exists().await? {
        return Err(Kind::SessionExists.error(format!("session {} already exists", asked.session)));
    }
    // Line editing would print extra characters.
    let request = json!({"id": shell.id(), "argv": ["/usr/bin/env", "bash", "--noediting"],
        "env": {"PS1": shell.prompt, "PS2": "", "PS0": ""}});
    let _: Value = runtime.call("/sessions", &request).await?;
    let within = Duration::from_secs_f64(asked.startup_timeout.unwrap_or(1.0).clamp(0.0, 3600.0) + BEGINNING);
    let mark = random_hex(32);
    // The startup files may have changed the prompt.
    let mut lines: Vec<String> = asked
        .startup_source
        .iter()
        .map(|file| format!("source {file}"))
        .collect();
    lines.push(format!("PS1='{}' PS2= PS0= PROMPT_COMMAND=; echo {mark}", shell.prompt));
    let text = format!("{}\n", lines.join(" ; "));
    let begun = shell.typed("begin", &text, &[], within).await?;
    let Some(mut printed) = begun else {
        let message = format!("the shell was not ready within {within:?}");
        return Err(Kind::CommandTimeout.error(message));
    };
    // Without the mark, this was the prompt of the shell's start, and the answer to the input is still to come.
    if !printed.output.contains(&mark) {
        let again = shell.typed("ready", "", &[], within).await?;
        printed = again.unwrap_or(printed);
    }
    let output = printed.output.replace(&mark, "");
    Ok(Json(json!({"output": output.trim(), "session_type": "bash"})))
}

pub(super) async fn run(runtime: Runtime, body: Bytes) -> Answer {
    let action: Action = read(body)?;
    let shell = Shell::of(&runtime, &action.session);
    if action.action_type == "bash_interrupt" {
        return interrupt(&shell, &action).await;
    }
    let within = match action.timeout {
        Some(limit) if limit.is_finite() && limit >= 0.0 => Duration::from_secs_f64(limit),
        _ => Duration::from_secs(seconds(None)),
    };
    if action.is_interactive_command || action.is_interactive_quit {
        return converse(&shell, &action, within).await;
    }
    let (id, mark) = (
        random_hex(32),
        format!("exit-{}", hex(&said(&[runtime.call.as_bytes()]), 32)),
    );
    check_syntax(&runtime, &action.command).await?;
    let file = format!("/tmp/.swerex-{id}.sh");
    let content = format!("{}\n", action.command).into_bytes();
    runtime
        .compat
        .own
        .put(&runtime.lease, &file, "0600", content.into())
        .await?;
    let text = format!(". {file} ; builtin printf '%s:%d;' {mark} \"$?\" ; command rm -f {file}\n");
    let Some(printed) = shell.typed("run", &text, &action.expect, within).await? else {
        return Err(out_of_time(&action));
    };
    let end = Regex::new(&format!("{mark}:([0-9]+);")).map_err(|error| Kind::Value.error(error.to_string()))?;
    let found = end.captures(&printed.output);
    let code = found.as_ref().and_then(|found| found[1].parse::<i64>().ok());
    let output = match found.as_ref().and_then(|found| found.get(0)) {
        Some(end) => &printed.output[..end.start()],
        // A pattern matched first, so the command still runs.
        None => &printed.output,
    };
    match action.check.as_deref().unwrap_or("raise") {
        "ignore" => observed(output, None, &printed.expected),
        "raise" if code != Some(0) && found.is_some() => {
            let (command, code) = (&action.command, code.unwrap_or(-1));
            let why = format!("Command {command:?} failed with exit code {code}. Here is the output:\n{output:?}");
            Err(Kind::NonZeroExitCode.error(prefixed(&action.error_msg, why)))
        }
        _ => observed(output, code, &printed.expected),
    }
}

fn out_of_time(action: &Action) -> SwerexError {
    let (limit, command) = (action.timeout.unwrap_or_default(), &action.command);
    Kind::CommandTimeout.error(format!(
        "timeout after {limit} seconds while running command {command:?}"
    ))
}

async fn check_syntax(runtime: &Runtime, command: &str) -> Result<(), SwerexError> {
    let argv = ["/usr/bin/env", "bash", "-n"].map(str::to_owned).into();
    let mut request = runtime.command("syntax", argv, OWN_SECONDS);
    request.stdin = Some(format!("{command}\n"));
    let result = runtime.exec(&request).await?;
    if result.exit_code == Some(0) {
        return Ok(());
    }
    let (code, said) = (result.exit_code.unwrap_or(-1), result.output);
    let message = format!("Error (exit code {code}) while checking bash command \n{command:?}\n{said}");
    Err(Kind::BashSyntax.with(message, json!({"bash_stdout": "", "bash_stderr": said})))
}

/// Types the command into a running program that the shell started.
async fn converse(shell: &Shell<'_>, action: &Action, within: Duration) -> Answer {
    let text = format!("{}\n", action.command);
    match shell.typed("say", &text, &action.expect, within).await? {
        Some(printed) => observed(printed.output.trim(), Some(0), &printed.expected),
        None => Err(out_of_time(action)),
    }
}

/// Sends Ctrl-C as often as requested, then stops and kills the job.
async fn interrupt(shell: &Shell<'_>, action: &Action) -> Answer {
    let within = Duration::from_secs_f64(action.timeout.unwrap_or(0.2).clamp(0.1, 600.0));
    for nth in 0..action.n_retry.unwrap_or(3) {
        let typed = shell
            .typed(&format!("interrupt-{nth}"), "\u{3}", &action.expect, within)
            .await?;
        if let Some(printed) = typed {
            return observed(printed.output.trim(), Some(0), &printed.expected);
        }
    }
    shell.typed("stop", "\u{1a}", &action.expect, within).await?;
    let killed = shell
        .typed(
            "kill",
            "kill -9 %1\n",
            &action.expect,
            within.max(Duration::from_secs(1)),
        )
        .await?;
    match killed {
        Some(printed) => observed(printed.output.trim(), Some(0), &printed.expected),
        None => Err(Kind::CommandTimeout.error("Failed to interrupt session")),
    }
}

pub(super) async fn close(runtime: Runtime, body: Bytes) -> Answer {
    let asked: Close = read(body)?;
    let shell = Shell::of(&runtime, &asked.session);
    runtime.compat.own.renew(&runtime.lease, TTL).await?;
    if !shell.exists().await? {
        let message = format!("session {:?} does not exist", asked.session);
        return Err(Kind::NoSession.error(message));
    }
    let _: Value = runtime.call("/sessions/close", &json!({"id": shell.id()})).await?;
    Ok(Json(json!({"session_type": "bash"})))
}

/// Removes terminal escape sequences.
fn plain(text: &str) -> String {
    let text = text.replace("\r\n", "\n");
    match Regex::new("\u{1b}[@-_][0-?]*[ -/]*[@-~]") {
        Ok(escapes) => escapes.replace_all(&text, "").into_owned(),
        Err(_) => text,
    }
}
