//! The patch of an attempt: what the policy changed in the tree that it began with.
//!
//! An image may change files of the base commit. The driver looks before the first turn how the tree differs from that
//! commit, and makes the changes durable. Those of one sandbox need not be another's, so each attempt has its own file.
//! Most images change nothing: then one look, in the first sandbox of a task, serves all episodes of the task.

use super::once;
use super::{Abort, Episodes};
use crate::fault::DriverError;
use crate::patch;
use crate::sandbox::{Sandbox, SandboxError};
use crate::tasks::Task;
use bytes::Bytes;
use grpo_records::paths;
use grpo_sandbox_protocol::{ExecRequest, FaultOrigin as Whose};
use std::collections::HashMap;
use std::sync::Arc;
use tokio::sync::{Mutex, OnceCell};

/// The time limit of a command that reads the whole tree, in seconds.
const TREE_TIMEOUT: u64 = 300;

/// For each row, by checksum, and image: the first lease of this driver whose sandbox was looked at, if its tree
/// differed from the base commit.
pub type Starts = Mutex<HashMap<(String, String), Arc<OnceCell<Option<String>>>>>;

/// Why an attempt has no patch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoPatch {
    /// What the policy did prevents it, such as a deleted repository.
    Unreadable,
    /// It is longer than [`patch::MAX_PATCH`].
    TooLarge,
}

impl Episodes {
    /// Makes the changes of the image durable, before the policy can make any.
    pub(super) async fn keep_start(&self, sandbox: &Sandbox, task: &Task, dir: &str, base: &str) -> Result<(), Abort> {
        let key = (task.sha256.clone(), task.image.clone());
        let cell = self.starts.lock().await.entry(key).or_default().clone();
        let first = cell.get_or_try_init(|| async {
            let differs = self.write_start(sandbox, task, dir, base).await?;
            Ok::<_, Abort>(differs.then(|| sandbox.id().to_owned()))
        });
        match first.await? {
            Some(first) if first != sandbox.id() => self.write_start(sandbox, task, dir, base).await.map(|_| ()),
            _ => Ok(()),
        }
    }

    /// Returns whether there are changes to keep. If they cannot be told, patches are against the base commit, and have
    /// them.
    async fn write_start(&self, sandbox: &Sandbox, task: &Task, dir: &str, base: &str) -> Result<bool, Abort> {
        let argv = patch::start(&task.environment.directory, base);
        let request = ExecRequest {
            max_output_bytes: Some(patch::MAX_START),
            ..self.own_command("start", argv, TREE_TIMEOUT)
        };
        let result = sandbox.exec(&request).await?;
        // The only part that git does not encode is a link's target. Without its bytes the diff makes another link.
        let is_whole = result.omitted_bytes == 0 && !result.output.contains(char::REPLACEMENT_CHARACTER);
        if result.exit_code != Some(0) || !is_whole {
            let (instance, image) = (&task.instance, &task.image);
            tracing::warn!(
                %instance, %image, exit = ?result.exit_code, omitted = result.omitted_bytes,
                "patches of this task also have what its image changed after the base commit: git failed, or the image \
                 has a repository inside the repository, or its changes are too long or not UTF-8"
            );
            return Ok(false);
        }
        if result.output.is_empty() {
            return Ok(false);
        }
        let path = paths::start(dir, sandbox.id());
        once::create_bytes(&self.store, &self.writer, &path, result.output.into()).await?;
        Ok(true)
    }

    async fn stored_start(&self, dir: &str, lease: &str) -> Result<Option<String>, DriverError> {
        let path = paths::start(dir, lease);
        match self.store.exists(&path).await? {
            true => {
                let bytes = self.store.bytes(&path).await?;
                // It was the text of a command's output.
                Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
            }
            false => Ok(None),
        }
    }

    /// Takes the patch; the inner `Err` says why it has no patch.
    pub(super) async fn take_patch(
        &self,
        sandbox: &Sandbox,
        task: &Task,
        dir: &str,
        base: &str,
    ) -> Result<Result<Bytes, NoPatch>, Abort> {
        let repository = &task.environment.directory;
        let start = self.stored_start(dir, sandbox.id()).await?;
        let argv = match &start {
            Some(_) => patch::take_since(repository, base),
            None => patch::take(repository, base),
        };
        let request = ExecRequest {
            stdin: start,
            ..self.own_command("patch", argv, TREE_TIMEOUT)
        };
        let taken = match sandbox.exec(&request).await {
            Ok(result) if result.exit_code == Some(0) => sandbox.get_file(patch::PATCH_FILE).await,
            Ok(result) => {
                tracing::info!(lease = sandbox.id(), exit = ?result.exit_code, output = %result.output, "no patch to take");
                return Ok(Err(match result.exit_code {
                    Some(patch::PATCH_TOO_LARGE) => NoPatch::TooLarge,
                    _ => NoPatch::Unreadable,
                }));
            }
            Err(error) => Err(error),
        };
        match taken {
            // A copy: the answer holds `Room` that the grader's answers need, and the patch may wait long for its
            // grader.
            Ok(patch) if patch.len() <= patch::MAX_PATCH => Ok(Ok(Bytes::copy_from_slice(&patch))),
            Ok(_) => Ok(Err(NoPatch::TooLarge)),
            Err(SandboxError::NoSuchFile { .. }) => Ok(Err(NoPatch::Unreadable)),
            Err(error) if error.is_workloads_fault() => Ok(Err(NoPatch::Unreadable)),
            // Too large to read: a process that the policy left running grew it after it was measured.
            Err(SandboxError::Refused { fault, .. }) if fault != Whose::Infrastructure => Ok(Err(NoPatch::TooLarge)),
            Err(error) => Err(error.into()),
        }
    }
}
