//! Devices that a trainer shares with engines (`trainer.colocate`): when its ranks may use them, and how they leave
//! them.
//!
//! When the trainer starts, engines may hold the memory of its devices, so no rank uses its device before the driver
//! grants it (`PUT /v1/devices`). Only rank 0 hears the driver. It passes the grant on through the rendezvous, because
//! the ranks have no collectives yet. Before the trainer says that it is idle, every rank gives the memory of its
//! device back; the order of the next step is the next grant.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::put;
use axum::{Json, Router};
use grpo_contracts::RunConfig;
use grpo_contracts::driver_epoch::Fence;
use grpo_crds::grpo_run::Mode;
use grpo_native::gpu_wait::wait_for;
use grpo_native::{Arrived, device};
use grpo_records::trainer::{DeviceGrant, TrainerPhase};
use tch::Device;

use super::Rank;
use super::board::{Board, Devices};
use super::refusals;
use crate::error::TrainError;

/// Name of the signal by which rank 0 passes the grant on.
const GRANTED: &str = "devices";

impl Devices {
    /// At the start of an attempt. Nothing samples in mode Finetune.
    pub(super) fn of(config: &RunConfig) -> Self {
        let trainer = config.spec.trainer.as_ref();
        match config.spec.mode != Mode::Finetune && trainer.is_some_and(|trainer| trainer.colocate) {
            true => Self::Awaited,
            false => Self::Own,
        }
    }
}

#[derive(Clone)]
struct Grants {
    board: Board,
    fence: Arc<Fence>,
    granted: SyncSender<()>,
}

/// The route for grants, and the channel on which the training thread hears of the first one.
pub(super) fn routes(board: Board, fence: Arc<Fence>) -> (Router, Receiver<()>) {
    let (granted, heard) = sync_channel(1);
    let router = Router::new().route("/v1/devices", put(grant));
    let grants = Grants { board, fence, granted };
    (router.with_state(grants), heard)
}

/// Accepts a grant for this attempt, also a repeated one. Otherwise answers 409 with the state, which names the attempt
/// that waits. So does a trainer with devices of its own, whose state shows that it does not wait; 404 is the answer of
/// a trainer that knows no grants. A grant of a driver that a later attempt has followed is refused without a state.
async fn grant(State(grants): State<Grants>, headers: HeaderMap, Json(grant): Json<DeviceGrant>) -> Response {
    refusals::admit(&grants.fence, &headers, || grants.take(grant))
}

impl Grants {
    fn take(&self, grant: DeviceGrant) -> Response {
        let (is_accepted, state) = self.board.with(|shared| {
            let is_meant = grant.attempt == shared.state.attempt;
            let is_accepted = match (shared.devices, shared.state.phase) {
                (Devices::Granted, _) => is_meant,
                (Devices::Awaited, TrainerPhase::Waiting) if is_meant => {
                    shared.devices = Devices::Granted;
                    shared.state.phase = TrainerPhase::Starting;
                    // Never full, because it is sent once. A training thread that is gone ends the process.
                    let _ = self.granted.try_send(());
                    true
                }
                _ => false,
            };
            (is_accepted, shared.state.clone())
        });
        let status = match is_accepted {
            true => StatusCode::ACCEPTED,
            false => StatusCode::CONFLICT,
        };
        (status, Json(state)).into_response()
    }
}

/// Waits, for as long as it takes, until the driver has granted the devices. `grants`: on rank 0.
pub(super) fn wait(arrived: &Arrived, grants: Option<&Receiver<()>>) -> Result<(), TrainError> {
    tracing::info!("waiting for the devices: engines may still use them");
    match grants {
        None => arrived.wait_for_signal(GRANTED)?,
        Some(grants) => {
            let ended = |_| TrainError::Start("the HTTP server ended".to_owned());
            grants.recv().map_err(ended)?;
            arrived.signal(GRANTED)?;
        }
    }
    tracing::info!("the devices are granted");
    Ok(())
}

impl Rank {
    /// Gives the memory of this rank's device back if engines use it too, and returns when all ranks have done so.
    /// Every rank calls it before rank 0 says that the trainer is idle.
    pub(super) fn leave_device(&mut self) -> Result<(), TrainError> {
        if !self.model.shares_device {
            return Ok(());
        }
        let place = self.model.computes().device;
        self.model.leave_device();
        wait_for(place, || device::return_memory(place))
            .map_err(|message| TrainError::Start(format!("giving the memory of the device back: {message}")))?;
        // Of all processes: a sleeping engine keeps some too.
        let in_use = match place {
            Device::Cuda(index) => device::gpu_total(index)
                .and_then(|total| Ok(total.saturating_sub(device::gpu_free(index)?)))
                .ok(),
            _ => None,
        };
        tracing::info!(
            rank = self.model.group.rank(),
            in_use,
            "the memory of the device is given back"
        );
        self.model.group.barrier()?;
        Ok(())
    }
}
