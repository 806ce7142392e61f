//! Helm on the cluster of the tests.

use super::Result;
use grpo_testing::chart::SYSTEM;
use grpo_testing::cluster::{cache, kubeconfig_path};
use std::process::Command;

/// Runs helm in the operator's namespace; its own message is the error.
pub fn helm(arguments: &[&str]) -> Result<()> {
    helm_in(SYSTEM, arguments)
}

pub fn helm_in(namespace: &str, arguments: &[&str]) -> Result<()> {
    let mut command = Command::new(cache().join("bin/helm"));
    let done = command
        .arg("--kubeconfig")
        .arg(kubeconfig_path())
        .args(["--namespace", namespace])
        .args(arguments)
        .output()?;
    match done.status.success() {
        true => Ok(()),
        false => Err(format!("helm {arguments:?}: {}", String::from_utf8_lossy(&done.stderr)).into()),
    }
}
