//! Starts programs, each on its own thread, because opening files, looking up users and forking may all block.

use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::sync::Arc;

use nix::sys::memfd::{MFdFlags, memfd_create};
use tokio::net::unix::pipe;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::launch::Surroundings;
use super::tree::{self, Target};
use crate::bounds;
use crate::reaper::{End, Reaper, SpawnError, Spawned};

/// A running command.
pub struct Started {
    pub target: Target,
    pub end: oneshot::Receiver<End>,
    pub printed: pipe::Receiver,
}

/// Starts programs. Cloning is cheap.
#[derive(Clone)]
pub struct Launcher {
    reaper: Reaper,
    /// `/dev/null`, opened before anything could take its place.
    null: Arc<File>,
}

impl Launcher {
    pub fn new(reaper: Reaper) -> io::Result<Self> {
        let null = File::options().read(true).write(true).open("/dev/null")?;
        Ok(Self {
            reaper,
            null: Arc::new(null),
        })
    }

    fn null(&self) -> io::Result<Stdio> {
        Ok(self.null.try_clone()?.into())
    }

    /// Starts a command whose output is read.
    pub async fn command(
        &self,
        id: &str,
        around: Surroundings,
        argv: Vec<String>,
        stdin: Option<String>,
        until: Instant,
    ) -> Result<Started, SpawnError> {
        let (printed, writer) = io::pipe()?;
        let printed = pipe::Receiver::from_owned_fd(OwnedFd::from(printed))?;
        let input = match stdin {
            Some(text) => in_memory(&text)?.into(),
            None => self.null()?,
        };
        let set_up = move || {
            let mut command = around.command(&argv[0], &argv[1..])?;
            let errors = writer.try_clone()?;
            command.process_group(0).stdin(input).stdout(writer).stderr(errors);
            Ok(command)
        };
        let (_child, target, end) = self.start(id, until, set_up).await?;
        Ok(Started { target, end, printed })
    }

    /// Starts a program that opens its input and output itself.
    pub async fn program(
        &self,
        id: &str,
        around: Surroundings,
        program: &'static str,
        arguments: Vec<String>,
        until: Instant,
    ) -> Result<(Target, oneshot::Receiver<End>), SpawnError> {
        let [input, output, errors] = [self.null()?, self.null()?, self.null()?];
        let set_up = move || {
            let mut command = around.command(program, &arguments)?;
            command.stdin(input).stdout(output).stderr(errors);
            Ok(command)
        };
        let (_child, target, end) = self.start(id, until, set_up).await?;
        Ok((target, end))
    }

    async fn start(
        &self,
        id: &str,
        until: Instant,
        set_up: impl FnOnce() -> io::Result<Command> + Send + 'static,
    ) -> Result<Spawned<Target>, SpawnError> {
        let id = id.to_owned();
        let spawn = move |mut command: Command| {
            let child = command.spawn()?;
            let target = target(&id, child.id() as i32);
            Ok((child, target))
        };
        self.reaper.start(until, set_up, spawn).await
    }
}

/// A process that has just begun.
fn target(id: &str, pid: i32) -> Target {
    bounds::give_way(pid);
    // Makes the kernel kill a command rather than sandboxd when memory runs out. If the write is not allowed, the
    // kernel kills the largest process.
    let _ = fs::write(format!("/proc/{pid}/oom_score_adj"), "1000");
    Target {
        id: id.to_owned(),
        pid,
        began: tree::began(pid),
        alone: false,
    }
}

/// An unnamed file with this text. A pipe would end only after every child forked meanwhile has reached its program, so
/// a child that the policy holds up would keep the reader waiting.
fn in_memory(text: &str) -> io::Result<File> {
    let file = File::from(memfd_create(c"stdin", MFdFlags::MFD_CLOEXEC)?);
    file.write_all_at(text.as_bytes(), 0)?;
    Ok(file)
}
