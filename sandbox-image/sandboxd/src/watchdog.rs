//! Ends sandboxd when its loop does not turn any more, or when somebody has taken what it needs to: its pod then fails
//! by an exit code of its own, and that is the workload's doing.
//!
//! Nothing but the workload can hold the loop up alone. A node that stands still holds the watchdog up as well, so it
//! counts its own looks and not the time: a stall of everything is one look.

use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use crate::standing::Standing;

/// Between two beats of the loop, and between two looks at them.
pub const TICK: Duration = Duration::from_millis(250);
/// Looks without a beat in between: two seconds.
const LOOKS: u32 = 8;
/// Every so many looks it is looked whether sandboxd's standing holds: once a second.
const STANDING: u32 = 4;
/// Exit code of a sandboxd that the watchdog ended.
pub const EXIT: i32 = 70;

/// The loop's sign of life. Cloning is cheap.
#[derive(Clone, Default)]
pub struct Watchdog(Arc<AtomicU64>);

impl Watchdog {
    /// Starts the thread that looks, once all others have started; it ends this process when the loop stands still.
    pub fn start(&self) -> std::io::Result<()> {
        let standing = Standing::now();
        let holds = move || standing.as_ref().is_none_or(Standing::holds);
        // Nothing is written before: the loop may hold the lock of the output, or the output may be what blocks it.
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
                // Not begun yet is no standstill.
                missed = if now == last && now > 0 { missed + 1 } else { 0 };
                last = now;
            }
            end();
        };
        thread::Builder::new().name("watchdog".into()).spawn(look).map(drop)
    }

    /// Beats for as long as the loop turns.
    pub async fn beat(&self) {
        self.beat_every(TICK).await;
    }

    async fn beat_every(&self, tick: Duration) {
        loop {
            self.0.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(tick).await;
        }
    }
}

#[cfg(test)]
mod tests;
