//! Copies records and weights from a run's store to a folder of this machine.
//!
//! ```text
//! folders of the store ──► files with sizes ──► [`plan::step`]: keep, or fetch from a byte on
//!     ──► FILE.part ──► size and checksum ──► FILE
//! ```
//!
//! A file gets its name when it is complete, so an interrupted call continues later. Paths are those of the store:
//! `kubectl grpo show --from` reads a copy with episodes.

mod error;
pub mod merge;
pub mod plan;
mod progress;

pub use self::error::CopyError;

use self::plan::{Kinds, Step, Wanted};
use self::progress::Progress;
use crate::arguments::tools::Copy;
use crate::error::Error;
use crate::output;
use crate::records::Source;
use grpo_records::look::RefusalCode;
use grpo_records::look::files::FileAt;
use grpo_records::weights::WeightsManifest;
use grpo_records::{EpisodeRecord, paths};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A reader pod ends after this time; a later call continues.
pub const DEADLINE: Duration = Duration::from_secs(12 * 3600);
const PIECE: usize = 1 << 20;
const ROWS: &str = "rows.safetensors";
const TRAJECTORY: &str = "traj.json";

/// The result of a call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Copied {
    pub files: u64,
    pub bytes: u64,
    /// Files that existed here already.
    pub kept: u64,
    /// Files that the run removed during the copy.
    pub gone: u64,
    /// The folder of the weights.
    pub weights: Option<PathBuf>,
}

impl Copied {
    pub fn in_words(&self, dest: &Path) -> String {
        let Self { files, kept, gone, .. } = self;
        let bytes = progress::size(self.bytes);
        let mut words = format!(
            "Copied {files} files, {bytes}, to {}; {kept} were here already\n",
            dest.display()
        );
        if *gone > 0 {
            words += &format!(
                "{gone} files were removed by the run meanwhile; the same call copies what took their place\n"
            );
        }
        if let Some(weights) = &self.weights {
            words += &format!("Weights are in {}\n", weights.display());
        }
        words
    }
}

/// Copies the requested kinds; without any, all records.
pub async fn copy(source: &mut Source, asked: &Copy) -> Result<Copied, Error> {
    let mut kinds = Kinds {
        episodes: asked.episodes,
        metrics: asked.metrics,
        rows: asked.rows,
    };
    if kinds == Kinds::default() && asked.weights.is_none() {
        kinds = Kinds {
            episodes: true,
            metrics: true,
            rows: true,
        };
    }
    let mut copying = Copying {
        source,
        dest: &asked.dest,
        done: Copied::default(),
    };
    let mut wanted = Vec::new();
    for folder in kinds.folders() {
        let files = match copying.source.files(folder).await {
            // A driver of an older version does not know each folder, and then its store does not have it.
            Err(Error::Records(refusal)) if refusal.code == RefusalCode::BadPath => Vec::new(),
            files => files?,
        };
        wanted.extend(files.into_iter().map(Wanted::from));
    }
    // Copy no records if the weights cannot be copied.
    let weights = match &asked.weights {
        Some(version) => Some(copying.weights(asked, version).await?),
        None => None,
    };
    wanted.extend(weights.iter().flat_map(|(_, files)| files.iter().cloned()));
    copying.all(&wanted).await?;
    let mut done = copying.done;
    done.weights = weights.map(|(manifest, _)| asked.dest.join(paths::weights(&manifest.version)));
    Ok(done)
}

/// Merges the adapter in a folder into its base model, and returns the model's folder. It computes on a thread that
/// does not delay the program's end after an interrupt.
pub async fn merged(base: &Path, adapter: &Path) -> Result<PathBuf, Error> {
    let mut name = adapter.file_name().unwrap_or_default().to_owned();
    name.push("-merged");
    let target = adapter.with_file_name(name);
    let (base, adapter, to) = (base.to_owned(), adapter.to_owned(), target.clone());
    let (done, merged) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || done.send(merge::merge(&base, &adapter, &to)));
    match merged.await {
        Ok(merged) => merged.map_err(CopyError::from)?,
        Err(_) => return Err(Error::Usage("merging was broken off; call again".into())),
    }
    Ok(target)
}

struct Copying<'a> {
    source: &'a mut Source,
    dest: &'a Path,
    done: Copied,
}

