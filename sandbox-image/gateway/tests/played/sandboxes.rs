//! Pods that each run a real sandboxd, on its own loopback address.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use grpo_sandbox_protocol::{KEY_ENV, SANDBOXD_PORT, Signer};

use super::{Nodes, SEED};

/// Counter of this process, whose tests run at the same time.
static ADDRESSES: AtomicU32 = AtomicU32::new(0);

#[derive(Default)]
pub struct Sandboxds {
    confined: bool,
    processes: Mutex<BTreeMap<String, Child>>,
}

/// The sandboxd binary beside the tests' folder. Cargo builds it along with the workspace's tests.
fn binary() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let folder = own.parent().unwrap().parent().unwrap();
    let binary = folder.join("sandboxd");
    assert!(
        binary.exists(),
        "{} is not built: cargo build --bin sandboxd",
        binary.display()
    );
    binary
}

impl Sandboxds {
    /// They may run arbitrary generated commands, so they run as the Linux user `nobody`.
    pub fn confined() -> Self {
        Self {
            confined: true,
            processes: Mutex::default(),
        }
    }

    fn program(&self) -> Command {
        if !self.confined {
            return Command::new(binary());
        }
        let mut unprivileged = Command::new("setpriv");
        unprivileged.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--no-new-privs"]);
        unprivileged.arg(binary()).current_dir("/");
        unprivileged
    }

    /// Tries addresses until one is free: other tests have sandboxds too.
    fn begin(&self) -> (Child, String) {
        loop {
            let nth = ADDRESSES.fetch_add(1, Ordering::Relaxed) + std::process::id() * 64;
            let address = format!("127.{}.{}.{}", 80 + (nth >> 16) % 100, (nth >> 8) % 256, 1 + nth % 250);
            let mut process = self
                .program()
                .arg("--allow-local")
                .env(KEY_ENV, Signer::from_seed(&SEED).public_key())
                // Otherwise login shells would read this machine's profile.
                .env("HOME", "/nonexistent")
                .env("GRPO_SANDBOXD_LISTEN", format!("{address}:{SANDBOXD_PORT}"))
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let mut line = String::new();
            BufReader::new(process.stdout.take().unwrap())
                .read_line(&mut line)
                .unwrap();
            if line.contains("listens on") {
                return (process, address);
            }
            process.wait().unwrap();
        }
    }
}

fn end(mut process: Child) {
    let _ = process.kill();
    let _ = process.wait();
}

impl Nodes for Sandboxds {
    fn start(&self, pod: &str) -> String {
        let (process, address) = self.begin();
        self.processes.lock().unwrap().insert(pod.to_owned(), process);
        address
    }

    fn stop(&self, pod: &str) {
        if let Some(process) = self.processes.lock().unwrap().remove(pod) {
            end(process);
        }
    }
}

impl Drop for Sandboxds {
    fn drop(&mut self) {
        std::mem::take(&mut *self.processes.lock().unwrap())
            .into_values()
            .for_each(end);
    }
}
