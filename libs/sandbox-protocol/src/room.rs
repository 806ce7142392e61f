//! How much memory the bodies of all calls may take together, at sandboxd and at the gateway.
//!
//! A body has its share before it is read, and gives it back when its last byte is dropped. Small ones need none, so
//! that a command does not wait for files to arrive.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::MAX_FILE_BYTES;

/// What is counted: one permit is so many bytes.
const UNIT: usize = 1 << 10;
/// Up to here nothing is counted: with every connection of a sandboxd in use that is 8 MiB.
const SMALL: usize = 64 << 10;

/// The room there is. Cloning is cheap.
#[derive(Clone)]
pub struct Room {
    free: Arc<Semaphore>,
    units: usize,
}

/// Part of it.
pub struct Share(Option<OwnedSemaphorePermit>);

/// Bytes and the room they take.
struct SizedBody {
    bytes: Vec<u8>,
    _share: Share,
}

impl AsRef<[u8]> for SizedBody {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Room {
    /// Room for so many of the largest files.
    pub fn of_files(count: usize) -> Self {
        let units = count * MAX_FILE_BYTES / UNIT;
        Self {
            free: Arc::new(Semaphore::new(units)),
            units,
        }
    }

    /// Waits until there is room for so many bytes. First come, first served.
    pub async fn take(&self, bytes: usize) -> Share {
        if bytes <= SMALL {
            return Share(None);
        }
        let wanted = units(bytes).min(self.units as u32);
        Share(self.free.clone().acquire_many_owned(wanted).await.ok())
    }
}

impl Share {
    /// The bytes, which keep as much of the share as they need.
    pub fn hold(mut self, bytes: Vec<u8>) -> Bytes {
        if let Some(permit) = &mut self.0 {
            let unneeded = permit.num_permits().saturating_sub(units(bytes.len()) as usize);
            drop(permit.split(unneeded));
        }
        Bytes::from_owner(SizedBody { bytes, _share: self })
    }
}

fn units(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(UNIT)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
