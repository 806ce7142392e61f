//! Promotion: the weights that the trainer published, the entry that promotes them, the engines that follow.

use super::Run;
use crate::fault::{DriverError, TerminalFault};
use crate::replicas::switch::asleep;
use crate::replicas::switch::{self, Target};
use crate::trainer::shown_waiting;
use grpo_contracts::reason::Reason;
use grpo_crds::grpo_run::OnSync;
use grpo_crds::progress::Stage;
use grpo_engine_protocol::{BASE_VERSION, WeightsOrder};
use grpo_records::store::sha256_hex;
use grpo_records::trainer::{StepState, TrainerPhase, TrainerState};
use grpo_records::{Event, Promotion, StoreError, WeightsManifest, paths};
use std::time::Duration;
use tokio::sync::watch;

/// How long episodes may continue with their weights while no engine can prefetch the next ones.
const PREFETCH_PATIENCE: Duration = Duration::from_secs(600);
/// How often the driver checks whether a restarted trainer has another lineage.
const LINEAGE_EVERY: Duration = Duration::from_secs(5);

impl Run {
    /// Promotes the trainer's current weights unless they are promoted already, then waits for the engines.
    pub(super) async fn take_up_trainer(&self) -> Result<(), DriverError> {
        self.board.begin(Stage::Starting);
        let known = self.journal.read(|state| state.promoted.clone()).await;
        let colocated = self.settings.colocated.is_some();
        self.leave_devices().await?;
        // Engines can follow promoted weights of the journal while the trainer still starts, if it leaves them their
        // devices. It publishes a damaged manifest again at its start: that one is waited for.
        let mut follow = false;
        if let Some(promoted) = known.as_ref().filter(|_| !colocated) {
            follow = self.is_intact(promoted).await?;
            if follow {
                self.promote(&promoted.weights, &promoted.manifest_sha256).await?;
            }
        }
        let state = self.report_waiting(|note| self.trainer.ready(note)).await?;
        let last_step = self
            .journal
            .read(|s| s.steps.keys().next_back().copied().unwrap_or(0))
            .await;
        if known.is_none() && state.step > 0 {
            let message = format!(
                "the trainer stands at step {} of lineage {}, but the journal knows of none; the store lost its journal/",
                state.step, state.lineage
            );
            return Err(TerminalFault::new(Reason::TrainerAhead, message).into());
        }
        // A finished step that is not in the journal is found when the driver asks for it.
        let differs = known.as_ref().is_none_or(|promoted| is_other(promoted, &state));
        if state.step == last_step && differs {
            self.record_and_promote(&state.weights, &state.manifest_sha256, state.step)
                .await?;
        } else if let Some(promoted) = known.filter(|_| !follow) {
            self.promote(&promoted.weights, &promoted.manifest_sha256).await?;
        }
        self.wait_synced().await?;
        self.board.end(Stage::Starting);
        Ok(())
    }

