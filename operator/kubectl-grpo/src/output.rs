//! Writes the program's files: a file gets its name when it is complete.

use std::io::Write;
use std::path::{Path, PathBuf};

/// The name of an incomplete file.
pub fn part(file: &Path) -> PathBuf {
    let mut name = file.file_name().unwrap_or_default().to_owned();
    name.push(".part");
    file.with_file_name(name)
}

/// Writes a text to a file, or to standard output for `-`.
pub fn write(file: &Path, text: &str) -> std::io::Result<()> {
    if file == Path::new("-") {
        return anstream::stdout().write_all(text.as_bytes());
    }
    let named = |error: std::io::Error| std::io::Error::new(error.kind(), format!("{}: {error}", file.display()));
    let part = part(file);
    std::fs::write(&part, text)
        .and_then(|()| std::fs::rename(&part, file))
        .map_err(named)
}
