//! Pulls one version to local disk: the manifest, then each of its files, with checksums.
//!
//! A file grows under a `.partial` name and is renamed when its length and checksum are right, so every file without
//! this suffix is complete. After an interruption or a restart of the agent, the pull resumes where the partial file
//! ends (HTTP ranges). Files that are already on disk are not fetched again; each process checks them once.
//!
//! A large file of an order with several agents comes by chunks, most of them from those agents ([`crate::relay`]). A
//! file with a delta from one on disk is made from both ([`crate::delta`]); then the delta is what is fetched.

use crate::cache::{BadName, Cache, MANIFEST, checked_name, partial};
use crate::chunks::Pulling;
use crate::delta::{self, Fitting};
use crate::relay::{self, Relayed};
use crate::source::{PullClient, PullError, disk, unreachable};
use bytes::Bytes;
use futures::{Stream, StreamExt};
use grpo_engine_protocol::WeightsOrder;
use grpo_records::weights::{WeightsFile, WeightsManifest};
use reqwest::header::{CONTENT_RANGE, RANGE};
use reqwest::{Response, StatusCode};
use sha2::{Digest, Sha256};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use tokio::fs::{self, File, OpenOptions};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// How often the transfer of a version's delta may be cut before its file is fetched whole.
const MOST_CUTS: u32 = 3;

/// Largest manifest: it names only a few files.
const MAX_MANIFEST_BYTES: usize = 4 << 20;

/// A complete version on local disk.
#[derive(Debug)]
pub struct Pulled {
    pub folder: PathBuf,
    pub manifest: WeightsManifest,
}

/// Pulls the ordered version to local disk. Dropping the future is safe: the next pull resumes.
pub async fn pull(client: &PullClient, cache: &Cache, order: &WeightsOrder) -> Result<Pulled, PullError> {
    let folder = cache.folder(&order.version)?;
    fs::create_dir_all(&folder).await.map_err(disk(&folder))?;
    let source = order.source.trim_end_matches('/');
    let (bytes, manifest) = manifest(client, &folder, source, order).await?;
    let mut files = Vec::new();
    for file in &manifest.files {
        if checked_name(&file.name)? == MANIFEST {
            return Err(BadName(file.name.clone()).into());
        }
        let fitting = match client.gave_up_delta(&order.version) {
            true => None,
            false => delta::fitting(cache, &manifest, file).await,
        };
        files.push((file, fitting));
    }
    let fetched = files.iter().map(|(file, fitting)| {
        let fetched = fitting.as_ref().map_or(*file, |fitting| &fitting.delta.file);
        folder.join(&fetched.name)
    });
    let announced = client.shelf.pulls(&order.version, fetched.collect());
    let members = order.relay.as_ref().map_or(0, |relay| relay.members.len());
    let version = Version {
        client,
        order,
        folder: &folder,
        source,
        announced,
        gone: (0..members).map(|_| AtomicBool::new(false)).collect(),
    };
    for (index, (file, fitting)) in files.iter().enumerate() {
        let made = match fitting {
            Some(fitting) if !client.gave_up_delta(&order.version) => version.make(fitting, file).await?,
            _ => false,
        };
        if !made {
            // What a making left that was dropped.
            relay::remove(&partial(&folder.join(&file.name), ".made")).await?;
            version.get(index, file, Kind::Whole).await?;
        }
    }
    version.announced.complete();
    // Last, as in the store: a folder with a manifest is complete.
    let path = folder.join(MANIFEST);
    fs::write(&path, &bytes).await.map_err(disk(&path))?;
    Ok(Pulled { folder, manifest })
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// What engines load.
    Whole,
    Delta,
}

/// A version that is being pulled.
struct Version<'a> {
    client: &'a PullClient,
    order: &'a WeightsOrder,
    folder: &'a Path,
    source: &'a str,
    announced: Pulling,
    /// For each agent of the order, whether it failed to answer.
    gone: Vec<AtomicBool>,
}

