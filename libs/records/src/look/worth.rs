//! How the reward of one episode comes about: its run's rule, what that counts, and what a service said.

use crate::event::{Event, JournalEntry};
use crate::reward::RewardParts;
use crate::store::{RunStore, StoreError};
use crate::{ProcessRule, RewardAnswer, RewardRule, paths};
use futures::StreamExt;
use serde::{Deserialize, Serialize};

/// The parts of a reward. The scores of a judge are in the episode's own record.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Worth {
    pub parts: RewardParts,
    /// Of a run that asks a service: what it said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<RewardAnswer>,
    /// Of a run that has a judge: how scores count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<ProcessRule>,
}

/// What the journal says of a run's rewards.
pub(super) type Rules = (Option<RewardRule>, Option<ProcessRule>);

/// The rules with which a run began. Its entry is the first of a journal, unless another run has the store since.
pub(super) async fn rules(store: &RunStore, run: &str) -> Result<Rules, StoreError> {
    // Almost always: then a journal of thousands of entries is not listed for a look at one episode.
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
            // Cut off in the middle: it was never acknowledged.
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
