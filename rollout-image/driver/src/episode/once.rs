//! Files that one driver writes once.
//!
//! A second driver on the same episode attempt would write other bytes, since its turns, times and epoch differ. The
//! driver that finds other bytes stops, so that no episode mixes both.

use crate::fault::DriverError;
use bytes::Bytes;
use grpo_records::{Created, RunStore, Writer};
use serde::Serialize;

/// Creates a record, or finds an identical one.
pub(super) async fn create<T: Serialize>(
    store: &RunStore,
    writer: &Writer,
    path: &str,
    record: &T,
) -> Result<(), DriverError> {
    let mut json = serde_json::to_vec(record)
        .map_err(|error| DriverError::Other(format!("writing {path}: the record cannot be put into JSON: {error}")))?;
    json.push(b'\n');
    create_bytes(store, writer, path, json.into()).await
}

/// Creates a file, or finds one with the same bytes.
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