impl Version<'_> {
    /// Fetches one file: from the source, or by chunks from several agents. `index` is its position among the files of
    /// the version. Its name is a checked one.
    async fn get(&self, index: usize, file: &WeightsFile, kind: Kind) -> Result<(), PullError> {
        let Self { client, order, .. } = self;
        let (url, whole) = (format!("{}/{}", self.source, file.name), self.folder.join(&file.name));
        let shared = order.relay.as_ref().filter(|_| relay::is_worth_it(file));
        match shared.filter(|_| !client.distrusts(&order.version)) {
            None => {
                relay::forget(&whole).await?;
                fetch(client, self.folder, &url, file).await?;
                client.shelf.has(&whole, &file.sha256);
            }
            Some(_) if is_whole(client, &whole, file).await? => relay::forget(&whole).await?,
            Some(members) => {
                let relayed = Relayed {
                    relay: members,
                    version: &order.version,
                    index,
                    file,
                    url: &url,
                    whole: &whole,
                    gone: &self.gone,
                };
                let fetched = relay::fetch(client, &relayed).await;
                // Which agent sent the wrong chunk is unknown: the next attempt asks the source alone. A wrong delta is
                // given up, and the agents still pass the whole file on.
                if let Err(PullError::WrongFile { .. } | PullError::NoRanges { .. }) = fetched
                    && kind == Kind::Whole
                {
                    client.distrust(&order.version);
                }
                fetched?;
            }
        }
        Ok(())
    }

    /// Makes a file from one on disk and its delta, which is fetched; false if it must be fetched whole.
    ///
    /// # Errors
    ///
    /// If the transfer was cut: the next attempt continues, at most [`MOST_CUTS`] times.
    async fn make(&self, fitting: &Fitting<'_>, file: &WeightsFile) -> Result<bool, PullError> {
        let whole = self.folder.join(&file.name);
        let name = &fitting.delta.file.name;
        let delta = self.folder.join(name);
        if is_whole(self.client, &whole, file).await? {
            // Other agents may want it.
            is_whole(self.client, &delta, &fitting.delta.file).await?;
            return Ok(true);
        }
        let why = match self.get(fitting.index, &fitting.delta.file, Kind::Delta).await {
            Ok(()) => match delta::make(fitting, &delta, file, &whole).await {
                Ok(()) => {
                    // What an earlier pull fetched of it.
                    relay::forget(&whole).await?;
                    relay::remove(&partial(&whole, "")).await?;
                    self.client.shelf.has(&whole, &file.sha256);
                    self.client.pulled.made.inc();
                    return Ok(true);
                }
                Err(why) => why.to_string(),
            },
            Err(cut @ (PullError::Unreachable { .. } | PullError::Short { .. }))
                if self.client.delta_was_cut(&self.order.version) <= MOST_CUTS =>
            {
                return Err(cut);
            }
            Err(why) => why.to_string(),
        };
        tracing::warn!("no file was made from {name}: {why}; {} is fetched whole", file.name);
        self.client.pulled.not_made.inc();
        self.client.give_up_delta(&self.order.version);
        // Its bytes may be what the whole file lacks.
        for left in [delta.clone(), partial(&delta, "")] {
            relay::remove(&left).await?;
        }
        relay::forget(&delta).await?;
        self.announced.fetches(&whole, &delta);
        Ok(false)
    }
}

/// The ordered manifest: from disk if it is there, otherwise from the source.
async fn manifest(
    client: &PullClient,
    folder: &Path,
    source: &str,
    order: &WeightsOrder,
) -> Result<(Bytes, WeightsManifest), PullError> {
    let url = format!("{source}/{MANIFEST}");
    let expected = order.manifest_sha256.to_ascii_lowercase();
    let local = fs::read(folder.join(MANIFEST))
        .await
        .ok()
        .filter(|bytes| sha256(bytes) == expected);
    let bytes = match local {
        Some(bytes) => Bytes::from(bytes),
        None => {
            let bytes = small_body(get(client, &url, 0).await?, &url).await?;
            let found = sha256(&bytes);
            if found != expected {
                return Err(PullError::WrongManifest { url, expected, found });
            }
            bytes
        }
    };
    let manifest: WeightsManifest = serde_json::from_slice(&bytes).map_err(|error| PullError::NoManifest {
        url: url.clone(),
        cause: error.to_string(),
    })?;
    if manifest.version != order.version {
        return Err(PullError::WrongVersion {
            url,
            expected: order.version.clone(),
            found: manifest.version,
        });
    }
    Ok((bytes, manifest))
}

