//! Finds the Python modules of images: once for each image, in its own sandbox, before a run begins.
//!
//! A lost or unavailable sandbox says nothing about the image: the driver retries after a pause, within its patience.
//! Then it ends, and its next attempt asks again.

use crate::fault::DriverError;
use crate::retry::{Budget, Pauses, Retry};
use crate::sandbox::{Gateway, SandboxError};
use crate::tasks::imports::{ImageContents, ImageModules};
use grpo_records::store::sha256_hex;
use grpo_sandbox_protocol::{ExecRequest, ExecResult, Priority};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use tokio::sync::{Mutex, OnceCell};

/// How long the command may take, in seconds. It imports nothing.
const TIMEOUT: u64 = 120;
/// Longest output, in bytes: names of modules.
const MAX_OUTPUT: u64 = 4 << 20;
/// Prefixes of the list of missing programs and of the list of modules.
const LACKS: &str = "grpo-lacks:";
const MODULES: &str = "grpo-modules:";

/// Checks the programs that setup and grading of a row call.
const ASK: &str = r#"for program in bash python3 git base64 gzip mktemp find; do
  command -v "$program" > /dev/null 2>&1 || missing="${missing-} $program"
done
[ -z "${missing-}" ] || { echo "grpo-lacks:$missing"; exit 0; }
exec python3 -I -c "$1"
"#;
/// Folders without `__init__.py` are packages too.
const LIST: &str = r#"
import os, pkgutil, sys
names = {module.name for module in pkgutil.iter_modules()}
names |= set(sys.builtin_module_names) | set(getattr(sys, "stdlib_module_names", ()))
for folder in sys.path:
    if os.path.isdir(folder):
        names |= {name for name in os.listdir(folder) if name.isidentifier() and os.path.isdir(os.path.join(folder, name))}
print("grpo-modules:", *sorted(name for name in names if name.isidentifier()))
"#;

/// Asks images through the run's gateway.
pub struct Probe {
    gateway: Gateway,
    /// `request`: for one lease. `total`: for one image while sandboxes are lost.
    patience: Budget,
    pauses: Pauses,
    /// Keeps lease ids apart from an earlier driver's.
    epoch: String,
    known: Mutex<HashMap<String, Arc<OnceCell<Arc<ImageContents>>>>>,
}

impl Probe {
    pub fn new(gateway: Gateway, patience: Budget, pauses: Pauses, epoch: impl Into<String>) -> Self {
        Self {
            gateway,
            patience,
            pauses,
            epoch: epoch.into(),
            known: Mutex::default(),
        }
    }

    async fn ask(&self, image: &str) -> Result<Arc<ImageContents>, DriverError> {
        tracing::info!(image, "asking an image which Python modules it has");
        let mut retry = Retry::new(self.patience.total, self.pauses).with_jitter(image);
        for attempt in 0_u32.. {
            let why = match self.once(image, attempt).await {
                Ok(result) => match read(&result) {
                    Some(contents) => return Ok(Arc::new(contents)),
                    None => format!("exit status {:?}: {}", result.exit_code, ending(&result.output)),
                },
                Err(error) => error.to_string(),
            };
            tracing::warn!(
                image,
                why,
                "the image did not say which Python modules it has; asking again"
            );
            if retry.pause().await.is_err() {
                let within = self.patience.total;
                return Err(DriverError::Other(format!(
                    "image {image} did not say within {within:?} which Python modules it has: {why}; check the image \
                     and the sandbox pool, the run continues when it answers"
                )));
            }
        }
        unreachable!("attempts are counted without an end")
    }

    async fn once(&self, image: &str, attempt: u32) -> Result<ExecResult, SandboxError> {
        let name = format!("{} modules of {image} {attempt}", self.epoch);
        let lease = format!("p-{}", &sha256_hex(name.as_bytes())[..24]);
        let sandbox = self
            .gateway
            .lease(&lease, image, Priority::Grader, self.patience.request)
            .await?;
        let result = sandbox.exec(&request()).await;
        sandbox.release().await;
        result
    }
}

impl ImageModules for Probe {
    async fn contents(&self, image: &str) -> Result<Arc<ImageContents>, DriverError> {
        let cell = self.known.lock().await.entry(image.to_owned()).or_default().clone();
        cell.get_or_try_init(|| self.ask(image)).await.cloned()
    }
}

fn request() -> ExecRequest {
    ExecRequest {
        id: "modules".to_owned(),
        argv: ["/bin/sh", "-c", ASK, "grpo", LIST].map(str::to_owned).into(),
        cwd: Some("/".to_owned()),
        env: Default::default(),
        user: None,
        activate: None,
        stdin: None,
        timeout_seconds: TIMEOUT,
        max_output_bytes: Some(MAX_OUTPUT),
    }
}

/// The command's result; `None` if it failed.
fn read(result: &ExecResult) -> Option<ImageContents> {
    let after = |mark: &str| {
        let mut lines = result.output.lines().filter_map(|line| line.strip_prefix(mark));
        lines.next_back().map(str::split_whitespace)
    };
    if result.exit_code != Some(0) {
        return None;
    }
    if let Some(programs) = after(LACKS) {
        return Some(ImageContents::Without(programs.map(str::to_owned).collect()));
    }
    let modules: BTreeSet<String> = after(MODULES)?.map(str::to_owned).collect();
    Some(ImageContents::Modules(modules))
}

/// The end of an output, for a message.
fn ending(output: &str) -> &str {
    let output = output.trim();
    let from = output.char_indices().rev().nth(400).map_or(0, |(at, _)| at);
    &output[from..]
}

#[cfg(test)]
mod tests;
