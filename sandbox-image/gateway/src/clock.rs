//! The two clocks: a steady one for deadlines, and the time of day that other machines use.

use std::sync::LazyLock;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Unix milliseconds from a clock that never steps: the time of day at this gateway's start, plus the time since then.
/// A step of the node's clock neither ends nor prolongs a lease.
pub fn now() -> i64 {
    static BEGAN: LazyLock<Beginning> = LazyLock::new(|| Beginning {
        time_of_day: time_of_day(),
        instant: Instant::now(),
    });
    BEGAN.at(Instant::now())
}

/// This gateway's start, by both clocks.
struct Beginning {
    time_of_day: i64,
    instant: Instant,
}

impl Beginning {
    fn at(&self, now: Instant) -> i64 {
        let since = now.saturating_duration_since(self.instant).as_millis();
        self.time_of_day.saturating_add(since as i64)
    }
}

/// Unix milliseconds from the node's clock, which may step.
pub fn time_of_day() -> i64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map(|since| since.as_millis() as i64)
        .unwrap_or(0)
}

#[cfg(test)]
mod tests;
