//! Pulls one version to local disk: the manifest, then each of its files, with checksums.
//!
//! A file grows under a `.partial` name and is renamed when its length and checksum are right, so every file without
//! this suffix is complete. After an interruption or a restart of the agent, the pull resumes where the partial file
//! ends (HTTP ranges). Files that are already on disk are checked and not fetched again.
//!
//! A large file of an order with several agents comes by chunks, most of them from those agents
//! ([`crate::relay`]).

use crate::cache::{BadName, Cache, PARTIAL, checked_name};
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

const MANIFEST: &str = "manifest.json";

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
    let _announced = client.shelf.pulls(&order.version);
    let members = order.relay.as_ref().map_or(0, |relay| relay.members.len());
    let gone: Vec<AtomicBool> = (0..members).map(|_| AtomicBool::new(false)).collect();
    for (index, file) in manifest.files.iter().enumerate() {
        let name = checked_name(&file.name)?;
        if name == MANIFEST {
            return Err(BadName(name.to_owned()).into());
        }
        let (url, whole) = (format!("{source}/{name}"), folder.join(name));
        let shared = order.relay.as_ref().filter(|_| relay::is_worth_it(file));
        match shared.filter(|_| !client.distrusts(&order.version)) {
            None => {
                relay::forget(&whole).await?;
                fetch(client, &folder, &url, file).await?;
                client.shelf.has(&whole, &file.sha256);
            }
            Some(_) if is_whole(&whole, file).await.map_err(disk(&whole))? => {
                relay::forget(&whole).await?;
                client.shelf.has(&whole, &file.sha256);
            }
            Some(members) => {
                let relayed = Relayed {
                    relay: members,
                    version: &order.version,
                    index,
                    file,
                    url: &url,
                    whole: &whole,
                    gone: &gone,
                };
                let fetched = relay::fetch(client, &relayed).await;
                // Which agent sent the wrong chunk is unknown: the next attempt asks the source alone.
                if let Err(PullError::WrongFile { .. } | PullError::NoRanges { .. }) = fetched {
                    client.distrust(&order.version);
                }
                fetched?;
            }
        }
    }
    // Last, as in the store: a folder with a manifest is complete.
    let path = folder.join(MANIFEST);
    fs::write(&path, &bytes).await.map_err(disk(&path))?;
    Ok(Pulled { folder, manifest })
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
    if is_whole(&whole, file).await.map_err(disk(&whole))? {
        return Ok(());
    }
    let partial = folder.join(format!("{}{PARTIAL}", file.name));
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

/// Whether a file is on disk with the right length and checksum.
async fn is_whole(path: &Path, file: &WeightsFile) -> io::Result<bool> {
    let found = digest_of(path).await?;
    Ok(found.is_some_and(|(bytes, digest)| {
        bytes == file.bytes && hex::encode(digest.finalize()).eq_ignore_ascii_case(&file.sha256)
    }))
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
