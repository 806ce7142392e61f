//! Fetches one file by chunks, as an order with a [`Relay`] tells: this agent's own chunks from the source, the others
//! from the agents that own them.
//!
//! Chunks arrive in any order and are written to their places in a sparse copy. A list beside it has the numbers of
//! those that are there, so an interrupted pull fetches only what is missing. A checksum of the whole file, computed
//! while chunks arrive, decides at the end: a wrong chunk of another agent never becomes weights.
//!
//! Chunks of an owner that does not answer come from the source: this costs time, never the version.

use std::io::{self, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::{StreamExt, TryStreamExt, stream};
use grpo_engine_protocol::Relay;
use grpo_records::weights::WeightsFile;
use reqwest::header::{CONTENT_RANGE, RANGE};
use reqwest::{Response, StatusCode};
use sha2::{Digest, Sha256};
use tokio::fs::{self, File, OpenOptions};
use tokio::io::{AsyncReadExt, AsyncSeekExt, AsyncWriteExt};
use tokio::sync::{Mutex, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::cache::partial;
use crate::chunks::{Growing, Present, chunks_of, growing, length_of};
use crate::source::{PullClient, PullError, disk, unreachable};

/// Chunks that are fetched at the same time: own ones from the source, others from their owners.
const FROM_SOURCE: usize = 2;
const FROM_OTHERS: usize = 6;

/// How long one chunk is asked of its owner before the source is asked.
const OWNER_PATIENCE: Duration = Duration::from_secs(60);
/// How long an owner may not know the version: it may get the order a moment later.
const LATE_ORDER: Duration = Duration::from_secs(10);
/// Pause before an owner is asked again.
const AGAIN: Duration = Duration::from_millis(100);
/// Longest time until an owner begins its answer; it waits for the chunk for a part of that.
const ANSWER: Duration = Duration::from_secs(20);

/// A file of a version that several agents pull.
#[derive(Debug)]
pub struct Relayed<'a> {
    pub relay: &'a Relay,
    pub version: &'a str,
    /// The file's index in the manifest: it moves the owners, so that many small files are not all of the first one.
    pub index: usize,
    pub file: &'a WeightsFile,
    /// Its URL at the source.
    pub url: &'a str,
    /// Where the complete file will be.
    pub whole: &'a Path,
    /// For each member, whether it failed to answer during this pull: it is not asked again.
    pub gone: &'a [AtomicBool],
}

impl Relayed<'_> {
    /// The index of the agent that fetches a chunk from the source.
    fn owner(&self, chunk: u64) -> usize {
        (chunk as usize + self.index) % self.relay.members.len().max(1)
    }

    fn is_own(&self, chunk: u64) -> bool {
        self.owner(chunk) == self.relay.own
    }
}

/// Fetches the file. Dropping the future is safe: the next call fetches what is missing.
///
/// # Errors
///
/// If the source does not send a chunk that no other agent sends, the disk cannot be written, or the complete file has
/// another checksum than `relayed.file`; then the copy is thrown away.
pub async fn fetch(client: &PullClient, relayed: &Relayed<'_>) -> Result<(), PullError> {
    let copy = Copy::open(client, relayed).await?;
    let missing = |own: bool| {
        let present = copy.growing.present.borrow();
        let of = |chunk: &u64| relayed.is_own(*chunk) == own && !present[*chunk as usize];
        (0..chunks_of(relayed.file.bytes)).filter(of).collect::<Vec<u64>>()
    };
    let mut hashing = JoinSet::new();
    let (data, bytes, present) = (copy.data.clone(), relayed.file.bytes, copy.growing.present.subscribe());
    hashing.spawn(async move { digest(&data, bytes, present).await });
    let own = stream::iter(missing(true))
        .map(|chunk| from_source(client, relayed, &copy, chunk))
        .buffer_unordered(FROM_SOURCE)
        .try_collect::<()>();
    let others = stream::iter(missing(false))
        .map(|chunk| from_owner(client, relayed, &copy, chunk))
        .buffer_unordered(FROM_OTHERS)
        .try_collect::<()>();
    tokio::try_join!(own, others)?;
    let hashed = hashing.join_next().await.transpose().map_err(io::Error::other);
    let found = match hashed.map_err(disk(&copy.data))? {
        Some(found) => found.map_err(disk(&copy.data))?,
        None => String::new(),
    };
    let expected = relayed.file.sha256.to_ascii_lowercase();
    if found != expected {
        copy.remove().await?;
        return Err(PullError::WrongFile {
            url: relayed.url.to_owned(),
            bytes,
            expected,
            found,
        });
    }
    copy.complete(relayed.whole).await?;
    client.shelf.has(relayed.whole, &relayed.file.sha256);
    Ok(())
}