/// Fetches one file, from the end of its partial copy.
async fn fetch(client: &PullClient, folder: &Path, url: &str, file: &WeightsFile) -> Result<(), PullError> {
    let expected = file.sha256.to_ascii_lowercase();
    let whole = folder.join(&file.name);
    if is_whole(client, &whole, file).await? {
        return Ok(());
    }
    let partial = partial(&whole, "");
    let (mut have, mut digest) = digest_of(&partial).await.map_err(disk(&partial))?.unwrap_or_default();
    if have > file.bytes {
        fs::remove_file(&partial).await.map_err(disk(&partial))?;
        (have, digest) = Default::default();
    }
    if have < file.bytes || file.bytes == 0 {
        let answer = get(client, url, have).await?;
        if !continues_at(&answer, have) {
            (have, digest) = Default::default();
        }
        let mut options = OpenOptions::new();
        options.create(true).write(true);
        let options = if have > 0 {
            options.append(true)
        } else {
            options.truncate(true)
        };
        let mut out = options.open(&partial).await.map_err(disk(&partial))?;
        let received = receive(
            answer.bytes_stream(),
            &mut out,
            url,
            &partial,
            file.bytes - have,
            &mut digest,
        )
        .await;
        out.flush().await.map_err(disk(&partial))?;
        out.sync_all().await.map_err(disk(&partial))?;
        let received = received?;
        client.pulled.source.inc_by(received);
        have += received;
    }
    if have < file.bytes {
        return Err(PullError::Short {
            url: url.to_owned(),
            found: have,
            expected: file.bytes,
        });
    }
    let found = hex::encode(digest.finalize());
    if found != expected {
        fs::remove_file(&partial).await.map_err(disk(&partial))?;
        return Err(PullError::WrongFile {
            url: url.to_owned(),
            bytes: have,
            expected,
            found,
        });
    }
    fs::rename(&partial, &whole).await.map_err(disk(&whole))
}

/// Whether a file is on disk with the right length and checksum; then it is on the shelf.
async fn is_whole(client: &PullClient, path: &Path, file: &WeightsFile) -> Result<bool, PullError> {
    if client.shelf.knows(path, &file.sha256) && fs::metadata(path).await.is_ok_and(|found| found.len() == file.bytes) {
        return Ok(true);
    }
    let found = digest_of(path).await.map_err(disk(path))?;
    let is_whole = found.is_some_and(|(bytes, digest)| {
        bytes == file.bytes && hex::encode(digest.finalize()).eq_ignore_ascii_case(&file.sha256)
    });
    match is_whole {
        true => client.shelf.has(path, &file.sha256),
        false => client.shelf.lacks(path),
    }
    Ok(is_whole)
}

/// Appends the stream to the file, at most `room` bytes.
async fn receive(
    mut stream: impl Stream<Item = reqwest::Result<Bytes>> + Unpin,
    out: &mut File,
    url: &str,
    path: &Path,
    room: u64,
    digest: &mut Sha256,
) -> Result<u64, PullError> {
    let mut received = 0;
    while let Some(piece) = stream.next().await {
        let piece = piece.map_err(unreachable(url))?;
        received += piece.len() as u64;
        if received > room {
            // The data may belong to another file.
            out.set_len(0).await.map_err(disk(path))?;
            return Err(PullError::Long {
                url: url.to_owned(),
                expected: room,
            });
        }
        digest.update(&piece);
        out.write_all(&piece).await.map_err(disk(path))?;
    }
    Ok(received)
}

async fn get(client: &PullClient, url: &str, from: u64) -> Result<Response, PullError> {
    let mut call = client.for_source(url);
    if from > 0 {
        call = call.header(RANGE, format!("bytes={from}-"));
    }
    let answer = call.send().await.map_err(unreachable(url))?;
    match answer.status() {
        StatusCode::OK | StatusCode::PARTIAL_CONTENT => Ok(answer),
        status => Err(PullError::Refused {
            url: url.to_owned(),
            status,
        }),
    }
}

/// Whether the body starts at `from`; a source without support for ranges sends the whole file.
fn continues_at(answer: &Response, from: u64) -> bool {
    let range = answer
        .headers()
        .get(CONTENT_RANGE)
        .and_then(|range| range.to_str().ok())
        .unwrap_or_default();
    answer.status() == StatusCode::PARTIAL_CONTENT && range.starts_with(&format!("bytes {from}-"))
}

async fn small_body(mut answer: Response, url: &str) -> Result<Bytes, PullError> {
    let mut body = Vec::new();
    while let Some(piece) = answer.chunk().await.map_err(unreachable(url))? {
        body.extend_from_slice(&piece);
        if body.len() > MAX_MANIFEST_BYTES {
            return Err(PullError::Long {
                url: url.to_owned(),
                expected: MAX_MANIFEST_BYTES as u64,
            });
        }
    }
    Ok(body.into())
}

/// Length of a file and the checksum so far; `None` if there is no such file.
async fn digest_of(path: &Path) -> io::Result<Option<(u64, Sha256)>> {
    let mut file = match File::open(path).await {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut digest = Sha256::new();
    let mut length = 0;
    let mut buffer = vec![0; 1 << 20];
    loop {
        let read = file.read(&mut buffer).await?;
        if read == 0 {
            return Ok(Some((length, digest)));
        }
        length += read as u64;
        digest.update(&buffer[..read]);
    }
}

pub fn sha256(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}
