//! Bounds the memory for the bodies of all calls together, at sandboxd and at the gateway.
//!
//! A body gets its share before it is read, and returns the share when its last byte is dropped. Small bodies need no
//! share, so a command does not wait for files to arrive.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::MAX_FILE_BYTES;

/// Bytes per permit.
const UNIT: usize = 1 << 10;
/// Bodies up to this size are not counted. With every connection of a sandboxd in use they take 8 MiB.
const SMALL: usize = 64 << 10;

/// The free memory. Cloning is cheap.
#[derive(Clone)]
pub struct Room {
    free: Arc<Semaphore>,
    units: usize,
}

/// A part of the room.
pub struct Share(Option<OwnedSemaphorePermit>);

/// Bytes and their share of the room.
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
    /// Room for `count` files of the maximum size.
    pub fn of_files(count: usize) -> Self {
        let units = count * MAX_FILE_BYTES / UNIT;
        Self {
            free: Arc::new(Semaphore::new(units)),
            units,
        }
    }

    /// Waits for room for `bytes` bytes. First come, first served.
    pub async fn take(&self, bytes: usize) -> Share {
        if bytes <= SMALL {
            return Share(None);
        }
        let wanted = units(bytes).min(self.units as u32);
        Share(self.free.clone().acquire_many_owned(wanted).await.ok())
    }
}

impl Share {
    /// The bytes, with only as much of the share as they need.
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
