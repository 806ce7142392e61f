//! An agent's work in its sandbox: programs that run to their end, and sessions.
//!
//! A refused request of the policy becomes a message to the policy. A sandbox that the policy exhausted ends the
//! episode. Any other error is a fault of the infrastructure.

use super::abort::Abort;
use super::live::{Acted, LiveEpisode, Ran, millis};
use crate::sandbox::SandboxError;
use crate::traces::step;
use grpo_records::store::sha256_hex;
use grpo_records::{ExecSummary, TurnRecord};
use grpo_sandbox_protocol::{
    ExecRequest, ExecResult, FaultOrigin as Whose, SessionInput, SessionReply, SessionRequest,
};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tracing::Instrument;

/// Why an agent cannot continue in its sandbox.
#[derive(Debug)]
pub enum Halt {
    /// The sandbox is gone, by the policy's own fault.
    Exhausted,
    Abort(Abort),
}

impl From<SandboxError> for Halt {
    fn from(error: SandboxError) -> Self {
        match error.is_workloads_fault() {
            true => Self::Exhausted,
            false => Self::Abort(error.into()),
        }
    }
}

/// A program that runs in the task's repository and environment.
#[derive(Clone, Debug)]
pub struct Program {
    /// Names the program within its turn. The exec id adds a checksum of the program, so that another program is not
    /// mistaken for one that an earlier driver ran and did not record.
    pub name: String,
    pub argv: Vec<String>,
    /// Added to the task's own variables.
    pub variables: BTreeMap<String, String>,
    pub stdin: Option<String>,
    pub timeout: Duration,
    /// The longest output that is kept, head and tail together, in bytes.
    pub output_bytes: u64,
}

/// Input for a session.
#[derive(Clone, Debug)]
pub struct Typed<'a> {
    pub session: &'a str,
    /// The number of the text within the session, from 1.
    pub number: u32,
    pub text: &'a str,
    pub prompt: &'a str,
    pub timeout: Duration,
}

