//! Prepares a fresh sandbox for a task: runs its setup, and removes the files that the policy must not see.

use crate::patch::{self, hidden};
use crate::sandbox::{Sandbox, SandboxError};
use crate::tasks::Task;
use bytes::Bytes;
use grpo_sandbox_protocol::ExecRequest;

/// How long the setup may take.
const TIMEOUT_SECONDS: u64 = 300;

/// Who works in the sandbox next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorksNext {
    Policy,
    Grader,
}

/// Sets up the sandbox; the inner `Err` says why that failed, a defect of the task.
pub async fn run(
    sandbox: &Sandbox,
    task: &Task,
    id: &str,
    next: WorksNext,
) -> Result<Result<(), String>, SandboxError> {
    let environment = &task.environment;
    let hidden: Vec<String> = match next {
        WorksNext::Policy => hidden::absolute(&environment.directory, &environment.hidden),
        WorksNext::Grader => Vec::new(),
    };
    if environment.setup.is_empty() && hidden.is_empty() {
        return Ok(Ok(()));
    }
    if !environment.setup.is_empty() {
        let script = Bytes::from(environment.setup.clone());
        sandbox.put_file(patch::SETUP_FILE, script).await?;
    }
    let request = ExecRequest {
        id: id.to_owned(),
        argv: patch::set_up(&hidden),
        cwd: None,
        env: Default::default(),
        user: None,
        activate: None,
        stdin: None,
        timeout_seconds: TIMEOUT_SECONDS,
        max_output_bytes: Some(64 << 10),
    };
    let result = sandbox.exec(&request).await?;
    Ok(match result.exit_code {
        Some(0) => Ok(()),
        code => Err(format!(
            "the setup of task {} in image {} ended with exit status {code:?}: {}",
            task.instance,
            task.image,
            result.output.trim()
        )),
    })
}
