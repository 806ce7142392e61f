//! The common fields of every record: its schema number and its writer.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The schema number that this build writes, and the only one it reads.
pub const SCHEMA: u32 = 3;

/// A JSON record that carries its schema number as `schema`.
pub trait Record: DeserializeOwned {}

/// Why bytes cannot be read as a record.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    #[error("schema {found}, and this build reads schema {SCHEMA}")]
    Schema { found: u32 },
    #[error(transparent)]
    Json(#[from] serde_json::Error),
}

/// Reads a record. It refuses another schema by its number before it reads any other field.
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

/// The process that wrote a record, and its epoch: the attempt of its pod group.
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
