//! Copies records and weights from a run's store to a folder of this machine.
//!
//! ```text
//! folders of the store ──► files with sizes ──► [`plan::step`]: keep, or fetch from a byte on
//!     ──► FILE.part ──► size and checksum ──► FILE
//! ```
//!
//! Small files arrive many at a time; a driver of an older version sends one file at a time. A file gets its name when
//! it is complete, so an interrupted call continues later. Paths are those of the store: `kubectl grpo show --from`
//! reads a copy with episodes.

mod arriving;
mod batch;
pub mod error;
pub mod merge;
pub mod plan;
mod progress;

pub use self::error::CopyError;

use self::arriving::Arriving;
use self::batch::Batch;
use self::plan::{Kinds, Step, Wanted};
use self::progress::Progress;
use crate::arguments::tools::Copy;
use crate::error::Error;
use crate::output;
use crate::records::Source;
use grpo_records::look::RefusalCode;
use grpo_records::look::files::FileAt;
use grpo_records::paths;
use grpo_records::weights::WeightsManifest;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A reader pod ends after this time; a later call continues.
pub const DEADLINE: Duration = Duration::from_secs(12 * 3600);

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
        let mut batch = Batch::new(self.source.bulk_limits().await?);
        for file in wanted {
            match self.step(file) {
                Step::Keep => {
                    self.done.kept += 1;
                    progress.bytes(file.bytes);
                    progress.file();
                }
                Step::Fetch { from: 0 } if batch.accepts(file) => {
                    if batch.is_full_for(file) {
                        self.together(batch.take(), &mut progress).await?;
                    }
                    batch.add(file);
                }
                // Files keep their order: an episode's rows come before its record, a version's files before its
                // manifest.
                Step::Fetch { from } => {
                    self.together(batch.take(), &mut progress).await?;
                    self.one(file, from, &mut progress).await?;
                }
            }
        }
        self.together(batch.take(), &mut progress).await
    }

    fn step(&self, wanted: &Wanted) -> Step {
        let file = self.dest.join(&wanted.path);
        let length = |path: &Path| {
            std::fs::metadata(path)
                .ok()
                .filter(|meta| meta.is_file())
                .map(|meta| meta.len())
        };
        plan::step(wanted, length(&file), length(&output::part(&file)))
    }

    /// Fetches files with one request.
    async fn together(&mut self, files: Vec<&Wanted>, progress: &mut Progress) -> Result<(), Error> {
        let Some(first) = files.first() else { return Ok(()) };
        let asked = self.source.bulk(&batch::request(&files)).await;
        let Some(mut answer) = asked.map_err(broken(first))? else {
            for wanted in files {
                self.one(wanted, 0, progress).await?;
            }
            return Ok(());
        };
        for wanted in files {
            if !answer.begin(&wanted.path).await.map_err(broken(wanted))? {
                self.gone(progress);
                continue;
            }
            let mut arriving = Arriving::open(self.dest, wanted, 0)?;
            while let Some(piece) = answer.next().await.map_err(broken(wanted))? {
                self.write(&mut arriving, &piece, progress)?;
            }
            self.finish(arriving, progress)?;
        }
        answer.end().await
    }

    async fn one(&mut self, wanted: &Wanted, from: u64, progress: &mut Progress) -> Result<(), Error> {
        progress.bytes(from);
        let at = FileAt {
            path: wanted.path.clone(),
            from,
            to: Some(wanted.bytes),
        };
        let mut pieces = match self.source.file(&at).await {
            Err(Error::Records(refusal)) if refusal.code == RefusalCode::NotThere => {
                self.gone(progress);
                return Ok(());
            }
            pieces => pieces.map_err(broken(wanted))?,
        };
        let mut arriving = Arriving::open(self.dest, wanted, from)?;
        while let Some(piece) = pieces.next().await.map_err(broken(wanted))? {
            self.write(&mut arriving, &piece, progress)?;
        }
        self.finish(arriving, progress)
    }

    fn gone(&mut self, progress: &mut Progress) {
        self.done.gone += 1;
        progress.file();
    }

    fn write(&mut self, arriving: &mut Arriving<'_>, piece: &[u8], progress: &mut Progress) -> Result<(), Error> {
        arriving.write(piece)?;
        self.done.bytes += piece.len() as u64;
        progress.bytes(piece.len() as u64);
        Ok(())
    }

    fn finish(&mut self, arriving: Arriving<'_>, progress: &mut Progress) -> Result<(), Error> {
        arriving.finish()?;
        self.done.files += 1;
        progress.file();
        Ok(())
    }
}

fn broken(wanted: &Wanted) -> impl Fn(Error) -> CopyError {
    move |source| CopyError::Broken {
        path: wanted.path.clone(),
        source: Box::new(source),
    }
}

#[cfg(test)]
mod tests;
