//! Prints the progress of a copy, one line every ten seconds.

use std::time::{Duration, Instant};

const SAY: Duration = Duration::from_secs(10);

pub struct Progress {
    began: Instant,
    said: Instant,
    files: (u64, u64),
    bytes: (u64, u64),
}

impl Progress {
    pub fn new(files: u64, bytes: u64) -> Self {
        let now = Instant::now();
        Self {
            began: now,
            said: now,
            files: (0, files),
            bytes: (0, bytes),
        }
    }

    /// Counts a finished file.
    pub fn file(&mut self) {
        self.files.0 += 1;
    }

    /// Counts more copied bytes.
    pub fn bytes(&mut self, more: u64) {
        self.bytes.0 += more;
        if self.said.elapsed() >= SAY {
            self.said = Instant::now();
            eprintln!("{}", self.in_words(self.began.elapsed()));
        }
    }

    fn in_words(&self, took: Duration) -> String {
        let ((files, all_files), (bytes, all_bytes)) = (self.files, self.bytes);
        let rate = (bytes as f64 / took.as_secs_f64().max(1.0)) as u64;
        let (bytes, all_bytes, rate) = (size(bytes), size(all_bytes), size(rate));
        format!("{files} of {all_files} files, {bytes} of {all_bytes}, {rate}/s")
    }
}

/// The size in a readable unit.
pub fn size(bytes: u64) -> String {
    let units = [(1_000_000_000, "GB"), (1_000_000, "MB"), (1000, "kB")];
    match units.iter().find(|(scale, _)| bytes >= *scale) {
        Some((scale, unit)) => format!("{:.1} {unit}", bytes as f64 / *scale as f64),
        None => format!("{bytes} bytes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_says_how_many_files_and_bytes_are_here() {
        let mut progress = Progress::new(20, 16_400_000_000);
        progress.bytes(3_400_000_000);
        progress.file();
        let words = progress.in_words(Duration::from_secs(34));
        assert_eq!(words, "1 of 20 files, 3.4 GB of 16.4 GB, 100.0 MB/s");
        assert_eq!((size(999), size(1500)), ("999 bytes".into(), "1.5 kB".into()));
    }
}
