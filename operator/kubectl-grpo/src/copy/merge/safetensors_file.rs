//! Reads a safetensors file from beginning to end: the header, then one tensor after another.

use super::error::{MergeError, disk};
use super::values::{Kind, decoded};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

/// The longest accepted header, as in the format's own library.
const LONGEST_HEADER: u64 = 100_000_000;
const METADATA: &str = "__metadata__";

/// The tensors of a file, in the order of their bytes.
#[derive(Clone, Debug)]
pub struct Header {
    /// The header's bytes as in the file, including its length.
    pub bytes: Vec<u8>,
    pub tensors: Vec<Tensor>,
}

#[derive(Clone, Debug)]
pub struct Tensor {
    pub name: String,
    dtype: String,
    pub shape: Vec<usize>,
    pub bytes: u64,
}

#[derive(Deserialize)]
struct Entry {
    dtype: String,
    shape: Vec<usize>,
    data_offsets: [u64; 2],
}

fn malformed(path: &Path, what: impl Into<String>) -> MergeError {
    MergeError::Malformed {
        path: path.to_owned(),
        what: what.into(),
    }
}

impl Header {
    /// Reads the header, and leaves the input at the first tensor.
    pub fn read(input: &mut impl Read, path: &Path) -> Result<Self, MergeError> {
        let mut length = [0; 8];
        input.read_exact(&mut length).map_err(disk("reading", path))?;
        let number = u64::from_le_bytes(length);
        if number > LONGEST_HEADER {
            return Err(malformed(path, format!("its header would have {number} bytes")));
        }
        let mut bytes = length.to_vec();
        let read = input.by_ref().take(number).read_to_end(&mut bytes);
        if read.map_err(disk("reading", path))? as u64 != number {
            return Err(malformed(path, "it ends within its header"));
        }
        let mut entries: BTreeMap<String, serde_json::Value> =
            serde_json::from_slice(&bytes[8..]).map_err(|error| malformed(path, error.to_string()))?;
        entries.remove(METADATA);
        let mut found = Vec::new();
        for (name, entry) in entries {
            let entry: Entry =
                serde_json::from_value(entry).map_err(|error| malformed(path, format!("{name}: {error}")))?;
            found.push((name, entry));
        }
        found.sort_by_key(|(_, entry)| entry.data_offsets);
        let (mut tensors, mut end) = (Vec::new(), 0);
        for (
            name,
            Entry {
                dtype,
                shape,
                data_offsets: [from, to],
            },
        ) in found
        {
            if from != end || to < from {
                return Err(malformed(
                    path,
                    format!("{name} does not begin where the tensor before it ends"),
                ));
            }
            end = to;
            let tensor = Tensor {
                name,
                dtype,
                shape,
                bytes: to - from,
            };
            if let Some(kind) = Kind::named(&tensor.dtype)
                && tensor.numbers() as u64 * kind.bytes() as u64 != tensor.bytes
            {
                return Err(malformed(
                    path,
                    format!("{} has other bytes than its shape says", tensor.name),
                ));
            }
            tensors.push(tensor);
        }
        Ok(Self { bytes, tensors })
    }
}

impl Tensor {
    /// The number of values.
    pub fn numbers(&self) -> usize {
        self.shape.iter().product()
    }

    /// The type of the values; an error if it cannot be computed with.
    pub fn kind(&self, path: &Path) -> Result<Kind, MergeError> {
        let what = || {
            format!(
                "{} has values of type {}, and F32, F16 and BF16 are merged",
                self.name, self.dtype
            )
        };
        Kind::named(&self.dtype).ok_or_else(|| malformed(path, what()))
    }

    /// The next `count` values.
    pub fn values(&self, count: usize, input: &mut impl Read, path: &Path) -> Result<Vec<f32>, MergeError> {
        let kind = self.kind(path)?;
        let wanted = count * kind.bytes();
        let mut bytes = Vec::with_capacity(wanted);
        let read = input.by_ref().take(wanted as u64).read_to_end(&mut bytes);
        match read.map_err(disk("reading", path))? == wanted {
            true => Ok(decoded(kind, &bytes)),
            false => Err(self.cut(path)),
        }
    }

    /// The error for a file that ends within this tensor.
    pub fn cut(&self, path: &Path) -> MergeError {
        malformed(path, format!("it ends within {}", self.name))
    }
}