/// A sparse copy of a file, with the list of its chunks.
struct Copy {
    data: PathBuf,
    list: PathBuf,
    /// Appends to the list.
    listed: Mutex<File>,
    growing: Growing,
}

impl Copy {
    /// Continues the copy that an earlier pull left, or begins one.
    async fn open(client: &PullClient, relayed: &Relayed<'_>) -> Result<Self, PullError> {
        let (data, list) = (growing(relayed.whole), list_of(relayed.whole));
        let chunks = chunks_of(relayed.file.bytes) as usize;
        let mut present: Present = vec![false; chunks];
        let length = fs::metadata(&data).await.ok().map(|found| found.len());
        if length == Some(relayed.file.bytes) {
            let known = fs::read(&list).await.unwrap_or_default();
            for number in known.chunks_exact(8) {
                let number = number.try_into().map(u64::from_le_bytes).unwrap_or(u64::MAX);
                if let Some(there) = usize::try_from(number).ok().and_then(|number| present.get_mut(number)) {
                    *there = true;
                }
            }
        } else {
            // The list first: without it no chunk of the new copy counts.
            remove(&list).await?;
            let new = File::create(&data).await.map_err(disk(&data))?;
            new.set_len(relayed.file.bytes).await.map_err(disk(&data))?;
        }
        let own = (0..chunks as u64).map(|chunk| relayed.is_own(chunk)).collect();
        let mut append = OpenOptions::new();
        // A pull that began before there were other agents.
        remove(&partial(relayed.whole, "")).await?;
        let listed = append
            .create(true)
            .append(true)
            .open(&list)
            .await
            .map_err(disk(&list))?;
        Ok(Self {
            data,
            list,
            listed: Mutex::new(listed),
            growing: client.shelf.grows(relayed.whole, &relayed.file.sha256, present, own),
        })
    }

    /// A chunk is in its place.
    async fn has(&self, chunk: u64) -> Result<(), PullError> {
        let mut listed = self.listed.lock().await;
        listed.write_all(&chunk.to_le_bytes()).await.map_err(disk(&self.list))?;
        listed.flush().await.map_err(disk(&self.list))?;
        self.growing.has(chunk);
        Ok(())
    }

    async fn complete(self, whole: &Path) -> Result<(), PullError> {
        let data = File::open(&self.data).await.map_err(disk(&self.data))?;
        data.sync_all().await.map_err(disk(&self.data))?;
        fs::rename(&self.data, whole).await.map_err(disk(whole))?;
        remove(&self.list).await
    }

    async fn remove(self) -> Result<(), PullError> {
        remove(&self.list).await?;
        remove(&self.data).await
    }
}

/// The list of a copy's chunks: their numbers, 8 bytes each.
fn list_of(whole: &Path) -> PathBuf {
    partial(whole, ".list")
}

pub(crate) async fn remove(path: &Path) -> Result<(), PullError> {
    match fs::remove_file(path).await {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(disk(path)(error)),
        _ => Ok(()),
    }
}

async fn from_source(client: &PullClient, relayed: &Relayed<'_>, copy: &Copy, chunk: u64) -> Result<(), PullError> {
    let from = chunk * Relay::CHUNK;
    let bytes = length_of(chunk, relayed.file.bytes);
    let range = format!("bytes={from}-{}", from + bytes - 1);
    let call = client.for_source(relayed.url).header(RANGE, range);
    let answer = call.send().await.map_err(unreachable(relayed.url))?;
    let refused = |status| PullError::Refused {
        url: relayed.url.to_owned(),
        status,
    };
    let begins = answer
        .headers()
        .get(CONTENT_RANGE)
        .and_then(|range| range.to_str().ok());
    if answer.status() != StatusCode::PARTIAL_CONTENT
        || !begins.is_some_and(|range| range.starts_with(&format!("bytes {from}-")))
    {
        return Err(match answer.status().is_success() {
            true => PullError::NoRanges {
                url: relayed.url.to_owned(),
            },
            false => refused(answer.status()),
        });
    }
    let received = write(copy, from, bytes, relayed.url, answer).await?;
    client.pulled.source.inc_by(received);
    copy.has(chunk).await
}

