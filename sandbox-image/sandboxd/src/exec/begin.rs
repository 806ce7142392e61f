//! How a program comes to run: on a thread of its own, because opening, looking and forking may all block.

use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::sync::Arc;

use tokio::io::AsyncWriteExt as _;
use tokio::net::unix::pipe;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::launch::Surroundings;
use super::tree::{self, Target};
use crate::bounds;
use crate::reaper::{End, Reaper, SpawnError, Spawned};

/// A command that runs.
pub struct Started {
    pub target: Target,
    pub end: oneshot::Receiver<End>,
    pub feeding: Option<JoinHandle<()>>,
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

    /// A command whose output is read.
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
        let input = match &stdin {
            Some(_) => Stdio::piped(),
            None => self.null()?,
        };
        let set_up = move || {
            let mut command = around.command(&argv[0], &argv[1..])?;
            let errors = writer.try_clone()?;
            command.process_group(0).stdin(input).stdout(writer).stderr(errors);
            Ok(command)
        };
        let (mut child, target, end) = self.start(id, until, set_up).await?;
        let feeding = match (child.stdin.take(), stdin) {
            (Some(pipe), Some(text)) => Some(feed(pipe::Sender::from_owned_fd(OwnedFd::from(pipe))?, text)),
            _ => None,
        };
        Ok(Started {
            target,
            end,
            feeding,
            printed,
        })
    }

    /// A program that opens its input and output itself.
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
        let spawn = move || {
            let child = set_up()?.spawn()?;
            let target = target(&id, child.id() as i32);
            Ok((child, target))
        };
        self.reaper.start(until, spawn).await
    }
}

/// A process that has just begun.
fn target(id: &str, pid: i32) -> Target {
    bounds::give_way(pid);
    // When memory runs out the kernel takes a command rather than sandboxd. Where it may not be said, it takes the
    // biggest.
    let _ = fs::write(format!("/proc/{pid}/oom_score_adj"), "1000");
    Target {
        id: id.to_owned(),
        pid,
        began: tree::began(pid),
        alone: false,
    }
}

/// Writes the text and closes. A program that does not read it is free not to.
fn feed(mut stdin: pipe::Sender, text: String) -> JoinHandle<()> {
    tokio::spawn(async move {
        let _ = stdin.write_all(text.as_bytes()).await;
    })
}
