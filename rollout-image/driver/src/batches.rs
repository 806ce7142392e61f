//! From finished episodes to the batch of a step: voids leave their group, small groups leave the batch, raw rewards
//! stay raw.

use grpo_records::batch::RowFault;
use grpo_records::{Batch, EpisodeMeta, EpisodeRecord, Event, GroupRecord, RunStore, StoreError, Writer, paths};
use std::collections::BTreeMap;

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
        let mut rows = Vec::new();
        for meta in members.iter().filter(|meta| meta.outcome.is_verdict()) {
            let staleness = staleness(&meta.weights, heading.step);
            if staleness > heading.max_staleness {
                made.too_stale += 1;
                continue;
            }
            made.staleness_max = made.staleness_max.max(staleness);
            let path = paths::trajectory(&meta.key.dir(meta.attempt));
            let record: EpisodeRecord = store.read(&path).await?;
            let row = record.row(meta.outcome.clone(), meta.reward.unwrap_or_default());
            row.check()?;
            rows.push(row);
        }
        if rows.len() < SMALLEST_GROUP {
            made.dropped.push(Event::GroupDropped {
                iteration: heading.iteration,
                group,
                valid: rows.len() as u32,
            });
            continue;
        }
        let rewards: Vec<f32> = rows.iter().map(|row| row.reward).collect();
        made.constant += u32::from(rewards.windows(2).all(|pair| pair[0] == pair[1]));
        made.batch.groups.push(GroupRecord {
            group,
            instance: members[0].key.instance.clone(),
            rewards,
            voids: (members.len() - rows.len()) as u32,
        });
        made.batch.rows.extend(rows);
    }
    Ok(made)
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
mod tests {
    use super::*;
    use grpo_records::{EpisodeEnd, EpisodeKey, EpisodeScope, Outcome, SCHEMA, VoidReason, WeightsSpan};

    async fn episode(store: &RunStore, group: u32, sample: u32, outcome: Outcome, version: &str) -> EpisodeMeta {
        let key = EpisodeKey {
            scope: EpisodeScope::Iteration { iteration: 1 },
            instance: "a".into(),
            group,
            sample,
        };
        let record = EpisodeRecord {
            schema: SCHEMA,
            writer: Writer::driver(1),
            run: "u".into(),
            key: key.clone(),
            attempt: 1,
            task: 0,
            image: "i".into(),
            end: EpisodeEnd::Submitted,
            turns: 1,
            messages: Vec::new(),
            temperature: 1.0,
            top_p: 1.0,
            top_k: 0,
            prompt_length: 1,
            tokens: vec![1, 2],
            mask: vec![0, 1],
            logprobs: vec![0.0, -0.5],
            weights: vec![WeightsSpan {
                from: 1,
                to: 2,
                version: version.into(),
            }],
            experts: Vec::new(),
            truncated: false,
            started_at: 0,
            finished_at: 1,
        };
        store.create(&paths::trajectory(&key.dir(1)), &record).await.unwrap();
        let reward = match outcome {
            Outcome::Resolved => Some(1.0),
            Outcome::Unresolved => Some(0.0),
            Outcome::Void { .. } => None,
        };
        EpisodeMeta {
            schema: SCHEMA,
            writer: Writer::driver(1),
            run: "u".into(),
            key,
            attempt: 1,
            outcome,
            reward,
            end: EpisodeEnd::Submitted,
            turns: 1,
            tokens: 2,
            sampled_tokens: 1,
            format_errors: 0,
            truncated: false,
            weights: vec![version.into()],
            patch_bytes: 0,
            patch_sha256: None,
            grade: None,
            message: None,
            agent_millis: 0,
            grade_millis: 0,
            waited_millis: 0,
            at: 0,
        }
    }

    fn heading(max_staleness: u32, step: u32) -> Heading {
        Heading {
            writer: Writer::driver(1),
            run: "u".into(),
            iteration: step,
            step,
            max_staleness,
        }
    }

    /// Defects 17 and 25: a void is not a zero; it leaves group, baseline and batch.
    #[tokio::test]
    async fn a_void_leaves_its_group_and_a_group_of_one_is_dropped_and_counted() {
        let mount = tempfile::tempdir().unwrap();
        let store = RunStore::open(mount.path(), "n/r").unwrap();
        let void = || Outcome::void(VoidReason::SandboxLost);
        let metas = [
            episode(&store, 0, 0, Outcome::Resolved, "a-v0").await,
            episode(&store, 0, 1, void(), "a-v0").await,
            episode(&store, 0, 2, Outcome::Unresolved, "a-v0").await,
            episode(&store, 1, 0, Outcome::Resolved, "a-v0").await,
            episode(&store, 1, 1, void(), "a-v0").await,
        ];
        let made = make(&store, heading(0, 1), &metas).await.unwrap();
        assert_eq!(made.batch.rows.len(), 2);
        assert_eq!(made.batch.groups[0].rewards, [1.0, 0.0]);
        assert_eq!(made.batch.groups[0].voids, 1);
        assert!(matches!(
            made.dropped[..],
            [Event::GroupDropped { group: 1, valid: 1, .. }]
        ));
    }

    #[tokio::test]
    async fn tokens_of_weights_older_than_allowed_do_not_get_into_a_batch() {
        let mount = tempfile::tempdir().unwrap();
        let store = RunStore::open(mount.path(), "n/r").unwrap();
        let metas = [
            episode(&store, 0, 0, Outcome::Resolved, "a-v1").await,
            episode(&store, 0, 1, Outcome::Unresolved, "a-v1").await,
            episode(&store, 0, 2, Outcome::Unresolved, "a-v0").await,
        ];
        let strict = make(&store, heading(0, 2), &metas).await.unwrap();
        assert_eq!(
            (strict.batch.rows.len(), strict.too_stale, strict.staleness_max),
            (2, 1, 0)
        );
        let loose = make(&store, heading(1, 2), &metas).await.unwrap();
        assert_eq!(
            (loose.batch.rows.len(), loose.too_stale, loose.staleness_max),
            (3, 0, 1)
        );
    }
}
