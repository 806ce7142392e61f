//! Files that one driver writes once.
//!
//! A second driver that works on the same attempt of an episode would write other bytes: its turns, times and epoch are
//! its own. The one that finds that out stops, so that no episode is made of both.

use crate::fault::DriverError;
use bytes::Bytes;
use grpo_records::{Created, RunStore, Writer};
use serde::Serialize;

/// Creates a record, or finds the very same one.
pub(super) async fn create<T: Serialize>(
    store: &RunStore,
    writer: &Writer,
    path: &str,
    record: &T,
) -> Result<(), DriverError> {
    let json = serde_json::to_vec(record)
        .map_err(|error| DriverError::Other(format!("writing {path}: the record cannot be put into JSON: {error}")))?;
    create_bytes(store, writer, path, [&json[..], b"\n"].concat().into()).await
}

/// Creates a file, or finds one of the same bytes.
pub(super) async fn create_bytes(
    store: &RunStore,
    writer: &Writer,
    path: &str,
    bytes: Bytes,
) -> Result<(), DriverError> {
    match store.create_bytes(path, bytes.clone()).await? {
        Created::Written { .. } => Ok(()),
        Created::Existed if store.bytes(path).await? == bytes => Ok(()),
        Created::Existed => Err(DriverError::OtherDriver {
            path: path.to_owned(),
            epoch: writer.epoch,
        }),
    }
}

#[cfg(test)]
mod tests;
