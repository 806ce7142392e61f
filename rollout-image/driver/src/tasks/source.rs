//! Where the bytes of a dataset come from: a file on a mounted volume.

use crate::fault::TerminalFault;
use std::path::Path;

pub fn read(file: &Path) -> Result<String, TerminalFault> {
    std::fs::read_to_string(file).map_err(|error| {
        TerminalFault::new(
            "DatasetUnreadable",
            format!(
                "reading the dataset {}: {error}; does its volume hold that path?",
                file.display()
            ),
        )
    })
}