impl Copying<'_> {
    /// The requested version, with its files.
    async fn weights(&mut self, asked: &Copy, version: &str) -> Result<(WeightsManifest, Vec<Wanted>), Error> {
        let mut manifests = Vec::new();
        for file in self.source.files(paths::WEIGHTS).await? {
            if file.path.rsplit('/').next() != Some(paths::MANIFEST) {
                continue;
            }
            // A version that the trainer removed meanwhile does not count.
            if let Some(bytes) = self.source.whole_file(&file.path).await? {
                let path = file.path;
                let manifest = serde_json::from_slice::<WeightsManifest>(&bytes);
                let manifest = manifest.map_err(|source| CopyError::Record { path, source })?;
                manifests.push((manifest, bytes.len() as u64));
            }
        }
        let all: Vec<WeightsManifest> = manifests.iter().map(|(manifest, _)| manifest.clone()).collect();
        let chosen = plan::chosen(&asked.run, &all, version)?.clone();
        plan::is_adapter(&chosen, asked.format, asked.base.is_some())?;
        let bytes = manifests
            .iter()
            .find(|(manifest, _)| *manifest == chosen)
            .map_or(0, |(_, bytes)| *bytes);
        let files = plan::files(&chosen, bytes)?;
        Ok((chosen, files))
    }

    async fn all(&mut self, wanted: &[Wanted]) -> Result<(), Error> {
        let mut progress = Progress::new(wanted.len() as u64, wanted.iter().map(|file| file.bytes).sum());
        for file in wanted {
            self.one(file, &mut progress).await?;
            progress.file();
        }
        Ok(())
    }

    async fn one(&mut self, wanted: &Wanted, progress: &mut Progress) -> Result<(), Error> {
        let file = self.dest.join(&wanted.path);
        let part = output::part(&file);
        let length = |path: &Path| {
            std::fs::metadata(path)
                .ok()
                .filter(|meta| meta.is_file())
                .map(|meta| meta.len())
        };
        let Step::Fetch { from } = plan::step(wanted, length(&file), length(&part)) else {
            self.done.kept += 1;
            progress.bytes(wanted.bytes);
            return Ok(());
        };
        progress.bytes(from);
        let disk = |path: &Path| {
            let path = path.to_owned();
            move |source| CopyError::Disk { path, source }
        };
        if let Some(folder) = file.parent() {
            std::fs::create_dir_all(folder).map_err(disk(folder))?;
        }
        let at = FileAt {
            path: wanted.path.clone(),
            from,
            to: Some(wanted.bytes),
        };
        let broken = |source: Error| CopyError::Broken {
            path: wanted.path.clone(),
            source: Box::new(source),
        };
        let mut pieces = match self.source.file(&at).await {
            Err(Error::Records(refusal)) if refusal.code == RefusalCode::NotThere => {
                self.done.gone += 1;
                return Ok(());
            }
            pieces => pieces.map_err(broken)?,
        };
        let mut written = open(&part, from).map_err(disk(&part))?;
        while let Some(piece) = pieces.next().await.map_err(broken)? {
            written.write_all(&piece).map_err(disk(&part))?;
            self.done.bytes += piece.len() as u64;
            progress.bytes(piece.len() as u64);
        }
        drop(written);
        check(wanted, &part, self.dest)?;
        std::fs::rename(&part, &file).map_err(disk(&file))?;
        self.done.files += 1;
        Ok(())
    }
}

/// Opens the file for writing from this byte on.
fn open(part: &Path, from: u64) -> std::io::Result<File> {
    match from {
        0 => File::create(part),
        _ => File::options().append(true).open(part),
    }
}

/// Rejects and deletes a file that differs from the store's. An episode's record, which is copied after the rows, has
/// their checksum.
fn check(wanted: &Wanted, part: &Path, dest: &Path) -> Result<(), CopyError> {
    let damaged = |path: &str, file: &Path, found: String, wanted: String| {
        // A damaged file is not continued.
        let _ = std::fs::remove_file(file);
        Err(CopyError::Damaged {
            path: path.to_owned(),
            found,
            wanted,
        })
    };
    let disk = |source| CopyError::Disk {
        path: part.to_owned(),
        source,
    };
    let length = std::fs::metadata(part).map_err(disk)?.len();
    if length != wanted.bytes {
        return damaged(
            &wanted.path,
            part,
            format!("{length} bytes"),
            format!("{} bytes", wanted.bytes),
        );
    }
    if let Some(sha256) = &wanted.sha256 {
        let found = sha256_of(part).map_err(disk)?;
        if found != *sha256 {
            return damaged(&wanted.path, part, format!("SHA-256 {found}"), sha256.clone());
        }
    }
    let Some(episode) = wanted.path.strip_suffix(TRAJECTORY) else {
        return Ok(());
    };
    let record = std::fs::read(part).map_err(disk)?;
    let record = serde_json::from_slice::<EpisodeRecord>(&record).ok();
    let rows = dest.join(episode).join(ROWS);
    if let Some(sha256) = record.and_then(|record| Some(record.rows?.sha256))
        && rows.is_file()
    {
        let found = sha256_of(&rows).map_err(disk)?;
        if found != sha256 {
            return damaged(&format!("{episode}{ROWS}"), &rows, format!("SHA-256 {found}"), sha256);
        }
    }
    Ok(())
}

fn sha256_of(file: &Path) -> std::io::Result<String> {
    let (mut input, mut digest, mut piece) = (File::open(file)?, Sha256::new(), vec![0; PIECE]);
    loop {
        match input.read(&mut piece)? {
            0 => return Ok(hex::encode(digest.finalize())),
            length => digest.update(&piece[..length]),
        }
    }
}

#[cfg(test)]
mod tests;
