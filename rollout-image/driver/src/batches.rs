//! Makes the batch of a step from finished episodes: drops void episodes and groups with fewer than two valid ones.
//! Rewards stay raw.

use crate::dynamic::Signal;
use bytes::Bytes;
use grpo_records::batch::RowFault;
use grpo_records::{
    Batch, DropReason, EndedEpisode, EndedError, EpisodeMeta, EpisodeRecord, Event, GroupRecord, Row, RowRule,
    RunStore, StoreError, Writer, paths,
};
use std::collections::{BTreeMap, BTreeSet};

/// A group with fewer valid episodes has no baseline.
pub const SMALLEST_GROUP: usize = 2;

/// A batch and the groups that it dropped.
#[derive(Clone, Debug)]
pub struct Made {
    pub batch: Batch,
    pub dropped: Vec<Event>,
    /// Groups with equal rewards.
    pub constant: u32,
    pub staleness_max: u32,
    /// Episodes left out because some of their tokens are from weights that are too old.
    pub too_stale: u32,
}

#[derive(Debug, thiserror::Error)]
pub enum BatchError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("the episode in {folder} has answers without token ids and logprobs, so it cannot be trained on")]
    Untrainable { folder: String },
    #[error("the episode in {folder}: {source}")]
    Episode { folder: String, source: EndedError },
    #[error(transparent)]
    Row(#[from] RowFault),
}

/// Identity of the batch and the rules for its rows.
#[derive(Clone, Debug)]
pub struct Heading {
    pub writer: Writer,
    pub run: String,
    pub iteration: u32,
    pub step: u32,
    pub max_staleness: u32,
    pub rows: RowRule,
    /// With dynamic sampling, the groups of the batch.
    pub chosen: Option<BTreeSet<u32>>,
}

/// The valid episodes of a group that can be trained on.
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
            if meta.untrainable {
                let folder = meta.key.dir(meta.attempt);
                return Err(BatchError::Untrainable { folder });
            }
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
            // With step-wise rewards an episode can lack the score of every turn.
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
            // Step-wise: compares turns with the same number.
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

/// The signal of a group, from the final attempts of its episodes.
pub async fn signal(store: &RunStore, heading: &Heading, members: &[&EpisodeMeta]) -> Result<Signal, BatchError> {
    let valid = Valid::of(store, heading, members).await?;
    Ok(valid.signal(&heading.rows))
}

/// Makes the batch from the stored trajectories of `metas`, the final attempts of an iteration's episodes.
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

/// Steps between the oldest of these versions and the weights that step `step` starts from.
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
