//! How objects are listed and watched, and how an interrupted watch begins anew.

use std::time::Duration;

use kube::runtime::{
    utils::Backoff,
    watcher::{self, DefaultBackoff},
};

/// Objects of one page of a list. A page is in memory as text and as objects at once, in every watch that begins anew
/// when the API server does.
const PAGE: u32 = 50;

/// A watch that is interrupted begins anew after kube's pauses, none longer than this: when the API server is back
/// after minutes, it is not to be waited for half a minute more.
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
