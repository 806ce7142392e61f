//! Drain: running episodes end with the old weights, and the next ones begin with the new weights.

use std::sync::Arc;
use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};

/// Episodes pass through it to the engines; a switch to other weights closes it. Cloning is cheap.
#[derive(Clone, Debug, Default)]
pub struct Gate(Arc<RwLock<()>>);

/// An episode that needs the current weights.
pub struct Inside {
    _guard: OwnedRwLockReadGuard<()>,
}

/// No episode is inside, and none can enter.
pub struct Closed {
    _guard: OwnedRwLockWriteGuard<()>,
}

impl Gate {
    /// Waits while the gate is closed or closing.
    pub async fn enter(&self) -> Inside {
        Inside {
            _guard: self.0.clone().read_owned().await,
        }
    }

    /// Closes the gate if no episode is inside.
    pub fn close_if_empty(&self) -> Option<Closed> {
        let guard = self.0.clone().try_write_owned().ok()?;
        Some(Closed { _guard: guard })
    }

    /// Lets no more episodes in, and waits until those inside have ended.
    pub async fn close(&self) -> Closed {
        Closed {
            _guard: self.0.clone().write_owned().await,
        }
    }
}

#[cfg(test)]
mod tests;
