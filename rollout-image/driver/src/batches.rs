//! From finished episodes to the batch of a step: voids leave their group, small groups leave the batch, raw rewards
//! stay raw.

use crate::dynamic::Signal;
use bytes::Bytes;
use grpo_records::batch::RowFault;
use grpo_records::{
    Batch, DropReason, EndedEpisode, EndedError, EpisodeMeta, EpisodeRecord, Event, GroupRecord, Row, RowRule,
    RunStore, StoreError, Writer, paths,
};
use std::collections::{BTreeMap, BTreeSet};

/// A group below this has no baseline.
pub const SMALLEST_GROUP: usize = 2;

/// A batch, and what did not get into it.
#[derive(Clone, Debug)]
pub struct Made {
    pub batch: Batch,
    pub dropped: Vec<Event>,
    /// Groups whose rewards are all alike.
    pub constant: u32,
    pub staleness_max: u32,
    /// Episodes left out because some of their tokens are from weights older than allowed.
    pub too_stale: u32,
}

#[derive(Debug, thiserror::Error)]
pub enum BatchError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("the episode in {folder}: {source}")]
    Episode { folder: String, source: EndedError },
    #[error(transparent)]
    Row(#[from] RowFault),
}

/// Who the batch is for.
#[derive(Clone, Debug)]
pub struct Heading {
    pub writer: Writer,
    pub run: String,
    pub iteration: u32,
    pub step: u32,
    pub max_staleness: u32,
    pub rows: RowRule,
    /// With dynamic sampling, the groups that the batch is to have.
    pub chosen: Option<BTreeSet<u32>>,
}

/// A group's valid episodes, as far as they can be trained on.
#[derive(Debug, Default)]
struct Valid {
    rewards: Vec<f32>,
    rows: Vec<Row>,
    staleness_max: u32,
    too_stale: u32,
}

impl Valid {
    async fn of(store: &RunStore, heading: &Heading, members: &[&EpisodeMeta]) -> Result<Self, BatchError> {
        let mut valid = Self::default();
        for meta in members.iter().filter(|meta| meta.outcome.is_verdict()) {
            let staleness = staleness(&meta.weights, heading.step);
            if staleness > heading.max_staleness {
                valid.too_stale += 1;
                continue;
            }
            valid.staleness_max = valid.staleness_max.max(staleness);
            let episode = ended(store, meta).await?;
            let of_episode = Row::trained_on(&episode, meta, &heading.rows);
            for row in &of_episode {
                row.check()?;
            }
            // Where turns are rewarded one by one, an episode may have lost the scores of all of them.
            let unscored = heading.rows.step_wise().is_some() && meta.sampled_tokens > 0;
            if !of_episode.is_empty() || unscored {
                valid.rewards.push(meta.reward.unwrap_or_default());
                valid.rows.extend(of_episode);
            }
        }
        Ok(valid)
    }

    fn signal(&self, rule: &RowRule) -> Signal {
        if self.rewards.len() < SMALLEST_GROUP {
            return Signal::TooFewValid;
        }
        let differ = match rule.step_wise() {
            None => self.rewards.windows(2).any(|pair| pair[0] != pair[1]),
            // Turns of one number are compared with each other.
            Some(_) => {
                let mut first: BTreeMap<Option<u32>, f32> = BTreeMap::new();
                let mut rows = self.rows.iter();
                rows.any(|row| *first.entry(row.turn).or_insert(row.reward) != row.reward)
            }
        };
        match differ {
            true => Signal::Some,
            false => Signal::None,
        }
    }
}

/// What a step can learn from a group, given the final attempts of its episodes.
pub async fn signal(store: &RunStore, heading: &Heading, members: &[&EpisodeMeta]) -> Result<Signal, BatchError> {
    let valid = Valid::of(store, heading, members).await?;
    Ok(valid.signal(&heading.rows))
}

/// Puts the batch together from the stored trajectories of `metas`, the final attempts of an iteration's episodes.
pub async fn make(store: &RunStore, heading: Heading, metas: &[EpisodeMeta]) -> Result<Made, BatchError> {
    let mut groups: BTreeMap<u32, Vec<&EpisodeMeta>> = BTreeMap::new();
    for meta in metas {
        groups.entry(meta.key.group).or_default().push(meta);
    }
    let mut made = Made {
        batch: Batch::new(
            heading.writer.clone(),
            heading.run.clone(),
            heading.iteration,
            heading.step,
        ),
        dropped: Vec::new(),
        constant: 0,
        staleness_max: 0,
        too_stale: 0,
    };
    for (group, members) in groups {
        let valid = Valid::of(store, &heading, &members).await?;
        made.too_stale += valid.too_stale;
        let signal = valid.signal(&heading.rows);
        let chosen = heading.chosen.as_ref().is_none_or(|chosen| chosen.contains(&group));
        if signal == Signal::TooFewValid || !chosen {
            made.dropped.push(Event::GroupDropped {
                iteration: heading.iteration,
                group,
                valid: valid.rewards.len() as u32,
                reason: match signal {
                    Signal::TooFewValid => DropReason::TooFewValid,
                    Signal::Some | Signal::None => DropReason::NoSignal,
                },
            });
            continue;
        }
        made.staleness_max = made.staleness_max.max(valid.staleness_max);
        made.constant += u32::from(valid.rewards.windows(2).all(|pair| pair[0] == pair[1]));
        made.batch.groups.push(GroupRecord {
            group,
            instance: members[0].key.instance.clone(),
            voids: (members.len() - valid.rewards.len()) as u32,
            rewards: valid.rewards,
        });
        made.batch.rows.extend(valid.rows);
    }
    Ok(made)
}

/// The stored episode of a verdict.
async fn ended(store: &RunStore, meta: &EpisodeMeta) -> Result<EndedEpisode, BatchError> {
    let folder = meta.key.dir(meta.attempt);
    let record: EpisodeRecord = store.read(&paths::trajectory(&folder)).await?;
    let rows = match &record.rows {
        Some(_) => store.bytes(&paths::rows(&folder)).await?,
        None => Bytes::new(),
    };
    EndedEpisode::of(record, &rows).map_err(|source| BatchError::Episode { folder, source })
}

/// How many steps the oldest of these versions is behind the weights that step `step` starts from.
fn staleness(versions: &[String], step: u32) -> u32 {
    let trained = step.saturating_sub(1);
    versions
        .iter()
        .filter_map(|version| paths::step_of_weights(version))
        .map(|sampled| trained.saturating_sub(sampled))
        .max()
        .unwrap_or(0)
}

#[cfg(test)]
mod tests;
