//! Ends sandboxd when its loop hangs or can take no new connection, or when another process has changed its limits or
//! its scheduling. Its pod then fails with a distinct exit code, and counts as the workload's fault.
//!
//! Only the workload can hold up the loop alone. A node that stalls also stalls the watchdog, so the watchdog counts
//! its checks and not the time: a stall of the whole node counts as one check.

use std::path::Path;
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use nix::errno::Errno;
use tokio::net::UnixDatagram;

use crate::bounds;
use crate::standing::Standing;

/// Pause between two beats of the loop, and between two checks.
pub const TICK: Duration = Duration::from_millis(250);
/// Checks without a beat before sandboxd ends: two seconds.
const LOOKS: u32 = 8;
/// Every this many checks, sandboxd's standing is checked: once a second.
const STANDING: u32 = 4;
/// Exit code of a sandboxd that the watchdog ended.
pub const EXIT: i32 = 70;

/// The loop's heartbeat. Cloning is cheap.
#[derive(Clone, Default)]
pub struct Watchdog(Arc<AtomicU64>);

impl Watchdog {
    /// Starts the watchdog thread, after all other threads. It ends this process when the loop hangs or its standing
    /// has changed.
    pub fn start(&self) -> std::io::Result<()> {
        let standing = Standing::now();
        let holds = move || standing.as_ref().is_none_or(Standing::holds);
        // Writes no message before the exit: the loop may hold the lock of the output, or the output may be what blocks
        // it.
        self.watch(TICK, holds, || process::exit(EXIT))
    }

    fn watch(
        &self,
        tick: Duration,
        holds: impl Fn() -> bool + Send + 'static,
        end: impl FnOnce() + Send + 'static,
    ) -> std::io::Result<()> {
        let beats = self.0.clone();
        let look = move || {
            let (mut last, mut missed, mut looks) = (0, 0, 0_u32);
            while missed < LOOKS {
                thread::sleep(tick);
                looks = looks.wrapping_add(1);
                if looks % STANDING == 0 && !holds() {
                    break;
                }
                let now = beats.load(Ordering::Relaxed);
                // Before the first beat the loop does not count as hanging.
                missed = if now == last && now > 0 { missed + 1 } else { 0 };
                last = now;
            }
            end();
        };
        thread::Builder::new().name("watchdog".into()).spawn(look).map(drop)
    }

    /// Beats for as long as the loop runs and takes new connections.
    pub async fn beat(&self) {
        // Elsewhere the kernel counts the watches of all sandboxes of the node together, and each would end for its
        // neighbour's.
        let counted_alone = bounds::is_user_namespace(Path::new(bounds::UIDS));
        self.beat_every(TICK, || !counted_alone || has_a_watch_left()).await;
    }

    async fn beat_every(&self, tick: Duration, works: impl Fn() -> bool) {
        loop {
            if works() {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
            tokio::time::sleep(tick).await;
        }
    }
}

/// Whether the loop can watch one thing more. The kernel counts the watches of a user
/// (`/proc/sys/fs/epoll/max_user_watches`), and processes of the policy can use all of them up. Then each new
/// connection is closed, and the gateway would report a sandbox that does not answer.
fn has_a_watch_left() -> bool {
    let watched = UnixDatagram::unbound().map_err(|error| error.raw_os_error());
    !matches!(watched, Err(Some(code)) if Errno::from_raw(code) == Errno::ENOSPC)
}

#[cfg(test)]
mod tests;
