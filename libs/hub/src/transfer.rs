//! Downloads one file to disk: it continues where an earlier attempt ended, checks the file, then gives it its name.

use std::fs::{self, File};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use futures::StreamExt as _;
use tokio::sync::mpsc;

use crate::error::HubError;
use crate::repository::{Commit, Hasher, RemoteFile};
use crate::retry::pause;
use crate::source::{ByteStream, FileSource, Refused};

/// Parts of an answer that wait to be written.
const WAITING: usize = 32;
const READ: usize = 1 << 20;

/// The destination of one file.
#[derive(Clone)]
pub(crate) struct Target {
    pub file: RemoteFile,
    /// Its unfinished bytes.
    pub part: PathBuf,
    /// Its final path, once it is whole.
    pub whole: PathBuf,
}

/// Downloads the file. `arrived` counts its bytes on disk, those of earlier attempts included.
pub(crate) async fn fetch<S: FileSource>(
    source: &S,
    commit: &Commit,
    target: &Target,
    arrived: &AtomicU64,
) -> Result<(), HubError> {
    let counted = AtomicU64::new(0);
    let count = |bytes: u64| {
        // A restart at the first byte subtracts the bytes counted so far.
        let before = counted.swap(bytes, Ordering::Relaxed);
        arrived.fetch_add(bytes.wrapping_sub(before), Ordering::Relaxed);
    };
    let found = fetch_once(source, commit, target, &count).await?;
    if found.is_none() {
        return Ok(());
    }
    // Bytes of an earlier attempt may be corrupt on disk: try once more from the first byte.
    in_background(removed, target.part.clone()).await?;
    let found = fetch_once(source, commit, target, &count).await?;
    let Some(found) = found else { return Ok(()) };
    in_background(removed, target.part.clone()).await?;
    Err(HubError::Corrupt {
        path: target.file.path.clone(),
        wanted: target.file.digest.as_str().to_owned(),
        found,
    })
}

/// Continues the unfinished file to its end and names it. Returns its digest if that is wrong.
async fn fetch_once<S: FileSource>(
    source: &S,
    commit: &Commit,
    target: &Target,
    count: &impl Fn(u64),
) -> Result<Option<String>, HubError> {
    let mut writer = in_background(Writer::open, (target.file.clone(), target.part.clone())).await?;
    let (mut failed, mut furthest) = (0, writer.written);
    count(writer.written);
    while writer.written < target.file.size {
        let before = writer.written;
        let ended = match source.bytes(commit, &target.file, before).await {
            Ok((from, stream)) => {
                let (written, ended) = write(writer, from, stream, count).await?;
                writer = written;
                ended.map_err(Refused::from)
            }
            Err(refused) => Err(refused),
        };
        count(writer.written);
        // A server without ranges restarts at the first byte, so only bytes beyond the furthest position are progress.
        if writer.written > furthest {
            (failed, furthest) = (0, writer.written);
        }
        failed += 1;
        let asked = match ended {
            Err(refused) if !refused.error.is_transient() || failed >= S::ATTEMPTS => return Err(refused.error),
            Err(refused) => refused.asked,
            Ok(()) if writer.written == target.file.size => break,
            // A proxy that ends early without an error.
            Ok(()) if failed >= S::ATTEMPTS => {
                return Err(HubError::Transport {
                    request: format!("the download of {}", target.file.path),
                    cause: format!("it ends at byte {} of {}", writer.written, target.file.size),
                });
            }
            Ok(()) => None,
        };
        tokio::time::sleep(pause(failed, asked)).await;
    }
    let whole = target.whole.clone();
    in_background(move |writer: Writer| writer.finish(&whole), writer).await
}

