//! Chunks of weights that agents pass on to each other ([`Relay`]).
//!
//! Without this every replica gets the whole version from the driver, and the driver's network card is what a sync
//! waits for. With it the driver sends each chunk to one replica, its owner; the others get it from there
//! ([`crate::relay`]).
//!
//! The [`Shelf`] is what this agent has to pass on: files that are complete in its cache, and of those that are being
//! pulled the chunks that are on disk. A request for a chunk that is on its way waits for it.

use std::collections::{HashMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::Body;
use axum::http::StatusCode;
use axum::http::header::CONTENT_LENGTH;
use axum::response::{IntoResponse, Response};
use grpo_engine_protocol::Relay;
use tokio::fs::File;
use tokio::io::{AsyncReadExt, AsyncSeekExt, SeekFrom};
use tokio::sync::watch;
use tokio_util::io::ReaderStream;

use crate::cache::{BadName, Cache, checked_name, partial};

/// How long a request for a chunk waits for it.
const PATIENCE: Duration = Duration::from_secs(15);

/// Number of chunks of a file.
pub fn chunks_of(bytes: u64) -> u64 {
    bytes.div_ceil(Relay::CHUNK)
}

/// Length of chunk `chunk` of a file.
pub fn length_of(chunk: u64, bytes: u64) -> u64 {
    bytes
        .saturating_sub(chunk.saturating_mul(Relay::CHUNK))
        .min(Relay::CHUNK)
}

/// The copy of a file that grows by chunks, in any order. A copy that grows from its beginning has another name
/// ([`crate::pull`]), since its length is what is there.
pub(crate) fn growing(whole: &Path) -> PathBuf {
    partial(whole, ".chunks")
}

/// Why this agent cannot pass a chunk on.
#[derive(Debug, thiserror::Error)]
pub enum NoChunk {
    #[error(transparent)]
    Name(#[from] BadName),
    #[error("this replica neither has {version}/{file} nor pulls it")]
    NotHere { version: String, file: String },
    #[error("{version}/{file} ends before chunk {chunk}")]
    Beyond { version: String, file: String, chunk: u64 },
    #[error("chunk {chunk} of {version}/{file} is not here yet; ask again")]
    NotYet { version: String, file: String, chunk: u64 },
    #[error("this replica does not fetch chunk {chunk} of {version}/{file}; ask the source")]
    NotOwn { version: String, file: String, chunk: u64 },
    #[error("reading {version}/{file}: {cause}")]
    Disk {
        version: String,
        file: String,
        cause: io::Error,
    },
}

impl NoChunk {
    /// 404: ask again for a moment, then the source for everything. 409: ask the source for this chunk. 503: ask again.
    pub fn status(&self) -> StatusCode {
        match self {
            Self::Name(_) | Self::NotHere { .. } | Self::Beyond { .. } => StatusCode::NOT_FOUND,
            Self::NotOwn { .. } => StatusCode::CONFLICT,
            Self::NotYet { .. } => StatusCode::SERVICE_UNAVAILABLE,
            Self::Disk { .. } => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }
}

/// One chunk as the body of an answer, read from disk while it is sent.
#[derive(Debug)]
pub struct Chunk {
    file: File,
    bytes: u64,
}

impl IntoResponse for Chunk {
    fn into_response(self) -> Response {
        let body = Body::from_stream(ReaderStream::with_capacity(self.file.take(self.bytes), 256 << 10));
        ([(CONTENT_LENGTH, self.bytes.to_string())], body).into_response()
    }
}

/// Which chunks of a growing copy are on disk, by their numbers.
pub(crate) type Present = Vec<bool>;

/// Files for other agents.
#[derive(Clone, Debug)]
pub struct Shelf {
    cache: Cache,
    content: Arc<Mutex<Content>>,
}

/// What is on the shelf; files by the paths of their complete copies.
#[derive(Debug, Default)]
struct Content {
    /// The version that is pulled now, and those of its files that this agent fetches, one after the other. It makes
    /// others from deltas, or needs no deltas: other agents must not wait for these.
    pulled: Option<(String, HashSet<PathBuf>)>,
    /// The version that was pulled last to its end: other files of it do not come.
    ended: Option<String>,
    growing: HashMap<PathBuf, Copy>,
    /// Checksums of complete files that this process has verified.
    complete: HashMap<PathBuf, String>,
}

#[derive(Clone, Debug)]
struct Copy {
    sha256: String,
    present: watch::Receiver<Present>,
    /// Chunks that this agent fetches from the source. Only for these do others wait: two agents that waited for each
    /// other, because they know different members, would both wait in vain.
    own: Arc<Vec<bool>>,
}

enum State {
    /// It is here and verified.
    Complete,
    /// It is being pulled.
    Comes,
    /// Its version is being pulled, or was pulled, without this file.
    Elsewhere,
    Unknown,
}

impl Shelf {
    pub fn new(cache: Cache) -> Self {
        Self {
            cache,
            content: Arc::default(),
        }
    }

    /// Chunk `chunk` of the file with this checksum.
    ///
    /// # Errors
    ///
    /// If this agent has no such file, or the chunk does not come within [`PATIENCE`].
    pub async fn chunk(&self, version: &str, file: &str, sha256: &str, chunk: u64) -> Result<Chunk, NoChunk> {
        let whole = self.cache.folder(version)?.join(checked_name(file)?);
        let (version, file) = (version.to_owned(), file.to_owned());
        let copy = self.content().growing.get(&whole).cloned();
        let mut open = None;
        if let Some(mut copy) = copy.filter(|copy| copy.sha256 == sha256) {
            let at = usize::try_from(chunk).unwrap_or(usize::MAX);
            let is_here = copy.present.borrow().get(at).copied();
            match (is_here, copy.own.get(at)) {
                (None, _) => return Err(NoChunk::Beyond { version, file, chunk }),
                (Some(false), Some(false)) => return Err(NoChunk::NotOwn { version, file, chunk }),
                _ => {}
            }
            let comes = copy.present.wait_for(|present| present.get(at) == Some(&true));
            // An error is the end of the pull: with a complete file, or without one.
            let ended = tokio::time::timeout(PATIENCE, comes).await.map(|ended| ended.is_ok());
            match ended {
                Err(_) => return Err(NoChunk::NotYet { version, file, chunk }),
                Ok(false) => {}
                Ok(true) => open = open_if_there(&growing(&whole)).await.transpose(),
            }
        }
        if open.is_none() {
            match self.state_of(&whole, &version, sha256) {
                State::Complete => open = open_if_there(&whole).await.transpose(),
                State::Comes => return Err(NoChunk::NotYet { version, file, chunk }),
                State::Elsewhere => return Err(NoChunk::NotOwn { version, file, chunk }),
                State::Unknown => {}
            }
        }
        let Some(open) = open else {
            return Err(NoChunk::NotHere { version, file });
        };
        let disk = |cause| NoChunk::Disk {
            version: version.clone(),
            file: file.clone(),
            cause,
        };
        let mut open = open.map_err(disk)?;
        let bytes = length_of(chunk, open.metadata().await.map_err(disk)?.len());
        if bytes == 0 {
            return Err(NoChunk::Beyond { version, file, chunk });
        }
        open.seek(SeekFrom::Start(chunk * Relay::CHUNK)).await.map_err(disk)?;
        Ok(Chunk { file: open, bytes })
    }

    /// The state of a file of which no copy grows.
    fn state_of(&self, whole: &Path, version: &str, sha256: &str) -> State {
        let content = self.content();
        let complete = content.complete.get(whole);
        match &content.pulled {
            _ if complete.is_some_and(|found| found == sha256) => State::Complete,
            Some((pulled, fetched)) if pulled == version => match fetched.contains(whole) {
                true => State::Comes,
                false => State::Elsewhere,
            },
            // A file that is here with another checksum belongs to an earlier version of this name.
            _ if complete.is_none() && content.ended.as_deref() == Some(version) => State::Elsewhere,
            _ => State::Unknown,
        }
    }

    /// Announces the pull of these files of a version: agents that ask for one of them are told to ask again, and the
    /// source for others. An agent with the version before fetches a delta, one without it the whole file: each waited
    /// for chunks that the other never has.
    pub(crate) fn pulls(&self, version: &str, fetched: HashSet<PathBuf>) -> Pulling {
        let mut content = self.content();
        content.pulled = Some((version.to_owned(), fetched));
        if content.ended.as_deref() == Some(version) {
            content.ended = None;
        }
        // Files of versions that were removed from the disk.
        content.complete.retain(|whole, _| whole.exists());
        Pulling(self.clone())
    }

    /// Announces a copy that grows. It is on the shelf until the returned value is dropped. `own`: the chunks that this
    /// agent fetches from the source.
    pub(crate) fn grows(&self, whole: &Path, sha256: &str, present: Present, own: Vec<bool>) -> Growing {
        let (sender, receiver) = watch::channel(present);
        let copy = Copy {
            sha256: sha256.to_owned(),
            present: receiver,
            own: Arc::new(own),
        };
        self.content().growing.insert(whole.to_owned(), copy);
        Growing {
            shelf: self.clone(),
            whole: whole.to_owned(),
            present: sender,
        }
    }

    /// Whether this process has verified that a complete file has this checksum. A file of 16 GB takes ten seconds to
    /// verify, and a prefetched version is verified again before its load, while episodes wait.
    pub(crate) fn knows(&self, whole: &Path, sha256: &str) -> bool {
        self.content().complete.get(whole).is_some_and(|found| found == sha256)
    }

    /// A file is missing, or other than the process knew it.
    pub(crate) fn lacks(&self, whole: &Path) {
        self.content().complete.remove(whole);
    }

    /// A complete file has this checksum.
    pub(crate) fn has(&self, whole: &Path, sha256: &str) {
        self.content().complete.insert(whole.to_owned(), sha256.to_owned());
    }

    fn content(&self) -> std::sync::MutexGuard<'_, Content> {
        self.content.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The pull of a version, until it is dropped.
#[derive(Debug)]
pub(crate) struct Pulling(Shelf);

impl Pulling {
    /// A file is fetched in place of its delta.
    pub(crate) fn fetches(&self, whole: &Path, in_place_of: &Path) {
        let mut content = self.0.content();
        content.complete.remove(in_place_of);
        if let Some((_, fetched)) = &mut content.pulled {
            fetched.remove(in_place_of);
            fetched.insert(whole.to_owned());
        }
    }

    /// All files of the version are here.
    pub(crate) fn complete(self) {
        let mut content = self.0.content();
        content.ended = content.pulled.take().map(|(version, _)| version);
    }
}

impl Drop for Pulling {
    fn drop(&mut self) {
        self.0.content().pulled = None;
    }
}

/// A copy that grows, on the shelf.
#[derive(Debug)]
pub(crate) struct Growing {
    shelf: Shelf,
    whole: PathBuf,
    pub(crate) present: watch::Sender<Present>,
}

impl Growing {
    /// A chunk is on disk.
    pub(crate) fn has(&self, chunk: u64) {
        self.present.send_modify(|present| {
            if let Some(there) = present.get_mut(chunk as usize) {
                *there = true;
            }
        });
    }
}

impl Drop for Growing {
    fn drop(&mut self) {
        self.shelf.content().growing.remove(&self.whole);
    }
}

async fn open_if_there(path: &Path) -> io::Result<Option<File>> {
    match File::open(path).await {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests;