    /// Whether the store has the manifest that was promoted.
    async fn is_intact(&self, promoted: &Promotion) -> Result<bool, DriverError> {
        if self.settings.frozen_sampler {
            return Ok(true);
        }
        match self.store.bytes(&paths::weights_manifest(&promoted.weights)).await {
            Ok(bytes) => Ok(sha256_hex(&bytes) == promoted.manifest_sha256),
            Err(StoreError::Missing { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Has every engine leave its devices to the trainer, and waits until all have. They get them back with the next
    /// promotion. Engines that share no devices keep theirs.
    pub(super) async fn leave_devices(&self) -> Result<(), DriverError> {
        let Some(turn) = &self.turn else {
            return Ok(());
        };
        let _one_at_a_time = self.promoting.lock().await;
        self.board.begin(Stage::Syncing);
        self.target.send_modify(|target| {
            let target = target.get_or_insert_with(base);
            target.asleep = Some(true);
        });
        let patience = self.settings.patience.weights;
        asleep::until_asleep(turn, patience).await?;
        tracing::info!("all engines sleep: the trainer has the devices");
        self.board.end(Stage::Syncing);
        Ok(())
    }

    /// The version that a step published: from its answer, or from the trainer's state if a restarted trainer's answer
    /// has none.
    pub(super) async fn published(&self, k: u32, done: &StepState) -> Result<(String, String), DriverError> {
        if let (Some(weights), Some(sha256)) = (&done.weights, &done.manifest_sha256) {
            return Ok((weights.clone(), sha256.clone()));
        }
        let state = self.trainer.state().await.map_err(DriverError::Other)?;
        if state.step == k {
            Ok((state.weights, state.manifest_sha256))
        } else {
            Err(DriverError::Other(format!(
                "the trainer says that step {k} is done, but not which weights it published"
            )))
        }
    }

    /// The entry is the promotion; engines and episodes follow.
    pub(super) async fn record_and_promote(
        &self,
        weights: &str,
        manifest_sha256: &str,
        step: u32,
    ) -> Result<(), DriverError> {
        self.journal
            .record(Event::Promoted {
                weights: weights.to_owned(),
                manifest_sha256: manifest_sha256.to_owned(),
                step,
            })
            .await?;
        tracing::info!(weights, "promoted");
        self.promote(weights, manifest_sha256).await
    }

    /// Has engines serve published weights and episodes request them. While episodes run, engines prefetch the weights
    /// first. Then running episodes end with their weights (Drain), sample their next turns with the new ones
    /// (Continue), or are abandoned (Abort); new episodes begin as soon as one replica has switched.
    pub(super) async fn promote(&self, weights: &str, manifest_sha256: &str) -> Result<(), DriverError> {
        let _one_at_a_time = self.promoting.lock().await;
        if self.settings.frozen_sampler {
            self.sample_base();
            return Ok(());
        }
        let path = paths::weights_manifest(weights);
        let bytes = self.store.bytes(&path).await?;
        if sha256_hex(&bytes) != manifest_sha256 {
            let message = format!("{path} is not what the trainer said it published; the store was changed by hand");
            return Err(TerminalFault::new(Reason::WeightsCorrupt, message).into());
        }
        let manifest: WeightsManifest = self.store.read_json(&path).await?;
        let order = WeightsOrder {
            version: weights.to_owned(),
            source: format!("{}/weights/{weights}", self.settings.driver.trim_end_matches('/')),
            manifest_sha256: manifest_sha256.to_owned(),
            relay: None,
        };
        let gate = &self.rollouts.episodes.gate;
        let target = Target {
            version: weights.to_owned(),
            order: Some(order.clone()),
            tensors_sha256: Some(manifest.tensors_sha256),
            prefetch: None,
            asleep: self.awake(),
        };
        // The engines sleep: nothing is sampled, and they wake up with the new weights.
        if self.settings.colocated.is_some() {
            let _closed = gate.close().await;
            self.set_target(target);
            return Ok(());
        }
        // Without Drain, episodes do not enter the gate: they may run as soon as engines have a target.
        let may_run = self.settings.on_sync != OnSync::Drain && self.target.borrow().is_some();
        if let Some(_closed) = gate.close_if_empty().filter(|_| !may_run) {
            self.set_target(target);
            return Ok(());
        }
        self.target.send_modify(|now| {
            if let Some(now) = now {
                now.prefetch = Some(order);
            }
        });
        let prefetched = switch::until_prefetched(self.view.clone(), weights);
        if let Ok(prefetched) = tokio::time::timeout(PREFETCH_PATIENCE, prefetched).await {
            prefetched?;
        }
        let _closed = gate.close().await;
        self.set_target(target);
        let target = self.target.subscribe();
        switch::until_one_updated(self.view.clone(), &target, self.settings.patience.weights).await?;
        Ok(())
    }

    /// Sets the weights that engines boot with as the target.
    pub(super) fn sample_base(&self) {
        let asleep = self.awake();
        self.set_target(Target { asleep, ..base() });
    }

    /// What engines are told that may use their devices.
    fn awake(&self) -> Option<bool> {
        self.settings.colocated.map(|_| false)
    }

    pub(super) fn set_target(&self, target: Target) {
        let version = target.version.clone();
        self.target.send_replace(Some(target));
        self.wanted.send_if_modified(|wanted| {
            let changed = *wanted != version;
            wanted.clone_from(&version);
            changed
        });
        self.board.change(|progress| progress.weights = Some(version));
    }

    /// Waits until the engines serve the target, which may change meanwhile.
    pub(super) async fn wait_synced(&self) -> Result<(), DriverError> {
        self.board.begin(Stage::Syncing);
        let target = self.target.subscribe();
        let updated = switch::until_updated(self.view.clone(), &target, self.settings.patience.weights).await?;
        tracing::info!(
            version = %updated.version,
            replicas = updated.updated,
            behind = updated.behind,
            absent = updated.absent,
            "engines serve it"
        );
        self.board.end(Stage::Syncing);
        Ok(())
    }

    /// Promotes the weights of a restarted trainer that has other ones at the promoted step. One that shares its
    /// devices with engines loads nothing until they sleep, so it has no other weights before the next step.
    pub(super) async fn watch_lineage(&self) -> DriverError {
        if self.settings.colocated.is_some() {
            return std::future::pending().await;
        }
        loop {
            tokio::time::sleep(LINEAGE_EVERY).await;
            let Ok(state) = self.trainer.state().await else {
                continue;
            };
            let promoted = self.journal.read(|s| s.promoted.clone()).await;
            let moved = promoted.is_some_and(|p| p.step == state.step && is_other(&p, &state));
            if state.phase == TrainerPhase::Idle && moved {
                tracing::warn!(weights = %state.weights, "the trainer came back with another lineage or manifest");
                if let Err(error) = self
                    .record_and_promote(&state.weights, &state.manifest_sha256, state.step)
                    .await
                {
                    return error;
                }
            }
        }
    }

    /// Shows on the board why `call` waits for the trainer.
    pub(super) async fn report_waiting<'a, T, F>(
        &'a self,
        call: impl FnOnce(&'a watch::Sender<Option<String>>) -> F,
    ) -> Result<T, DriverError>
    where
        F: Future<Output = Result<T, DriverError>> + 'a,
    {
        let result = shown_waiting(&self.board, &self.note, call).await;
        self.quiet();
        result
    }
}

/// Whether the trainer published anything else than what was promoted: another lineage, or the same weights with
/// another manifest, because theirs was damaged. Engines know a manifest by its checksum.
fn is_other(promoted: &Promotion, state: &TrainerState) -> bool {
    promoted.weights != state.weights
        || (!state.manifest_sha256.is_empty() && promoted.manifest_sha256 != state.manifest_sha256)
}

/// The weights that engines boot with.
fn base() -> Target {
    Target {
        version: BASE_VERSION.to_owned(),
        order: None,
        tensors_sha256: None,
        prefetch: None,
        asleep: None,
    }
}
