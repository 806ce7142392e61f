//! Makes a file of a version from the same file of an earlier version on disk and a delta, which has about a fiftieth
//! of the bytes (crate `grpo-weights-delta`).
//!
//! The trainer makes deltas from the version before; an agent that serves an older one, or joins, fetches files whole.
//! So it does after any failure here, except that a cut transfer of the delta is continued a few times. A made file
//! becomes weights only if it has the checksum that the manifest of the new version names.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};

use grpo_records::weights::{WeightsDelta, WeightsFile, WeightsManifest};
use grpo_weights_delta::{DeltaError, apply};
use sha2::{Digest, Sha256};
use tokio::fs;

use crate::cache::{Cache, MANIFEST, checked_name, partial};

/// A delta of more than this share of its file is not used.
const WORTHWHILE: u64 = 2;

/// Pieces of the new file between its making and its disk.
const PIECES: usize = 4;

/// A delta that fits a file on disk.
#[derive(Debug)]
pub(crate) struct Fitting<'a> {
    pub delta: &'a WeightsDelta,
    /// The position of the delta among all files of the version.
    pub index: usize,
    base: PathBuf,
}

/// The delta that makes `file` from a file in this cache.
pub(crate) async fn fitting<'a>(
    cache: &Cache,
    manifest: &'a WeightsManifest,
    file: &WeightsFile,
) -> Option<Fitting<'a>> {
    for (at, delta) in manifest.deltas.iter().enumerate() {
        let name = &delta.file.name;
        let taken = *name == MANIFEST || manifest.files.iter().any(|file| file.name == *name);
        if delta.of != file.name || taken || checked_name(name).is_err() || delta.file.bytes > file.bytes / WORTHWHILE {
            continue;
        }
        if let Some(base) = base(cache, delta).await {
            return Some(Fitting {
                delta,
                index: manifest.files.len() + at,
                base,
            });
        }
    }
    None
}

/// The base of a delta, if it is in this cache.
async fn base(cache: &Cache, delta: &WeightsDelta) -> Option<PathBuf> {
    let folder = cache.folder(&delta.base).ok()?;
    // The manifest of a folder is written last: with it, the version is complete.
    let manifest = fs::read(folder.join(MANIFEST)).await.ok()?;
    let manifest: WeightsManifest = serde_json::from_slice(&manifest).ok()?;
    let same = |file: &&WeightsFile| file.name == delta.of && file.sha256.eq_ignore_ascii_case(&delta.base_sha256);
    let found = manifest.files.iter().find(same)?;
    Some(folder.join(checked_name(&found.name).ok()?))
}

/// Why a file was not made from its delta; it is fetched whole.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotMade {
    #[error(transparent)]
    Delta(#[from] DeltaError),
    #[error("{base} and the delta make a file with sha256 {found}, the manifest says {expected}")]
    OtherFile {
        base: String,
        expected: String,
        found: String,
    },
    #[error("reading {path}: {cause}")]
    Read { path: String, cause: io::Error },
    #[error("writing the new file: {0}")]
    Write(io::Error),
    #[error("making the file was interrupted: {0}")]
    Interrupted(String),
}

/// Makes `whole` from the base and the delta on disk. Dropping the future is safe.
///
/// # Errors
///
/// For any cause the file must be fetched, also for a full disk: base, delta and new file need more space than base and
/// new file. Nothing of the new file is left then.
pub(crate) async fn make(fitting: &Fitting<'_>, delta: &Path, file: &WeightsFile, whole: &Path) -> Result<(), NotMade> {
    let staged = partial(whole, ".made");
    let made = staged_by(fitting, delta, file, &staged).await;
    let named = match made {
        Ok(()) => fs::rename(&staged, whole).await.map_err(NotMade::Write),
        Err(why) => Err(why),
    };
    if named.is_err()
        && let Err(error) = remove(&staged).await
    {
        tracing::warn!("removing {}: {error}", staged.display());
    }
    named
}

async fn staged_by(fitting: &Fitting<'_>, delta: &Path, file: &WeightsFile, staged: &Path) -> Result<(), NotMade> {
    // A making that was dropped may still write to a file of this name: it keeps that file, which has no name then.
    remove(staged).await.map_err(NotMade::Write)?;
    let out = std::fs::OpenOptions::new().write(true).create_new(true).open(staged);
    let out = out.map_err(NotMade::Write)?;
    let (base, delta) = (fitting.base.clone(), delta.to_owned());
    let abandoned = Abandoned(Arc::default());
    let seen = abandoned.0.clone();
    let found = tokio::task::spawn_blocking(move || made(&base, &delta, out, &seen)).await;
    let found = found.map_err(|panicked| NotMade::Interrupted(panicked.to_string()))??;
    let expected = file.sha256.to_ascii_lowercase();
    match found == expected {
        true => Ok(()),
        false => Err(NotMade::OtherFile {
            base: fitting.base.display().to_string(),
            expected,
            found,
        }),
    }
}

async fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path).await {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Tells the threads of a dropped future to end.
struct Abandoned(Arc<AtomicBool>);

impl Drop for Abandoned {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Writes the new file durably; its checksum. One thread makes it, another one hashes and writes it: either takes as
/// long.
fn made(base: &Path, delta: &Path, mut out: std::fs::File, abandoned: &AtomicBool) -> Result<String, NotMade> {
    let open = |path: &Path| {
        std::fs::File::open(path).map_err(|cause| NotMade::Read {
            path: path.display().to_string(),
            cause,
        })
    };
    let (base, delta) = (open(base)?, open(delta)?);
    let (send, pieces) = sync_channel::<Vec<u8>>(PIECES);
    std::thread::scope(|scope| {
        let writing = scope.spawn(move || {
            let mut digest = Sha256::new();
            for piece in pieces {
                digest.update(&piece);
                out.write_all(&piece)?;
            }
            out.sync_all()?;
            Ok(hex::encode(digest.finalize()))
        });
        let pieces = Pieces { send, abandoned };
        let applied = apply(base, io::BufReader::with_capacity(1 << 20, delta), pieces);
        let written: io::Result<String> = match writing.join() {
            Ok(written) => written,
            Err(_) => return Err(NotMade::Interrupted("the thread that writes it ended".to_owned())),
        };
        // The disk's error is the cause of the other one.
        let written = written.map_err(NotMade::Write);
        match (written, applied) {
            (Err(why), _) => Err(why),
            (Ok(_), Err(DeltaError::Write(why))) => Err(NotMade::Interrupted(why.to_string())),
            (Ok(_), Err(why)) => Err(why.into()),
            (Ok(digest), Ok(_)) => Ok(digest),
        }
    })
}

/// Passes the new file's pieces to the thread that writes them.
struct Pieces<'a> {
    send: SyncSender<Vec<u8>>,
    abandoned: &'a AtomicBool,
}

impl Write for Pieces<'_> {
    fn write(&mut self, piece: &[u8]) -> io::Result<usize> {
        if self.abandoned.load(Ordering::Relaxed) {
            return Err(io::Error::other("another order came"));
        }
        let sent = self.send.send(piece.to_vec());
        sent.map(|()| piece.len()).map_err(io::Error::other)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
