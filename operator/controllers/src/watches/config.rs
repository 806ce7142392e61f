//! Configuration of lists and watches, and the back-off of an interrupted watch.

use std::time::Duration;

use kube::runtime::{
    utils::Backoff,
    watcher::{self, DefaultBackoff},
};

/// Objects on one page of a list. A page is in memory as text and as objects at once, in every watch, and all watches
/// restart when the API server does.
const PAGE: u32 = 50;

/// Maximum pause before an interrupted watch restarts; otherwise kube's back-off: after an outage of minutes, kube
/// alone would wait another half minute.
const LONGEST_PAUSE: Duration = Duration::from_secs(4);

/// The pauses of an interrupted watch.
#[derive(Default)]
pub struct Pauses(DefaultBackoff);

impl Iterator for Pauses {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        self.0.next().map(|pause| pause.min(LONGEST_PAUSE))
    }
}

impl Backoff for Pauses {
    fn reset(&mut self) {
        self.0.reset();
    }
}

/// A watch of every object, which lists in small pages.
pub fn every_object() -> watcher::Config {
    watcher::Config::default().page_size(PAGE)
}