impl LiveEpisode<'_> {
    /// The time limit of a command that begins now: at most one second more than the episode has left.
    pub fn command_time(&self, turn: &TurnRecord) -> Duration {
        let left = self.limits.episode_timeout.saturating_sub(self.spent(turn));
        self.limits.command_timeout.min(left + Duration::from_secs(1))
    }

    /// Runs a command of the policy in the task's repository, and adds its time to the turn.
    pub async fn run_command(&self, turn: &mut TurnRecord, command: &str) -> Result<Acted, Abort> {
        let program = Program {
            name: "command".into(),
            argv: vec!["/bin/bash".into(), "-c".into(), command.to_owned()],
            variables: Default::default(),
            stdin: None,
            timeout: self.command_time(turn),
            output_bytes: self.limits.output_bytes,
        };
        let result = match self.run_program(turn, program).await {
            Ok(result) => result,
            Err(Halt::Exhausted) => return Ok(Acted::Exhausted),
            Err(Halt::Abort(abort)) => return Err(abort),
        };
        let exec = ExecSummary {
            exec: result.id,
            exit_code: result.exit_code,
            signal: result.signal,
            timed_out: result.timed_out,
            killed: result.killed.map(|killed| format!("{killed:?}")),
            output_bytes: result.output.len() as u64,
            omitted_bytes: result.omitted_bytes,
            duration_millis: result.duration_millis,
        };
        Ok(Acted::Ran(Ran {
            output: result.output,
            exec,
        }))
    }

    /// Runs a program to its end, and adds its time to the turn.
    pub async fn run_program(&self, turn: &mut TurnRecord, program: Program) -> Result<ExecResult, Halt> {
        let environment = &self.plan.task.environment;
        let words = [&program.argv[..], program.stdin.as_slice()].concat().join("\0");
        let mut variables = self.commands.environment(environment);
        variables.extend(program.variables);
        let id = format!(
            "t{}-{}-{}",
            turn.turn,
            program.name,
            &sha256_hex(words.as_bytes())[..12]
        );
        let request = ExecRequest {
            id: id.clone(),
            argv: program.argv,
            cwd: Some(environment.directory.clone()),
            env: variables,
            user: None,
            activate: self.commands.activation(environment),
            stdin: program.stdin,
            timeout_seconds: program.timeout.as_secs().max(1),
            max_output_bytes: Some(program.output_bytes),
        };
        let began = Instant::now();
        let ran = self.sandbox.exec(&request).instrument(step!("exec")).await;
        let took = millis(began.elapsed());
        let result = match ran {
            Ok(result) => result,
            Err(error) => match refusal(error) {
                // A refused program, such as one with a zero byte in it, counts as a failed command.
                Ok(message) => not_run(id, message),
                Err(halt) => {
                    turn.exec_millis += if matches!(halt, Halt::Exhausted) { took } else { 0 };
                    return Err(halt);
                }
            },
        };
        turn.exec_millis += result.duration_millis;
        turn.waited_millis += took.saturating_sub(result.duration_millis);
        Ok(result)
    }

    /// Begins a session in the task's repository and environment. The inner error says why it cannot begin.
    pub async fn begin_session(&self, id: &str, argv: Vec<String>) -> Result<Result<(), String>, Halt> {
        let environment = &self.plan.task.environment;
        let request = SessionRequest {
            id: id.to_owned(),
            argv,
            cwd: Some(environment.directory.clone()),
            env: self.commands.environment(environment),
            user: None,
            activate: self.commands.activation(environment),
        };
        match self.sandbox.begin_session(&request).await {
            Ok(()) => Ok(Ok(())),
            Err(error) => refusal(error).map(Err),
        }
    }

    /// Types into a session, and adds the time of the reply to the turn. The inner error says why nothing was typed,
    /// for example because the session has ended.
    pub async fn type_into(
        &self,
        turn: &mut TurnRecord,
        typed: Typed<'_>,
    ) -> Result<Result<SessionReply, String>, Halt> {
        let input = SessionInput {
            session: typed.session.to_owned(),
            // A driver that repeats the intent of an earlier one has the same id, so the text is typed once.
            id: format!(
                "{}-{}-{}",
                turn.turn,
                typed.number,
                &sha256_hex(typed.text.as_bytes())[..12]
            ),
            text: typed.text.to_owned(),
            prompt: Some(typed.prompt.to_owned()),
            idle_millis: None,
            timeout_millis: millis(typed.timeout),
        };
        let began = Instant::now();
        let replied = self.sandbox.session_input(&input).await;
        let took = millis(began.elapsed());
        // The program took no longer than its timeout; the rest was waiting for the gateway.
        let own = took.min(millis(typed.timeout));
        match replied {
            Ok(reply) => {
                turn.exec_millis += own;
                turn.waited_millis += took - own;
                Ok(Ok(reply))
            }
            Err(error) => refusal(error).map(Err),
        }
    }

    /// Ends a session. A missing session has ended.
    pub async fn end_session(&self, id: &str) -> Result<(), Halt> {
        match self.sandbox.close_session(id).await {
            Ok(()) => Ok(()),
            Err(error) => refusal(error).map(|_| ()),
        }
    }

    /// A session name unique to this turn and driver.
    pub fn session_name(&self, turn: &TurnRecord, what: &str) -> String {
        format!("{what}-{}-t{}", self.writer.epoch, turn.turn)
    }
}

/// The message to the policy, unless the infrastructure is at fault.
fn refusal(error: SandboxError) -> Result<String, Halt> {
    match error {
        SandboxError::Refused { message, fault, .. } if fault != Whose::Infrastructure => Ok(message),
        error => Err(error.into()),
    }
}

/// The result of a command that was never begun.
fn not_run(id: String, message: String) -> ExecResult {
    ExecResult {
        id,
        exit_code: Some(126),
        signal: None,
        timed_out: false,
        output: format!("the command cannot be run: {message}"),
        omitted_bytes: 0,
        duration_millis: 0,
        killed: None,
    }
}
