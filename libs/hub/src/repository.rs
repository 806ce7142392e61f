//! Types of the hub's protocol: repositories, commits, files and their digests.

use std::fmt;
use std::path::{Component, Path};

use serde::{Deserialize, Serialize};
use sha1::Digest as _;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Model,
    Dataset,
}

/// A repository of the hub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repository {
    pub kind: Kind,
    /// Owner and name, or only a name.
    pub name: String,
}

impl Repository {
    pub fn model(name: impl Into<String>) -> Self {
        let (kind, name) = (Kind::Model, name.into());
        Self { kind, name }
    }

    pub fn dataset(name: impl Into<String>) -> Self {
        let (kind, name) = (Kind::Dataset, name.into());
        Self { kind, name }
    }

    /// Its folder in a cache, named as by `huggingface_hub`.
    pub fn folder(&self) -> String {
        format!("{}s--{}", self.word(), self.name.replace('/', "--"))
    }

    fn word(&self) -> &'static str {
        match self.kind {
            Kind::Model => "model",
            Kind::Dataset => "dataset",
        }
    }

    /// The path part below `api/`.
    pub(crate) fn collection(&self) -> &'static str {
        match self.kind {
            Kind::Model => "models",
            Kind::Dataset => "datasets",
        }
    }
}

impl fmt::Display for Repository {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.word(), self.name)
    }
}

/// Identifies content: a commit of a repository (40 lower-case hexadecimal digits), or the checksum of a listing (64).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Commit(String);

impl TryFrom<String> for Commit {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let is_known = [40, 64].iter().any(|length| is_hex(&text, *length));
        let refused = || format!("{text:?} is neither a commit (40 hexadecimal digits) nor a listing's checksum (64)");
        is_known.then_some(Self(text.clone())).ok_or_else(refused)
    }
}

impl From<Commit> for String {
    fn from(commit: Commit) -> Self {
        commit.0
    }
}

impl Commit {
    pub fn parse(text: &str) -> Option<Self> {
        is_hex(text, 40).then(|| Self(text.to_owned()))
    }

    /// Identifies a listing of files: the SHA-256 of their paths, sizes and digests, in the order of the paths.
    pub fn of_listing(files: &[RemoteFile]) -> Self {
        let mut files: Vec<_> = files.iter().collect();
        files.sort_by(|one, other| one.path.cmp(&other.path));
        let mut checksum = sha2::Sha256::default();
        for file in files {
            // A path has no NUL, so two listings never give the same text.
            checksum.update(format!("{}\0{}\0{}\0", file.path, file.size, file.digest.as_str()));
        }
        Self(hex::encode(checksum.finalize()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Commit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn is_hex(text: &str, length: usize) -> bool {
    text.len() == length && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// The expected digest of a file's bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Digest {
    /// For a large file.
    Sha256(String),
    /// For a file stored in Git itself: over `blob <length>\0` and the bytes.
    GitBlob(String),
    /// For an object in a bucket: identifies its version. The server is asked for this version only. The bytes cannot
    /// be checked against it: for some objects (multipart, encrypted) an ETag is not a checksum of the bytes.
    ETag(String),
}

impl Digest {
    pub fn as_str(&self) -> &str {
        match self {
            Self::Sha256(text) | Self::GitBlob(text) | Self::ETag(text) => text,
        }
    }
}

/// A digest that is computed as bytes arrive.
pub(crate) enum Hasher {
    Sha256(sha2::Sha256),
    GitBlob(sha1::Sha1),
    /// Returns this value.
    Unchecked(String),
}

impl Hasher {
    pub fn new(file: &RemoteFile) -> Self {
        match &file.digest {
            Digest::Sha256(_) => Self::Sha256(sha2::Sha256::default()),
            Digest::GitBlob(_) => {
                Self::GitBlob(sha1::Sha1::default().chain_update(format!("blob {}\0", file.size).as_bytes()))
            }
            Digest::ETag(tag) => Self::Unchecked(tag.clone()),
        }
    }

    pub fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha256(hash) => hash.update(bytes),
            Self::GitBlob(hash) => hash.update(bytes),
            Self::Unchecked(_) => {}
        }
    }

    pub fn hex(self) -> String {
        match self {
            Self::Sha256(hash) => hex::encode(hash.finalize()),
            Self::GitBlob(hash) => hex::encode(hash.finalize()),
            Self::Unchecked(tag) => tag,
        }
    }
}

/// A file of a commit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoteFile {
    /// Path below the repository's root; never leaves it.
    #[serde(deserialize_with = "path_below")]
    pub path: String,
    pub size: u64,
    pub digest: Digest,
}

impl RemoteFile {
    /// A file of a listing. `None` if its path leaves the listed folder.
    pub fn listed(path: &str, size: u64, digest: Digest) -> Option<Self> {
        let is_plain = stays_below(path) && path.split('/').all(|part| !matches!(part, "" | "."));
        let path = path.to_owned();
        is_plain.then_some(Self { path, size, digest })
    }
}

/// An entry of the hub's listing of a commit.
#[derive(Deserialize)]
pub(crate) struct TreeEntry {
    #[serde(rename = "type")]
    kind: String,
    path: String,
    #[serde(default)]
    size: u64,
    #[serde(default)]
    oid: String,
    lfs: Option<LargeFile>,
}

#[derive(Deserialize)]
struct LargeFile {
    oid: String,
    size: u64,
}

impl TreeEntry {
    /// `None` for a folder. An error describes the defect of the entry.
    pub fn file(self) -> Result<Option<RemoteFile>, String> {
        if self.kind != "file" {
            return Ok(None);
        }
        if !stays_below(&self.path) {
            return Err(format!("the path {:?} leaves its repository", self.path));
        }
        let (size, digest, length) = match self.lfs {
            Some(large) => (large.size, Digest::Sha256(large.oid), 64),
            None => (self.size, Digest::GitBlob(self.oid), 40),
        };
        let is_hash = digest.as_str().len() == length && digest.as_str().bytes().all(|byte| byte.is_ascii_hexdigit());
        if !is_hash {
            return Err(format!("{} has the digest {:?}", self.path, digest.as_str()));
        }
        let path = self.path;
        Ok(Some(RemoteFile { path, size, digest }))
    }
}

fn path_below<'de, D: serde::Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    let path = String::deserialize(from)?;
    match stays_below(&path) {
        true => Ok(path),
        false => Err(serde::de::Error::custom(format!(
            "the path {path:?} leaves its repository"
        ))),
    }
}

/// A server that cannot be trusted must not write outside of the cache.
fn stays_below(path: &str) -> bool {
    let plain = Path::new(path)
        .components()
        .all(|part| matches!(part, Component::Normal(_)));
    plain && !path.is_empty() && !path.contains(['\0', '\\']) && path.len() <= 1024
}

#[cfg(test)]
mod tests;
