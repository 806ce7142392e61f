//! What every record carries: the number of its schema, and who wrote it.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The schema number that this build writes, and the only one it reads.
pub const SCHEMA: u32 = 3;

/// A JSON record that carries its schema number as `schema`.
pub trait Record: DeserializeOwned {}

/// Why bytes are not read as a record.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    #[error("schema {found}, and this build reads schema {SCHEMA}")]
    Schema { found: u32 },
    #[error(transparent)]
    Json(#[from] serde_json::Error),
}

/// Reads a record; refuses another schema by its number, before any other field is read.
pub fn decode<T: Record>(json: &[u8]) -> Result<T, DecodeError> {
    #[derive(Deserialize)]
    struct Versioned {
        schema: u32,
    }
    let Versioned { schema: found } = serde_json::from_slice(json)?;
    if found != SCHEMA {
        return Err(DecodeError::Schema { found });
    }
    Ok(serde_json::from_slice(json)?)
}

/// Which process wrote a record, and in which epoch: the attempt of its pod group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Writer {
    pub role: Role,
    pub epoch: u32,
}

impl Writer {
    pub fn driver(epoch: u32) -> Self {
        Self {
            role: Role::Driver,
            epoch,
        }
    }

    pub fn trainer(epoch: u32) -> Self {
        Self {
            role: Role::Trainer,
            epoch,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    Driver,
    Trainer,
}

#[cfg(test)]
mod tests;
