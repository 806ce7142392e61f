//! Publishes versions of the weights: rank 0 writes unit by unit while all ranks gather the next one. A version's name,
//! with its lineage, means one set of weights only.

use grpo_records::paths;
use grpo_records::weights::WeightsManifest;

use super::Rank;
use crate::canary::canary;
use crate::error::TrainError;
use crate::state::{Form, lineage_number};
use grpo_contracts::weights::publishes_adapters;
use grpo_crds::grpo_run::Mode;

const PUBLISHING: &str = "publishing weights";

impl Rank {
    /// Publishes the current weights; every rank calls it, rank 0 writes.
    pub(super) fn publish(&mut self, parent: Option<String>) -> Result<(), TrainError> {
        self.version = paths::weights_version(&self.lineage, self.step);
        let adapter = publishes_adapters(&self.config.spec);
        // It gathers the whole model, of which an adapter publishes nothing. Nothing samples in mode Finetune.
        let canary = match adapter || self.config.spec.mode == Mode::Finetune {
            true => None,
            false => canary(&self.model)?,
        };
        let watch = self.watch.clone();
        let mut publication = match self.is_first() {
            false => None,
            true => Some(watch.busy(PUBLISHING, || {
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
            })?),
        };
        self.model
            .each_published(adapter, |name, shape, values| match &mut publication {
                Some(publication) => watch.busy(PUBLISHING, || publication.tensor(name, shape, values)),
                None => Ok(()),
            })?;
        let published = publication.map(|mut publication| {
            publication.canary(canary);
            watch.busy(PUBLISHING, || publication.finish())
        });
        if let Some((manifest, checksum)) = published.transpose()? {
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