/// From the agent that owns the chunk; from the source if that fails.
async fn from_owner(client: &PullClient, relayed: &Relayed<'_>, copy: &Copy, chunk: u64) -> Result<(), PullError> {
    let owner = relayed.owner(chunk);
    let (Some(base), Some(gone)) = (relayed.relay.members.get(owner), relayed.gone.get(owner)) else {
        return from_source(client, relayed, copy, chunk).await;
    };
    if !gone.load(Ordering::Relaxed) {
        let (base, file) = (base.trim_end_matches('/'), relayed.file);
        let url = format!(
            "{base}/agent/v1/chunks/{}/{}/{chunk}?sha256={}",
            relayed.version, file.name, file.sha256
        );
        match asked(client, relayed, copy, chunk, &url).await {
            Ok(true) => return Ok(()),
            // The owner leaves this chunk to another agent.
            Ok(false) => {}
            // A full disk is no fault of the owner.
            Err(error @ PullError::Disk { .. }) => return Err(error),
            Err(error) => {
                tracing::warn!("chunk {chunk} of {}: {error}; its source is asked", file.name);
                gone.store(true, Ordering::Relaxed);
            }
        }
    }
    from_source(client, relayed, copy, chunk).await
}

/// Asks an owner until it has the chunk; false if it does not fetch the chunk from the source itself.
async fn asked(
    client: &PullClient,
    relayed: &Relayed<'_>,
    copy: &Copy,
    chunk: u64,
    url: &str,
) -> Result<bool, PullError> {
    let late = || PullError::Unreachable {
        url: url.to_owned(),
        cause: format!("the chunk does not come within {OWNER_PATIENCE:?}"),
    };
    let end = Instant::now() + OWNER_PATIENCE;
    let mut unknown_since = None;
    loop {
        let answer = timeout(ANSWER, client.for_agent(url).send()).await;
        let answer = answer.map_err(|_| late())?.map_err(unreachable(url))?;
        match answer.status() {
            StatusCode::OK => {
                let bytes = length_of(chunk, relayed.file.bytes);
                let received = write(copy, chunk * Relay::CHUNK, bytes, url, answer).await?;
                client.pulled.agents.inc_by(received);
                return copy.has(chunk).await.map(|()| true);
            }
            StatusCode::CONFLICT => return Ok(false),
            StatusCode::SERVICE_UNAVAILABLE => unknown_since = None,
            StatusCode::NOT_FOUND if unknown_since.get_or_insert_with(Instant::now).elapsed() < LATE_ORDER => {}
            status => {
                return Err(PullError::Refused {
                    url: url.to_owned(),
                    status,
                });
            }
        }
        if Instant::now() > end {
            return Err(late());
        }
        sleep(AGAIN).await;
    }
}

/// Writes an answer's body of exactly `bytes` bytes to its place in the copy. No write is under way when it returns:
/// bytes that came late could replace those of another answer.
async fn write(copy: &Copy, from: u64, bytes: u64, url: &str, answer: Response) -> Result<u64, PullError> {
    let failed = disk(&copy.data);
    let mut out = OpenOptions::new().write(true).open(&copy.data).await.map_err(&failed)?;
    out.seek(SeekFrom::Start(from)).await.map_err(&failed)?;
    let received = body_to(&mut out, bytes, url, answer).await;
    out.flush().await.map_err(&failed)?;
    match received?.map_err(&failed)? {
        received if received < bytes => Err(PullError::Short {
            url: url.to_owned(),
            found: received,
            expected: bytes,
        }),
        received => Ok(received),
    }
}

/// The number of bytes that came and were written; the inner error is the disk's.
async fn body_to(out: &mut File, bytes: u64, url: &str, answer: Response) -> Result<io::Result<u64>, PullError> {
    let mut received = 0;
    let mut stream = answer.bytes_stream();
    while let Some(piece) = stream.next().await {
        let piece = piece.map_err(unreachable(url))?;
        received += piece.len() as u64;
        if received > bytes {
            return Err(PullError::Long {
                url: url.to_owned(),
                expected: bytes,
            });
        }
        if let Err(error) = out.write_all(&piece).await {
            return Ok(Err(error));
        }
    }
    Ok(Ok(received))
}

/// SHA-256 of the complete copy, computed from its beginning while chunks arrive.
async fn digest(data: &Path, bytes: u64, mut present: watch::Receiver<Present>) -> io::Result<String> {
    let mut file = File::open(data).await?;
    let mut digest = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    for chunk in 0..chunks_of(bytes) {
        present
            .wait_for(|present| present[chunk as usize])
            .await
            .map_err(io::Error::other)?;
        let mut left = length_of(chunk, bytes) as usize;
        while left > 0 {
            let room = left.min(buffer.len());
            let read = file.read(&mut buffer[..room]).await?;
            if read == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            digest.update(&buffer[..read]);
            left -= read;
        }
    }
    Ok(hex::encode(digest.finalize()))
}

/// Removes what an interrupted pull of this kind left of a file.
pub async fn forget(whole: &Path) -> Result<(), PullError> {
    remove(&list_of(whole)).await?;
    remove(&growing(whole)).await
}

/// Whether a file is large enough.
pub fn is_worth_it(file: &WeightsFile) -> bool {
    file.bytes > Relay::CHUNK
}
