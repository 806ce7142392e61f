//! One file while it arrives: its bytes are in `FILE.part` until its size and its checksum are those of the store.

use super::error::CopyError;
use super::plan::Wanted;
use crate::output;
use grpo_records::EpisodeRecord;
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

const PIECE: usize = 1 << 20;
const ROWS: &str = "rows.safetensors";
const TRAJECTORY: &str = "traj.json";

pub struct Arriving<'a> {
    wanted: &'a Wanted,
    dest: &'a Path,
    part: PathBuf,
    written: File,
}

impl<'a> Arriving<'a> {
    /// Continues the file from this byte on.
    pub fn open(dest: &'a Path, wanted: &'a Wanted, from: u64) -> Result<Self, CopyError> {
        let file = dest.join(&wanted.path);
        if let Some(folder) = file.parent() {
            std::fs::create_dir_all(folder).map_err(disk(folder))?;
        }
        let part = output::part(&file);
        let written = match from {
            0 => File::create(&part),
            _ => File::options().append(true).open(&part),
        };
        let written = written.map_err(disk(&part))?;
        Ok(Self {
            wanted,
            dest,
            part,
            written,
        })
    }

    pub fn write(&mut self, piece: &[u8]) -> Result<(), CopyError> {
        self.written.write_all(piece).map_err(disk(&self.part))
    }

    /// Checks the file and gives it its name.
    pub fn finish(self) -> Result<(), CopyError> {
        drop(self.written);
        check(self.wanted, &self.part, self.dest)?;
        let file = self.dest.join(&self.wanted.path);
        std::fs::rename(&self.part, &file).map_err(disk(&file))
    }
}

fn disk(path: &Path) -> impl Fn(std::io::Error) -> CopyError {
    let path = path.to_owned();
    move |source| CopyError::Disk {
        path: path.clone(),
        source,
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
    let disk = disk(part);
    let length = std::fs::metadata(part).map_err(&disk)?.len();
    if length != wanted.bytes {
        return damaged(
            &wanted.path,
            part,
            format!("{length} bytes"),
            format!("{} bytes", wanted.bytes),
        );
    }
    if let Some(sha256) = &wanted.sha256 {
        let found = sha256_of(part).map_err(&disk)?;
        if found != *sha256 {
            return damaged(&wanted.path, part, format!("SHA-256 {found}"), sha256.clone());
        }
    }
    let Some(episode) = wanted.path.strip_suffix(TRAJECTORY) else {
        return Ok(());
    };
    let record = std::fs::read(part).map_err(&disk)?;
    let record = serde_json::from_slice::<EpisodeRecord>(&record).ok();
    let rows = dest.join(episode).join(ROWS);
    if let Some(sha256) = record.and_then(|record| Some(record.rows?.sha256))
        && rows.is_file()
    {
        let found = sha256_of(&rows).map_err(&disk)?;
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
