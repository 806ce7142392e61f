//! Many files of a run's store in one answer: a copy over a link with a long round trip asks once for hundreds of small
//! files.
//!
//! ```text
//! BulkRequest ──► for each file, in the order of the request: a line of JSON ([`BulkLine`]), then the file's bytes
//! ```
//!
//! A line states the number of bytes before they follow. A file that became shorter meanwhile therefore ends the answer
//! with an error, and the client sees an incomplete answer. Files are read one after another, piece by piece.

use super::files::{FileAt, StoredFile, is_shown, not_shown};
use super::{Records, Refusal, RefusalCode};
use crate::store::{RunStore, StoreError};
use bytes::Bytes;
use futures::stream::{self, BoxStream};
use futures::{Stream, StreamExt, TryStreamExt};
use serde::{Deserialize, Serialize};

/// Maximum bytes of a request's body. A request at all limits of [`BulkLimits`] is shorter.
pub const LONGEST_REQUEST: usize = 2 << 20;

/// What a server accepts in one request. A client reads them first, so it also learns whether its server knows the
/// request: an older one may close the connection after a refused body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BulkLimits {
    pub files: usize,
    /// Length of each path.
    pub path_bytes: usize,
}

impl BulkLimits {
    /// The limits of this version.
    pub const SERVED: Self = Self {
        files: 1000,
        path_bytes: 1024,
    };
}

/// Selects files, or parts of files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BulkRequest {
    pub files: Vec<FileAt>,
}

/// The line before a file's bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum BulkLine {
    /// So many bytes follow.
    File(StoredFile),
    /// No file has this path, and no bytes follow.
    Gone(String),
}

impl BulkLine {
    pub fn path(&self) -> &str {
        match self {
            Self::File(file) => &file.path,
            Self::Gone(path) => path,
        }
    }

    fn encoded(&self) -> Result<Bytes, BulkError> {
        let mut line = serde_json::to_vec(self).map_err(|source| StoreError::Unwritable {
            path: self.path().to_owned(),
            source,
        })?;
        line.push(b'\n');
        Ok(line.into())
    }
}

/// Why an answer ends before all files have arrived.
#[derive(Debug, thiserror::Error)]
pub enum BulkError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("{path} changed while it was read: {came} bytes came instead of {bytes}; ask for it again")]
    Changed { path: String, bytes: u64, came: u64 },
}

type Pieces = BoxStream<'static, Result<Bytes, BulkError>>;

impl Records {
    /// Refuses the whole request if one path is not available.
    pub fn bulk(
        &self,
        wanted: BulkRequest,
    ) -> Result<impl Stream<Item = Result<Bytes, BulkError>> + Send + use<>, Refusal> {
        let BulkLimits { files, path_bytes } = BulkLimits::SERVED;
        if wanted.files.len() > files {
            let message = format!(
                "a request names at most {files} files, and this one {}",
                wanted.files.len()
            );
            return Err(Refusal::new(RefusalCode::TooLarge, message));
        }
        let refused = |file: &&FileAt| file.path.len() > path_bytes || !is_shown(&file.path);
        if let Some(file) = wanted.files.iter().find(refused) {
            return Err(not_shown(&file.path));
        }
        let store = self.store.clone();
        let answers = stream::iter(wanted.files).then(move |file| answer(store.clone(), file));
        Ok(answers.try_flatten())
    }
}

/// The answer about one file.
async fn answer(store: RunStore, file: FileAt) -> Result<Pieces, BulkError> {
    let Some(there) = store.length(&file.path).await? else {
        return gone(file.path);
    };
    let range = file.range(there);
    let length = range.end - range.start;
    let mut bytes = store.stream(&file.path, range).boxed();
    // Read before the line is sent: the run may remove the file at this moment.
    let first = match bytes.try_next().await {
        Err(StoreError::Missing { .. }) => return gone(file.path),
        first => first?,
    };
    let bytes = stream::iter(first.map(Ok))
        .chain(bytes)
        .map_err(BulkError::from)
        .boxed();
    let stored = StoredFile {
        path: file.path.clone(),
        bytes: length,
    };
    let line = BulkLine::File(stored).encoded()?;
    Ok(stream::iter([Ok(line)])
        .chain(exactly(bytes, length, file.path))
        .boxed())
}

fn gone(path: String) -> Result<Pieces, BulkError> {
    let line = BulkLine::Gone(path).encoded()?;
    Ok(stream::iter([Ok(line)]).boxed())
}

/// The same bytes, and an error after them if their number is another.
fn exactly(bytes: Pieces, length: u64, path: String) -> impl Stream<Item = Result<Bytes, BulkError>> + Send {
    stream::try_unfold((bytes, 0_u64), move |(mut bytes, came)| {
        let path = path.clone();
        async move {
            match bytes.try_next().await? {
                Some(piece) => {
                    let came = came + piece.len() as u64;
                    Ok(Some((piece, (bytes, came))))
                }
                None if came == length => Ok(None),
                None => Err(BulkError::Changed {
                    path,
                    bytes: length,
                    came,
                }),
            }
        }
    })
}

#[cfg(test)]
mod tests;
