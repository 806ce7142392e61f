//! Publishes versions of the weights: rank 0 writes unit by unit while all ranks gather the next one. A version's name,
//! with its lineage, means one set of weights only.

use grpo_records::paths;
use grpo_records::weights::{Canary, WeightsManifest};

use super::Rank;
use crate::canary::canary;
use crate::error::TrainError;
use crate::state::{Form, lineage_number};
use grpo_contracts::weights::publishes_adapters;
use grpo_crds::grpo_run::Mode;

/// A published version's manifest, and the manifest's checksum.
type Version = (WeightsManifest, String);

const PUBLISHING: &str = "publishing weights";
pub(super) const WAITING: &str = "waiting for the store";

/// Keeps the error of a store that does not answer for [`Outage::wait`](crate::outage::Outage::wait); any other ends
/// rank 0 at once.
fn kept<T>(done: Result<T, TrainError>) -> Result<Result<T, TrainError>, TrainError> {
    match done {
        Err(error) if !error.is_outage() => Err(error),
        done => Ok(done),
    }
}

impl Rank {
    /// Publishes the current weights; every rank calls it, rank 0 writes. While the store does not answer, all ranks
    /// gather the weights again. Name and checksum identify a version, so a try whose last answer was lost publishes
    /// nothing twice.
    pub(super) fn publish(&mut self, parent: Option<String>) -> Result<(), TrainError> {
        self.version = paths::weights_version(&self.lineage, self.step);
        let adapter = publishes_adapters(&self.config.spec);
        // Nothing samples in mode Finetune.
        let canary = match self.config.spec.mode == Mode::Finetune {
            true => None,
            false => canary(&self.model)?,
        };
        let mut outage = self.store.patience().begin();
        let published = loop {
            let published = match self.try_to_publish(adapter, parent.clone(), canary.clone())? {
                // The other ranks wait for rank 0's word.
                Some(Err(error)) => {
                    self.watch.busy(WAITING, || outage.wait(error))?;
                    None
                }
                Some(Ok(published)) => Some(published),
                None => None,
            };
            let is_done = self.model.sum(&[f64::from(u8::from(published.is_some()))])?[0] > 0.0;
            if is_done {
                break published;
            }
        };
        if let Some((manifest, checksum)) = published {
            outage.answered();
            self.tensors_sha256 = manifest.tensors_sha256.clone();
            self.board.with(|shared| {
                shared.state.lineage = manifest.lineage.clone();
                shared.state.step = manifest.step;
                shared.state.weights = manifest.version.clone();
                shared.state.manifest_sha256 = checksum;
            });
        }
        Ok(())
    }

    /// One try. On rank 0 the manifest with its checksum, or the error of a store that does not answer.
    fn try_to_publish(
        &self,
        adapter: bool,
        parent: Option<String>,
        canary: Option<Canary>,
    ) -> Result<Option<Result<Version, TrainError>>, TrainError> {
        let watch = &self.watch;
        let begin = || {
            let lora = self.model.config.lora.as_ref().filter(|_| adapter);
            let form = match lora {
                Some(lora) => Form::Adapter(lora.peft_config(&self.model_dir.display().to_string())),
                None => Form::Model(&self.model_dir),
            };
            let (tensors, precision) = (
                self.model.published_tensors(adapter),
                self.model.published_precision(adapter),
            );
            self.store
                .begin_version(form, &tensors, precision, &self.lineage, self.step, parent)
        };
        let mut publication = match self.is_first() {
            false => None,
            true => Some(kept(watch.busy(PUBLISHING, begin))?),
        };
        self.model.each_published(adapter, PUBLISHING, |name, shape, values| {
            if let Some(Ok(open)) = &mut publication
                && let Err(error) = kept(open.tensor(name, shape, values))?
            {
                // The other ranks gather with rank 0 all the same.
                publication = Some(Err(error));
            }
            Ok(())
        })?;
        let Some(publication) = publication else {
            return Ok(None);
        };
        let finished = publication.and_then(|mut open| {
            open.canary(canary);
            watch.busy(PUBLISHING, || open.finish())
        });
        kept(finished).map(Some)
    }

    /// Continues in the lineage in which the current weights were published, if their present name is taken by other
    /// weights: another machine may have merged an adapter to other bits, or an older version of the trainer may have
    /// published in another precision. If they were never published, a lineage begins. Every rank calls it.
    pub(super) fn settle_lineage(&mut self, versions: &[WeightsManifest]) -> Result<(), TrainError> {
        let own = lineage_number(&self.lineage);
        let is_later =
            |version: &&WeightsManifest| version.step == self.step && lineage_number(&version.lineage) >= own;
        let mut candidates: Vec<&WeightsManifest> = versions.iter().filter(is_later).collect();
        candidates.sort_by_key(|version| lineage_number(&version.lineage));
        if candidates.iter().all(|version| version.lineage != self.lineage) {
            return Ok(());
        }
        let found = self.model.published_checksum(publishes_adapters(&self.config.spec))?;
        let same = |version: &&WeightsManifest| Some(&version.tensors_sha256) == found.as_ref();
        // Only rank 0 has a checksum. The current lineage comes first.
        let place = candidates.iter().position(same).map_or(0, |at| at + 1);
        let place = self.model.sum(&[place as f64])?[0] as usize;
        match place.checked_sub(1).and_then(|at| candidates.get(at)) {
            Some(version) => self.lineage = version.lineage.clone(),
            None => {
                self.begin_lineage(versions);
                tracing::warn!(
                    step = self.step,
                    lineage = self.lineage,
                    "other weights were published under this step's name: a lineage begins"
                );
            }
        }
        Ok(())
    }

    /// Begins a lineage that no version has.
    pub(super) fn begin_lineage(&mut self, versions: &[WeightsManifest]) {
        let known = versions.iter().map(|version| lineage_number(&version.lineage));
        let newest = known.max().unwrap_or(1).max(lineage_number(&self.lineage));
        self.lineage = format!("l{}", newest + 1);
    }
}
