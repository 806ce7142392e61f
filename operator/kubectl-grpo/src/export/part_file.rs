//! A file that is written piece by piece, and gets its name when it is complete: its content may not fit into memory.

use crate::output;
use std::fs::File;
use std::io::{BufWriter, Error, Result, Write};
use std::path::{Path, PathBuf};

pub(super) struct PartFile {
    file: PathBuf,
    part: PathBuf,
    out: BufWriter<File>,
}

impl PartFile {
    /// Begins the file, in a folder that is made if it is missing.
    pub(super) fn create(file: PathBuf) -> Result<Self> {
        let part = output::part(&file);
        let out = file.parent().map_or(Ok(()), std::fs::create_dir_all);
        let out = out.and_then(|()| File::create(&part)).map_err(named(&file))?;
        Ok(Self {
            file,
            part,
            out: BufWriter::new(out),
        })
    }

    pub(super) fn write(&mut self, text: &str) -> Result<()> {
        self.out.write_all(text.as_bytes()).map_err(named(&self.file))
    }

    pub(super) fn finish(mut self) -> Result<()> {
        let written = self.out.flush();
        let written = written.and_then(|()| std::fs::rename(&self.part, &self.file));
        written.map_err(named(&self.file))
    }
}

fn named(file: &Path) -> impl Fn(Error) -> Error {
    move |error| Error::new(error.kind(), format!("{}: {error}", file.display()))
}
