//! Transfer of files and folders.

use std::io::{Cursor, Read};

use axum::Json;
use axum::body::Bytes;
use axum::http::{HeaderMap, header};
use grpo_sandbox_protocol::MAX_FILE_BYTES;
use serde::Deserialize;
use serde_json::json;

use super::errors::{Kind, SwerexError};
use super::{Answer, Runtime, TTL, read as parsed};

const MODE: &str = "0644";

#[derive(Deserialize)]
pub(super) struct ReadFile {
    path: String,
    #[serde(default)]
    encoding: Option<String>,
    #[serde(default)]
    errors: Option<String>,
}

impl ReadFile {
    /// Decodes text as Python does, with normalized line ends.
    fn text(&self, bytes: &[u8]) -> Result<String, SwerexError> {
        let encoding = self
            .encoding
            .as_deref()
            .unwrap_or("utf-8")
            .to_lowercase()
            .replace('_', "-");
        let text = match (encoding.as_str(), self.errors.as_deref().unwrap_or("strict")) {
            ("latin-1" | "latin1" | "iso-8859-1", _) => bytes.iter().map(|byte| char::from(*byte)).collect(),
            ("utf-8" | "utf8" | "ascii", "strict") => std::str::from_utf8(bytes)
                .map_err(|error| Kind::Value.error(format!("{}: {error}", self.path)))?
                .to_owned(),
            ("utf-8" | "utf8" | "ascii", "replace") => String::from_utf8_lossy(bytes).into_owned(),
            ("utf-8" | "utf8" | "ascii", "ignore") => bytes.utf8_chunks().map(|chunk| chunk.valid()).collect(),
            (encoding, errors) => {
                let message = format!("unknown encoding {encoding:?} or handling of errors {errors:?} here");
                return Err(Kind::Lookup.error(message));
            }
        };
        Ok(text.replace("\r\n", "\n").replace('\r', "\n"))
    }
}

pub(super) async fn read(runtime: Runtime, body: Bytes) -> Answer {
    let asked: ReadFile = parsed(body)?;
    runtime.compat.own.renew(&runtime.lease, TTL).await?;
    let bytes = runtime.compat.own.get(&runtime.lease, &asked.path).await?;
    Ok(Json(json!({"content": asked.text(&bytes)?})))
}

#[derive(Deserialize)]
pub(super) struct WriteFile {
    content: String,
    path: String,
}

pub(super) async fn write(runtime: Runtime, body: Bytes) -> Answer {
    let file: WriteFile = parsed(body)?;
    put(&runtime, &file.path, file.content.into_bytes().into()).await?;
    Ok(Json(json!({})))
}

/// An existing file keeps its permissions.
async fn put(runtime: &Runtime, path: &str, bytes: Bytes) -> Result<(), SwerexError> {
    let script = "stat -L -c %a -- \"$1\" 2> /dev/null || echo";
    let mode = runtime.script("mode", script, &[path]).await?;
    let mode = match mode.trim() {
        "" => MODE,
        mode => mode,
    };
    runtime.compat.own.put(&runtime.lease, path, mode, bytes).await?;
    Ok(())
}

/// A form with a file. A folder comes as a zip.
pub(super) async fn upload(runtime: Runtime, headers: HeaderMap, body: Bytes) -> Answer {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let boundary = multer::parse_boundary(kind.unwrap_or_default());
    let boundary = boundary.map_err(|error| SwerexError::unprocessable(&error.to_string()))?;
    // The form is a copy of the body. The body's share of the room is held until the end, so it covers the copy too.
    let _share = body.clone();
    let form = Form::read(body, boundary).await?;
    if form.unzip {
        let tar = retarred(&form.file).map_err(|error| Kind::Value.error(format!("reading the zip: {error}")))?;
        runtime.compat.own.renew(&runtime.lease, TTL).await?;
        runtime
            .compat
            .own
            .put_tree(&runtime.lease, &form.target_path, tar.into())
            .await?;
    } else {
        put(&runtime, &form.target_path, form.file).await?;
    }
    Ok(Json(json!({})))
}

#[derive(Default)]
struct Form {
    file: Bytes,
    target_path: String,
    unzip: bool,
}

impl Form {
    async fn read(body: Bytes, boundary: String) -> Result<Self, SwerexError> {
        let broken = |error: multer::Error| SwerexError::unprocessable(&error.to_string());
        let whole = futures::stream::iter([Ok::<_, std::io::Error>(body)]);
        let mut parts = multer::Multipart::new(whole, boundary);
        let mut form = Self::default();
        while let Some(part) = parts.next_field().await.map_err(broken)? {
            match part.name().unwrap_or_default() {
                "file" => form.file = part.bytes().await.map_err(broken)?,
                "target_path" => form.target_path = part.text().await.map_err(broken)?,
                "unzip" => form.unzip = matches!(part.text().await.map_err(broken)?.as_str(), "true" | "True" | "1"),
                _ => {}
            }
        }
        match form.target_path.is_empty() {
            true => Err(SwerexError::unprocessable("target_path is missing")),
            false => Ok(form),
        }
    }
}

/// Converts a zip to a tar, the format that sandboxd takes. Bounds the unpacked size. sandboxd refuses names that lead
/// out of the folder.
fn retarred(zip: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut zip = zip::ZipArchive::new(Cursor::new(zip))?;
    let mut tar = tar::Builder::new(Vec::new());
    let mut left = MAX_FILE_BYTES as u64;
    for nth in 0..zip.len() {
        let mut entry = zip.by_index(nth)?;
        let mut head = tar::Header::new_gnu();
        let is_folder = entry.is_dir();
        let usual = if is_folder { 0o755 } else { 0o644 };
        head.set_mode(entry.unix_mode().map_or(usual, |mode| mode & 0o777));
        head.set_entry_type(match is_folder {
            true => tar::EntryType::Directory,
            false => tar::EntryType::Regular,
        });
        let mut bytes = Vec::new();
        (&mut entry).take(left + 1).read_to_end(&mut bytes)?;
        left = left.checked_sub(bytes.len() as u64).ok_or_else(|| {
            let message = format!("it unfolds to more than {MAX_FILE_BYTES} bytes");
            std::io::Error::new(std::io::ErrorKind::FileTooLarge, message)
        })?;
        head.set_size(bytes.len() as u64);
        let name = entry.name().to_owned();
        tar.append_data(&mut head, name, bytes.as_slice())?;
    }
    tar.into_inner()
}
