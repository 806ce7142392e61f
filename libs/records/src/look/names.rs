//! The names of a scope's episodes, between a page and the next one.
//!
//! A bucket lists the folders of a large scope in many round trips. So a scope is listed once for a reader of all its
//! pages: the names after a page stay in memory until the reader continues there. Only those of the last page stay, and
//! only for a moment: a scope that grows has new episodes later.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A reader of all pages asks for the next one at once.
const KEPT_FOR: Duration = Duration::from_secs(30);

#[derive(Clone, Debug, Default)]
pub(super) struct RestOfNames(Arc<Mutex<Option<Rest>>>);

#[derive(Debug)]
struct Rest {
    folder: String,
    /// The last name of the page.
    after: String,
    names: Vec<String>,
    at: Instant,
}

impl RestOfNames {
    /// The names, if the last page was of this folder and ended here. Another reader may need them: its page is listed
    /// again.
    pub(super) fn take(&self, folder: &str, after: Option<&str>) -> Option<Vec<String>> {
        let mut rest = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let fits = |rest: &mut Rest| {
            rest.folder == folder && Some(rest.after.as_str()) == after && rest.at.elapsed() < KEPT_FOR
        };
        rest.take_if(fits).map(|rest| rest.names)
    }

    pub(super) fn keep(&self, folder: &str, after: &str, names: Vec<String>) {
        let rest = Rest {
            folder: folder.to_owned(),
            after: after.to_owned(),
            names,
            at: Instant::now(),
        };
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(rest);
    }
}
