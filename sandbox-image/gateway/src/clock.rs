//! Time as deadlines count it, and as other machines tell it.

use std::sync::LazyLock;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Unix milliseconds by a clock that never steps: the time of day when this gateway began, and what has passed since.
/// A step of the node's clock ends no lease and prolongs none.
pub fn now() -> i64 {
    static BEGAN: LazyLock<Beginning> = LazyLock::new(|| Beginning {
        time_of_day: time_of_day(),
        instant: Instant::now(),
    });
    BEGAN.at(Instant::now())
}

/// When this gateway began, by both clocks.
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

/// Unix milliseconds as the node's clock has them now, which may step.
pub fn time_of_day() -> i64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map(|since| since.as_millis() as i64)
        .unwrap_or(0)
}

#[cfg(test)]
mod tests;
