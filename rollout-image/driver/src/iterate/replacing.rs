//! Dynamic sampling in a run: checks each ended group of an iteration and adds groups.
//!
//! Decisions of [`crate::dynamic`] are in the journal before work follows from them: which groups begin before they do,
//! and which a batch drops, with the reason, before the trainer gets the batch.

use super::{Draw, Run};
use crate::batches;
use crate::dynamic::{Chosen, Decision, Dynamic, Group, Rule, Source, decide};
use crate::episode::EpisodePlan;
use crate::fault::DriverError;
use crate::rollout::{Next, Supply};
use crate::tasks::selection::Sequence;
use futures::future::BoxFuture;
use grpo_records::{DropReason, DynamicStart, EpisodeMeta, EpisodeScope, Event};

/// Replaces groups of one iteration.
pub struct Replacing<'a> {
    run: &'a Run,
    iteration: u32,
    rule: Rule,
    groups: Vec<Group>,
    source: Source,
    draw: Draw,
    pub chosen: Option<Chosen>,
}

impl Run {
    /// The first tasks of an iteration with dynamic sampling.
    pub(super) async fn first_groups(
        &self,
        dynamic: &Dynamic,
        k: u32,
    ) -> Result<(Vec<u32>, DynamicStart), DriverError> {
        let rule = dynamic.rule(self.settings.prompts);
        let mut source = self.source(dynamic, k).await?;
        let (tasks, places) = source.draw(rule.slots);
        let wanted = self.settings.prompts;
        Ok((tasks, DynamicStart { wanted, places }))
    }

    /// The replacement of groups for iteration `k`, given the groups that began.
    pub(super) async fn replacing(&self, dynamic: &Dynamic, k: u32, draw: Draw) -> Result<Replacing<'_>, DriverError> {
        let begun = self
            .journal
            .read(|state| state.iterations.get(&k).map_or(0, |one| one.tasks.len()))
            .await;
        Ok(Replacing {
            run: self,
            iteration: k,
            rule: dynamic.rule(self.settings.prompts),
            groups: vec![Group::Running; begun],
            source: self.source(dynamic, k).await?,
            draw,
            chosen: None,
        })
    }

    /// Starts after the tasks that the previous iteration needed and this one began.
    async fn source(&self, dynamic: &Dynamic, k: u32) -> Result<Source, DriverError> {
        let training = self.training()?;
        let (next, rates) = self
            .journal
            .read(|state| {
                let of = |number: u32| state.iterations.get(&number);
                let begun = of(k).and_then(|one| one.places.last()).map(|place| place + 1);
                let needed = || of(k - 1).and_then(|one| one.next_place());
                // Without a band every task is drawn.
                let rates = dynamic.band.map(|_| state.pass_rates(k)).unwrap_or_default();
                (begun.or_else(needed), rates)
            })
            .await;
        let sequence = Sequence::new(training.order, training.seed, self.train_tasks.len());
        Ok(Source::new(sequence, next.unwrap_or_default(), dynamic.band, rates))
    }

    /// Records the groups that were not needed.
    pub(super) async fn note_surplus(&self, k: u32, chosen: &Chosen, metas: &[EpisodeMeta]) -> Result<(), DriverError> {
        let begun = self
            .journal
            .read(|state| state.iterations.get(&k).map_or(0, |one| one.tasks.len() as u32))
            .await;
        for group in chosen.needed..begun {
            let of = |meta: &&EpisodeMeta| meta.key.group == group && meta.outcome.is_verdict();
            let event = Event::GroupDropped {
                iteration: k,
                group,
                valid: metas.iter().filter(of).count() as u32,
                reason: DropReason::Surplus,
            };
            self.record_drop_once(event).await?;
        }
        Ok(())
    }
}

impl Supply for Replacing<'_> {
    fn ended<'a>(&'a mut self, group: u32, members: Vec<&'a EpisodeMeta>) -> BoxFuture<'a, Result<Next, DriverError>> {
        Box::pin(async move {
            let heading = self.run.heading(self.iteration);
            let signal = batches::signal(&self.run.store, &heading, &members).await;
            let signal = signal.map_err(|error| {
                DriverError::Other(format!(
                    "looking at group {group} of iteration {}: {error}",
                    self.iteration
                ))
            })?;
            if let Some(of) = self.groups.get_mut(group as usize) {
                *of = Group::Ended(signal);
            }
            match decide(self.rule, &self.groups) {
                Decision::Wait => Ok(Next::More(Vec::new())),
                Decision::Add(count) => self.add(count).await.map(Next::More),
                Decision::Enough(chosen) => {
                    self.chosen = Some(chosen);
                    Ok(Next::Enough)
                }
            }
        })
    }
}

impl Replacing<'_> {
    /// Records more groups and plans them.
    async fn add(&mut self, count: usize) -> Result<Vec<EpisodePlan>, DriverError> {
        let (tasks, places) = self.source.draw(count);
        let first = self.groups.len() as u32;
        self.run
            .journal
            .record(Event::GroupsAdded {
                iteration: self.iteration,
                tasks: tasks.clone(),
                places,
            })
            .await?;
        tracing::info!(
            iteration = self.iteration,
            first,
            count,
            "more groups, in the place of those that teach nothing"
        );
        self.groups.extend(vec![Group::Running; count]);
        let scope = EpisodeScope::Iteration {
            iteration: self.iteration,
        };
        let run = self.run;
        Ok(run.plans(&scope, (first..).zip(tasks), &run.train_tasks, &self.draw)?)
    }
}