/// Writes arriving bytes on a thread that may block; returns the writer and how the answer ended.
async fn write(
    mut writer: Writer,
    from: u64,
    mut stream: ByteStream,
    count: &impl Fn(u64),
) -> Result<(Writer, Result<(), HubError>), HubError> {
    let (parts, mut waiting) = mpsc::channel::<Bytes>(WAITING);
    let mut written = from;
    let writing = tokio::task::spawn_blocking(move || {
        if from != writer.written {
            writer.restart()?;
        }
        while let Some(bytes) = waiting.blocking_recv() {
            writer.write(&bytes)?;
        }
        Ok::<Writer, HubError>(writer)
    });
    let mut ended = Ok(());
    while let Some(part) = stream.next().await {
        match part {
            Ok(bytes) => {
                written += bytes.len() as u64;
                if parts.send(bytes).await.is_err() {
                    break;
                }
                count(written);
            }
            Err(error) => {
                ended = Err(error);
                break;
            }
        }
    }
    drop(parts);
    let writer = writing.await.map_err(stopped)??;
    Ok((writer, ended))
}

/// The unfinished file and the digest of its bytes.
struct Writer {
    file: RemoteFile,
    path: PathBuf,
    output: File,
    hasher: Hasher,
    written: u64,
}

impl Writer {
    /// Reads the bytes of an earlier attempt into the digest.
    fn open((file, path): (RemoteFile, PathBuf)) -> Result<Self, HubError> {
        let mut options = File::options();
        let output = options.read(true).write(true).create(true).truncate(false).open(&path);
        let output = output.map_err(HubError::disk("opening the unfinished file", &path))?;
        let hasher = Hasher::new(&file);
        let mut writer = Self {
            file,
            path,
            output,
            hasher,
            written: 0,
        };
        let mut buffer = vec![0; READ];
        loop {
            let count = writer.output.read(&mut buffer);
            let count = count.map_err(HubError::disk("reading the unfinished file", &writer.path))?;
            if count == 0 {
                break;
            }
            writer.hasher.update(&buffer[..count]);
            writer.written += count as u64;
        }
        if writer.written > writer.file.size {
            writer.restart()?;
        }
        Ok(writer)
    }

    fn restart(&mut self) -> Result<(), HubError> {
        let emptied = self
            .output
            .set_len(0)
            .and_then(|()| self.output.seek(SeekFrom::Start(0)));
        emptied.map_err(HubError::disk("emptying the unfinished file", &self.path))?;
        (self.hasher, self.written) = (Hasher::new(&self.file), 0);
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), HubError> {
        let after = self.written + bytes.len() as u64;
        if after > self.file.size {
            return Err(HubError::Malformed {
                request: format!("the download of {}", self.file.path),
                what: format!("more than the {} bytes that the listing says", self.file.size),
            });
        }
        let wrote = self.output.write_all(bytes);
        wrote.map_err(HubError::disk("writing the unfinished file", &self.path))?;
        self.hasher.update(bytes);
        self.written = after;
        Ok(())
    }

    /// Gives the file its name if its digest is right; otherwise returns the digest.
    fn finish(self, whole: &Path) -> Result<Option<String>, HubError> {
        let found = self.hasher.hex();
        if found != self.file.digest.as_str() {
            return Ok(Some(found));
        }
        // Sync before naming: after a power failure a named file must not be empty.
        let on_disk = self.output.sync_all();
        on_disk.map_err(HubError::disk("syncing the file", &self.path))?;
        let named = fs::rename(&self.path, whole);
        named.map_err(HubError::disk("naming the file", whole))?;
        // The name survives a power failure once its folder is synced.
        let folder = whole.parent().unwrap_or(whole);
        let synced = File::open(folder).and_then(|folder| folder.sync_all());
        synced.map_err(HubError::disk("syncing the folder", folder))?;
        Ok(None)
    }
}

fn removed(part: PathBuf) -> Result<(), HubError> {
    fs::remove_file(&part).map_err(HubError::disk("removing the spoilt file", &part))
}

/// Runs blocking work outside the event loop.
pub(crate) async fn in_background<I, T>(
    work: impl FnOnce(I) -> Result<T, HubError> + Send + 'static,
    input: I,
) -> Result<T, HubError>
where
    I: Send + 'static,
    T: Send + 'static,
{
    tokio::task::spawn_blocking(move || work(input))
        .await
        .map_err(stopped)?
}

fn stopped(error: tokio::task::JoinError) -> HubError {
    HubError::Settings(format!("the thread that writes was stopped: {error}"))
}
