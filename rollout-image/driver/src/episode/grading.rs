//! Counts the episodes that are being graded, for the stage that people see.

use tokio::sync::watch;

/// An episode that is being graded. It counts until this is dropped: a grading that is given up with its episode ends
/// too.
pub(super) struct Grading<'a>(&'a watch::Sender<usize>);

impl<'a> Grading<'a> {
    pub(super) fn begin(count: &'a watch::Sender<usize>) -> Self {
        count.send_modify(|count| *count += 1);
        Self(count)
    }
}

impl Drop for Grading<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count = count.saturating_sub(1));
    }
}

#[cfg(test)]
mod tests;
