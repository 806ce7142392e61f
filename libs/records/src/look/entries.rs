//! The journal and the metrics of a run, in pages, for readers that follow a run while it works.
//!
//! Both are numbered files, so a reader continues after the last number that it has.

use super::{Records, Refusal};
use crate::paths;
use crate::store::{READ_AT_ONCE, StoreError, wait};
use crate::{IterationRecord, JournalEntry, StepMetrics};
use futures::StreamExt;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Maximum journal entries per page.
pub const ENTRIES_A_PAGE: u64 = 1000;
/// Maximum metrics of each kind per page.
pub const RECORDS_A_PAGE: usize = 500;

/// Selects entries of the journal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EntriesOf {
    /// Only entries after this number; 0 for all.
    #[serde(default)]
    pub after: u64,
}

/// A page of the journal, in order.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EntryPage {
    pub entries: Vec<JournalEntry>,
    /// The value of `after` for the next page: the number of the last entry that was read. Truncated entries were read
    /// and are not in the page.
    pub after: u64,
    /// The page is full, so the next one may have entries now.
    pub more: bool,
}

/// Selects metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MetricsOf {
    /// Only iterations after this one.
    #[serde(default)]
    pub iterations_after: u32,
    /// Only steps after this one.
    #[serde(default)]
    pub steps_after: u32,
}

/// A page of metrics, in order.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MetricsPage {
    pub iterations: Vec<IterationRecord>,
    pub steps: Vec<StepMetrics>,
    /// Whether the next page has records now.
    pub more: bool,
    /// Files that cannot be read, with the cause. The others of their folder are in the pages all the same.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub damaged: Vec<String>,
}

impl Records {
    /// Entries have no gaps, so no folder is listed: the journal of a long run has 100,000 files.
    pub fn entries(&self, wanted: &EntriesOf) -> Result<EntryPage, Refusal> {
        let numbers = wanted.after.saturating_add(1)..=wanted.after.saturating_add(ENTRIES_A_PAGE);
        let mut page = EntryPage {
            after: wanted.after,
            ..EntryPage::default()
        };
        // Usually nothing is new. Reading ahead would then ask a bucket for files that do not exist.
        if self.length(&paths::journal_entry(*numbers.start()))?.is_none() {
            return Ok(page);
        }
        let read = self
            .store
            .read_each::<JournalEntry, _>(numbers.map(paths::journal_entry));
        wait(async {
            let mut read = std::pin::pin!(read);
            while let Some(entry) = read.next().await {
                match entry {
                    Ok(entry) => page.entries.push(entry),
                    Err(StoreError::Missing { .. }) => return Ok(()),
                    // Truncated: it was never acknowledged.
                    Err(StoreError::Unreadable { source, .. }) if source.is_eof() => {}
                    Err(error) => return Err(Refusal::from(error)),
                }
                page.after += 1;
            }
            page.more = true;
            Ok(())
        })?;
        Ok(page)
    }

    pub fn metrics(&self, wanted: &MetricsOf) -> Result<MetricsPage, Refusal> {
        let mut damaged = Vec::new();
        let (iterations, more_iterations) =
            self.numbered(paths::DRIVER_METRICS, wanted.iterations_after, &mut damaged)?;
        let (steps, more_steps) = self.numbered(paths::TRAINER_METRICS, wanted.steps_after, &mut damaged)?;
        Ok(MetricsPage {
            iterations,
            steps,
            more: more_iterations || more_steps,
            damaged,
        })
    }

    /// The records of a folder whose files are numbers greater than `after`, and whether there are more than a page.
    /// The first number is above 1 in a store whose run continues another.
    fn numbered<T: DeserializeOwned + Send>(
        &self,
        folder: &str,
        after: u32,
        damaged: &mut Vec<String>,
    ) -> Result<(Vec<T>, bool), Refusal> {
        let (names, _) = wait(self.store.names_in(folder))?;
        let number = |name: &String| name.strip_suffix(".json")?.parse().ok();
        let new = names
            .into_iter()
            .filter(|name| number(name).is_some_and(|n: u32| n > after));
        let mut paths: Vec<String> = new.map(|name| format!("{folder}/{name}")).collect();
        let more = paths.len() > RECORDS_A_PAGE;
        paths.truncate(RECORDS_A_PAGE);
        // A bucket answers each after a round trip.
        let read = paths.into_iter().map(|path| {
            let store = self.store.clone();
            async move { store.read_json::<T>(&path).await }
        });
        let read = futures::stream::iter(read).buffered(READ_AT_ONCE);
        let read: Vec<Result<T, StoreError>> = wait(read.collect());
        let mut records = Vec::with_capacity(read.len());
        for record in read {
            match record {
                Ok(record) => records.push(record),
                Err(error @ StoreError::Unreadable { .. }) => damaged.push(error.to_string()),
                Err(error) => return Err(error.into()),
            }
        }
        // A page of damaged files alone does not lead to another page.
        let more = more && !records.is_empty();
        Ok((records, more))
    }
}
