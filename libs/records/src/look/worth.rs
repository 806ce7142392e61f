//! The parts of one episode's reward: its run's rule, the counts, and the answer of a reward service.

use crate::event::{Event, JournalEntry};
use crate::reward::RewardParts;
use crate::store::{RunStore, StoreError};
use crate::{ProcessRule, RewardAnswer, RewardRule, paths};
use futures::StreamExt;
use serde::{Deserialize, Serialize};

/// The parts of a reward. The judge's scores are in the episode's own record.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Worth {
    pub parts: RewardParts,
    /// In a run that asks a reward service: its answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<RewardAnswer>,
    /// In a run that has a judge: how scores count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<ProcessRule>,
}

/// A run's reward rules from the journal.
pub(super) type Rules = (Option<RewardRule>, Option<ProcessRule>);

/// The rules with which a run began. Its entry is the first of the journal, unless another run resumed the store.
pub(super) async fn rules(store: &RunStore, run: &str) -> Result<Rules, StoreError> {
    // The usual case. It avoids listing a journal of thousands of entries to show one episode.
    if let Ok(Some(first)) = store.read_if_there::<JournalEntry>(&paths::journal_entry(1)).await
        && let Some(rules) = begun_with(first, run)
    {
        return Ok(rules);
    }
    let (names, _) = store.names_in(paths::JOURNAL).await?;
    let names = names.into_iter().filter(|name| name.ends_with(".json"));
    let entries = store.read_each::<JournalEntry, _>(names.map(|name| format!("{}/{name}", paths::JOURNAL)));
    let mut entries = std::pin::pin!(entries);
    while let Some(entry) = entries.next().await {
        let entry = match entry {
            Ok(entry) => entry,
            // Truncated: it was never acknowledged.
            Err(StoreError::Unreadable { source, .. }) if source.is_eof() => continue,
            Err(error) => return Err(error),
        };
        if let Some(rules) = begun_with(entry, run) {
            return Ok(rules);
        }
    }
    Ok(Rules::default())
}

fn begun_with(entry: JournalEntry, run: &str) -> Option<Rules> {
    match entry.event {
        Event::RunStarted {
            run: started,
            process,
            reward,
            ..
        } if started == run => Some((reward, process)),
        _ => None,
    }
}
