//! Prints the progress of an export, one line every ten seconds: thousands of episodes take hours.

use std::time::{Duration, Instant};

const SAY: Duration = Duration::from_secs(10);

pub(super) struct Progress {
    said: Instant,
    done: usize,
    all: usize,
}

impl Progress {
    pub(super) fn new(all: usize) -> Self {
        let said = Instant::now();
        Self { said, done: 0, all }
    }

    /// Counts an episode that is written.
    pub(super) fn episode(&mut self) {
        self.done += 1;
        if self.said.elapsed() >= SAY {
            self.said = Instant::now();
            eprintln!("{}", self.in_words());
        }
    }

    fn in_words(&self) -> String {
        format!("{} of {} episodes", self.done, self.all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_export_says_how_many_episodes_are_written() {
        let mut progress = Progress::new(40_000);
        progress.episode();
        progress.episode();
        assert_eq!(progress.in_words(), "2 of 40000 episodes");
    }
}
