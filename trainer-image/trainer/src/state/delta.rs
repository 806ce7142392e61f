//! The delta of a version that is being published. The file of the version before is read from the store meanwhile, and
//! the differences become a second file: engines that have the earlier version fetch that one.
//!
//! Engines can fetch every version whole. So no failure here ends a publication: the version then has no delta, and the
//! log says why.

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;
use grpo_records::paths;
use grpo_records::store::{StoreError, Uploaded, wait};
use grpo_records::weights::{WeightsDelta, WeightsFile, WeightsManifest};
use grpo_weights_delta::{DeltaError, Encoder};

use super::store::{FileUpload, TrainerStore};
use crate::error::TrainError;

/// A delta may take this share of its file; before the end, also so many bytes more, since the first tensors may differ
/// most. One of half a file is not worth its making.
const WORTHWHILE: u64 = 2;
const AT_LEAST: u64 = 1 << 20;

/// Why a version gets no delta.
#[derive(Debug, thiserror::Error)]
enum NoDelta {
    #[error(transparent)]
    Store(#[from] TrainError),
    #[error(transparent)]
    Encode(#[from] DeltaError),
    #[error("the file of the version before ends after {at} bytes, before its manifest says so")]
    ShortBase { at: u64 },
    #[error("so many values changed that it has {delta} bytes after {of} of the file")]
    TooLarge { delta: u64, of: u64 },
}

/// The deltas of one file, or none.
pub(super) struct DeltaUpload<'a>(Option<Making<'a>>);

struct Making<'a> {
    base: String,
    base_file: WeightsFile,
    encoder: Encoder,
    file: FileUpload<'a>,
    /// The rest of the base, some pieces of it ahead, and what came of it that is not compared yet.
    base_bytes: BoxStream<'static, Result<Bytes, StoreError>>,
    came: Bytes,
    /// Bytes of the new file, and of the delta, so far.
    at: u64,
    written: u64,
    frames: Vec<u8>,
}

impl<'a> DeltaUpload<'a> {
    /// Begins the delta of `name`, a file of `bytes` bytes in `version`, from the file of that name in `base`. There is
    /// none if the base has no such file of this length: it has other tensors, or another precision.
    pub(super) fn begin(store: &'a TrainerStore, version: &str, name: &str, bytes: u64, base: Option<&str>) -> Self {
        let begun = base.map(|base| Making::begin(store, version, name, bytes, base));
        match begun.transpose() {
            Ok(making) => Self(making.flatten()),
            Err(why) => {
                tracing::warn!(version, "weights are published without a delta: {why}");
                Self(None)
            }
        }
    }

    /// Adds the next bytes of the file.
    pub(super) fn add(&mut self, new: &[u8]) {
        if let Some(Err(why)) = self.0.as_mut().map(|making| making.add(new)) {
            tracing::warn!("weights are published without a delta: {why}");
            self.0 = None;
        }
    }

    /// Names the delta, for the manifest.
    pub(super) fn finish(self) -> Option<WeightsDelta> {
        match self.0?.finish() {
            Ok(delta) => Some(delta),
            Err(why) => {
                tracing::warn!("weights are published without a delta: {why}");
                None
            }
        }
    }
}

impl<'a> Making<'a> {
    fn begin(
        store: &'a TrainerStore,
        version: &str,
        name: &str,
        bytes: u64,
        base: &str,
    ) -> Result<Option<Self>, NoDelta> {
        let Some(manifest) = store.read_if_there(&paths::weights_manifest(base))? else {
            return Ok(None);
        };
        let path = paths::weights_manifest(base);
        let manifest: WeightsManifest = serde_json::from_slice(&manifest).map_err(|error| TrainError::Damaged {
            path,
            message: error.to_string(),
        })?;
        let same = |file: &WeightsFile| file.name == name && file.bytes == bytes;
        let Some(base_file) = manifest.files.into_iter().find(same) else {
            return Ok(None);
        };
        let target = paths::weights_file(version, &WeightsDelta::name_of(name));
        let path = paths::weights_file(base, name);
        let mut making = Self {
            base: base.to_owned(),
            base_file,
            encoder: Encoder::new()?,
            file: store.begin_file(&target)?,
            base_bytes: store.records().stream(&path, 0..bytes).boxed(),
            came: Bytes::new(),
            at: 0,
            written: 0,
            frames: Vec::new(),
        };
        making.encoder.begin(&mut making.frames);
        making.write()?;
        Ok(Some(making))
    }

    fn add(&mut self, mut new: &[u8]) -> Result<(), NoDelta> {
        while !new.is_empty() {
            if self.came.is_empty() {
                let next = wait(self.base_bytes.next()).ok_or(NoDelta::ShortBase { at: self.at })?;
                self.came = next.map_err(TrainError::from)?;
            }
            let both = new.len().min(self.came.len());
            let (now, later) = new.split_at(both);
            self.encoder.add(&self.came.split_to(both), now, &mut self.frames)?;
            self.at += both as u64;
            new = later;
        }
        self.write()
    }

    fn write(&mut self) -> Result<(), NoDelta> {
        self.file.write(&self.frames)?;
        self.written += self.frames.len() as u64;
        self.frames.clear();
        match self.written > self.at / WORTHWHILE + AT_LEAST {
            true => Err(NoDelta::TooLarge {
                delta: self.written,
                of: self.at,
            }),
            false => Ok(()),
        }
    }

    fn finish(mut self) -> Result<WeightsDelta, NoDelta> {
        self.encoder.end(&mut self.frames);
        self.file.write(&self.frames)?;
        let (delta, of) = (self.written + self.frames.len() as u64, self.at);
        if delta > of / WORTHWHILE {
            return Err(NoDelta::TooLarge { delta, of });
        }
        let Uploaded { bytes, sha256 } = self.file.finish()?;
        let of = self.base_file.name;
        Ok(WeightsDelta {
            file: WeightsFile {
                name: WeightsDelta::name_of(&of),
                bytes,
                sha256,
            },
            of,
            base: self.base,
            base_sha256: self.base_file.sha256,
        })
    }
}
