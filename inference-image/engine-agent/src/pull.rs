//! Pulls one version to local disk: the manifest, then each of its files, with checksums.
//!
//! A file grows under a `.partial` name and is renamed when its length and checksum are right, so every file without
//! this suffix is complete. After an interruption or a restart of the agent, the pull resumes where the partial file
//! ends (HTTP ranges). Files that are already on disk are checked and not fetched again.

use crate::cache::{BadName, Cache, PARTIAL, checked_name};
use crate::engine::wire::causes;
use bytes::Bytes;
use futures::{Stream, StreamExt};
use grpo_auth::TokenFile;
use grpo_engine_protocol::WeightsOrder;
use grpo_records::weights::{WeightsFile, WeightsManifest};
use reqwest::header::{CONTENT_RANGE, RANGE};
use reqwest::{Client, Response, StatusCode};
use sha2::{Digest, Sha256};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::fs::{self, File, OpenOptions};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const MANIFEST: &str = "manifest.json";

/// Largest manifest: it names only a few files.
const MAX_MANIFEST_BYTES: usize = 4 << 20;

/// A pull gives up on a source that sends nothing for this long; the next attempt resumes where this one ended.
const STALL: Duration = Duration::from_secs(30);

/// Why a version is not on local disk.
#[derive(Debug, thiserror::Error)]
pub enum PullError {
    #[error("GET {url}: {cause}; is the driver of the run up, and reachable from this pod?")]
    Unreachable { url: String, cause: String },
    #[error("GET {url} was answered {status}; does the run's store still hold this version?")]
    Refused { url: String, status: StatusCode },
    #[error(
        "{url} has sha256 {found}, the order says {expected}; the order is for another manifest, or the store was changed"
    )]
    WrongManifest {
        url: String,
        expected: String,
        found: String,
    },
    #[error("{url} is not a manifest: {cause}")]
    NoManifest { url: String, cause: String },
    #[error("{url} is of version {found}, ordered was {expected}")]
    WrongVersion {
        url: String,
        expected: String,
        found: String,
    },
    #[error(
        "{url} has sha256 {found} over {bytes} bytes, its manifest says {expected}; it was thrown away and will be fetched again"
    )]
    WrongFile {
        url: String,
        bytes: u64,
        expected: String,
        found: String,
    },
    #[error("{url} ended after {found} of {expected} bytes; the next attempt resumes from there")]
    Short { url: String, found: u64, expected: u64 },
    #[error("{url} sends more than the {expected} bytes its manifest says")]
    Long { url: String, expected: u64 },
    #[error(transparent)]
    BadName(#[from] BadName),
    #[error("writing {path}: {cause}; is the volume full?")]
    Disk { path: String, cause: io::Error },
}

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
    for file in &manifest.files {
        let name = checked_name(&file.name)?;
        if name == MANIFEST {
            return Err(BadName(name.to_owned()).into());
        }
        fetch(client, &folder, &format!("{source}/{name}"), file).await?;
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
    if let Some((bytes, digest)) = digest_of(&whole).await.map_err(disk(&whole))?
        && bytes == file.bytes
        && hex::encode(digest.finalize()) == expected
    {
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
        have += received?;
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
    let mut call = client.token.put_on(client.http.get(url));
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

/// A client for pulling, with this pod's token for drivers. It gives up on silence, not on size.
#[derive(Clone, Debug)]
pub struct PullClient {
    http: Client,
    token: TokenFile,
}

impl PullClient {
    pub fn new(token: TokenFile) -> reqwest::Result<Self> {
        let http = Client::builder()
            .connect_timeout(Duration::from_secs(5))
            .read_timeout(STALL)
            .build()?;
        Ok(Self { http, token })
    }
}

pub fn sha256(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}

fn unreachable(url: &str) -> impl Fn(reqwest::Error) -> PullError + '_ {
    move |error| PullError::Unreachable {
        url: url.to_owned(),
        cause: causes(&error),
    }
}

fn disk(path: &Path) -> impl Fn(io::Error) -> PullError + '_ {
    move |cause| PullError::Disk {
        path: path.display().to_string(),
        cause,
    }
}
