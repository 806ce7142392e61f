//! A terminal without a user: sandboxd reads and writes one end, the program has the other.
//!
//! A program gets a controlling terminal only if it began a Unix session and opened the terminal itself. So sandboxd
//! starts a second sandboxd, which does both and then becomes the program.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::time::Duration;

use nix::fcntl::OFlag;
use nix::pty::{PtyMaster, posix_openpt, ptsname_r, unlockpt};
use nix::sys::termios::{LocalFlags, OutputFlags, SetArg, tcgetattr, tcsetattr};
use nix::unistd::{Gid, Uid, chown, setsid, tcgetpgrp};
use tokio::io::unix::AsyncFd;

use crate::exec::User;
use crate::offload;

/// Argument of sandboxd: take the terminal that follows, and become the program behind it.
pub const TAKE_TERMINAL: &str = "--take-terminal";
/// Deadline to create a terminal. The policy may have replaced the kernel's multiplexer.
const OPEN_WITHIN: Duration = Duration::from_secs(5);

/// sandboxd's end of the terminal.
pub struct Terminal {
    master: AsyncFd<PtyMaster>,
    pub name: String,
}

impl Terminal {
    /// A new terminal without echo and without conversion of line ends, because no person reads it.
    pub async fn open(user: Option<User>) -> io::Result<Self> {
        let made = offload::run(OPEN_WITHIN, move || make(user.as_ref())).await;
        let (master, name) = made.map_err(io::Error::other)??;
        // The alternative is unsafe to call. Its only requirement is that the type owns its descriptor, which is true
        // here.
        #[expect(deprecated)]
        let master = AsyncFd::new(master)?;
        Ok(Self { master, name })
    }

    /// Returns 0 when no process has the other end open any more.
    pub async fn read(&self, buffer: &mut [u8]) -> usize {
        loop {
            let Ok(mut ready) = self.master.readable().await else {
                return 0;
            };
            match ready.try_io(|master| {
                let mut master: &PtyMaster = master.get_ref();
                master.read(buffer)
            }) {
                Ok(Ok(count)) => return count,
                Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(Err(_)) => return 0,
                Err(_would_block) => {}
            }
        }
    }

    pub async fn write_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let mut ready = self.master.writable().await?;
            match ready.try_io(|master| {
                let mut master: &PtyMaster = master.get_ref();
                master.write(bytes)
            }) {
                Ok(Ok(count)) => bytes = &bytes[count..],
                Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(Err(error)) => return Err(error),
                Err(_would_block) => {}
            }
        }
        Ok(())
    }

    /// The Unix process group that reads the input.
    pub fn foreground(&self) -> Option<i32> {
        tcgetpgrp(self.master.get_ref()).ok().map(|group| group.as_raw())
    }
}

fn make(user: Option<&User>) -> io::Result<(PtyMaster, String)> {
    let master = posix_openpt(OFlag::O_RDWR | OFlag::O_NOCTTY | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)?;
    unlockpt(&master)?;
    let name = ptsname_r(&master)?;
    let mut settings = tcgetattr(&master)?;
    settings.local_flags.remove(LocalFlags::ECHO);
    settings.output_flags.remove(OutputFlags::ONLCR);
    tcsetattr(&master, SetArg::TCSANOW, &settings)?;
    if let Some(user) = user {
        chown(
            name.as_str(),
            Some(Uid::from_raw(user.uid)),
            Some(Gid::from_raw(user.gid)),
        )?;
    }
    Ok((master, name))
}

/// Implements [`TAKE_TERMINAL`]. Returns only with an error.
pub fn take(mut arguments: impl Iterator<Item = OsString>) -> io::Error {
    let (Some(name), Some(program)) = (arguments.next(), arguments.next()) else {
        return io::Error::other(format!("{TAKE_TERMINAL} takes a terminal, a program and its arguments"));
    };
    let taken = || -> io::Result<[File; 3]> {
        setsid()?;
        // The first terminal that a session leader opens becomes its controlling terminal.
        let terminal = File::options().read(true).write(true).open(&name)?;
        Ok([terminal.try_clone()?, terminal.try_clone()?, terminal])
    };
    match taken() {
        Ok([input, output, errors]) => Command::new(program)
            .args(arguments)
            .stdin(input)
            .stdout(output)
            .stderr(errors)
            .exec(),
        Err(error) => error,
    }
}
