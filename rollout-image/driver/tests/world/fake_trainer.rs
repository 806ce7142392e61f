//! The trainer.

use super::*;

/// One process of the trainer.
#[derive(Clone, Copy, Default)]
pub struct Life {
    /// How often it was killed.
    ended: u32,
    /// Steps that it has replayed since then, up to all published ones.
    replayed: Option<u32>,
    /// Whether it has got the devices that it shares.
    granted: bool,
}

impl Trainer {
    /// Kills it with its work; it restarts from its first checkpoint and replays the published steps, one per request
    /// for its state.
    pub async fn dies(&self) {
        let mut life = self.life.lock().await;
        life.ended += 1;
        life.replayed = Some(0);
        life.granted = false;
    }

    pub async fn publish(&self, step: u32) {
        let lineage = self.lineage.lock().unwrap().clone();
        let version = paths::weights_version(&lineage, step);
        let manifest = WeightsManifest {
            version: version.clone(),
            lineage,
            step,
            parent: None,
            files: Vec::new(),
            deltas: Vec::new(),
            chat_templates: Vec::new(),
            tensors_sha256: sha256_hex(version.as_bytes()),
            canary: None,
        };
        self.store
            .create(&paths::weights_manifest(&version), &manifest)
            .await
            .unwrap();
        *self.step.lock().unwrap() = step;
    }

    async fn state(&self) -> TrainerState {
        let mut life = self.life.lock().await;
        let published = *self.step.lock().unwrap();
        let waits = !self.shares_with.lock().unwrap().is_empty() && !life.granted;
        let (step, phase) = match life.replayed {
            _ if waits => (0, TrainerPhase::Waiting),
            Some(replayed) if replayed < published => {
                life.replayed = Some(replayed + 1);
                (replayed, TrainerPhase::Starting)
            }
            _ => (published, *self.phase.lock().unwrap()),
        };
        let lineage = self.lineage.lock().unwrap().clone();
        let weights = paths::weights_version(&lineage, step);
        let manifest = self.store.bytes(&paths::weights_manifest(&weights)).await.unwrap();
        TrainerState {
            attempt: 1 + life.ended,
            world_size: 1,
            lineage,
            step,
            manifest_sha256: sha256_hex(&manifest),
            weights,
            checkpoint_step: step,
            phase,
            error: None,
        }
    }

    /// Remembers that it uses the devices now, if an engine does too.
    fn uses_devices(&self, what: &str) {
        let engines = self.shares_with.lock().unwrap();
        let awake = engines.iter().filter(|engine| !*engine.asleep.lock().unwrap()).count();
        if awake > 0 {
            self.together
                .lock()
                .unwrap()
                .push(format!("{what} beside {awake} engines"));
        }
    }

    fn away(&self) -> bool {
        let mut away = self.away_for.lock().unwrap();
        let is_away = *away > 0;
        *away = away.saturating_sub(1);
        is_away
    }
}

pub(super) fn router(trainer: Arc<Trainer>) -> Router {
    let fence = trainer.fence.clone();
    let router = Router::new()
        .route("/v1/state", get(trainer_state))
        .route("/v1/devices", put(grant))
        .route("/v1/steps/{k}", put(put_step).get(get_step))
        .with_state(trainer);
    fenced::behind(fence, router)
}

async fn trainer_state(State(trainer): State<Arc<Trainer>>) -> Response {
    match trainer.away() {
        true => StatusCode::SERVICE_UNAVAILABLE.into_response(),
        false => Json(trainer.state().await).into_response(),
    }
}

async fn grant(State(trainer): State<Arc<Trainer>>, Json(grant): Json<DeviceGrant>) -> StatusCode {
    if trainer.away() {
        return StatusCode::SERVICE_UNAVAILABLE;
    }
    let mut life = trainer.life.lock().await;
    if grant.attempt != 1 + life.ended {
        return StatusCode::CONFLICT;
    }
    trainer.uses_devices("the grant");
    life.granted = true;
    StatusCode::ACCEPTED
}

async fn put_step(
    State(trainer): State<Arc<Trainer>>,
    Path(k): Path<u32>,
    Json(request): Json<StepRequest>,
) -> Response {
    if trainer.away() {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    }
    // A step that began completes even if the driver that ordered it is gone, and orders are taken one after the other.
    tokio::spawn(async move {
        let _one_at_a_time = trainer.orders.lock().await;
        let state = trainer.state().await;
        if state.phase == TrainerPhase::Waiting || state.step + 1 != k {
            return (StatusCode::CONFLICT, Json(state)).into_response();
        }
        trainer.uses_devices(&format!("the beginning of step {k}"));
        let ended = trainer.life.lock().await.ended;
        let awaited = trainer.waits_for.lock().unwrap().get(&k).cloned();
        while let Some(path) = &awaited
            && !trainer.store.exists(path).await.unwrap()
            // Files of turns are deleted when their episode ends.
            && !trainer.store.exists(&rows_of(path)).await.unwrap()
            && trainer.life.lock().await.ended == ended
        {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let bytes = trainer.store.bytes(&request.batch).await.unwrap();
        assert_eq!(sha256_hex(&bytes), request.sha256);
        let mut life = trainer.life.lock().await;
        if life.ended != ended {
            return StatusCode::SERVICE_UNAVAILABLE.into_response();
        }
        life.replayed = None;
        trainer.uses_devices(&format!("the end of step {k}"));
        trainer.steps_run.lock().unwrap().push(k);
        trainer.kept.lock().unwrap().push(request.checkpoint);
        trainer.publish(k).await;
        StatusCode::ACCEPTED.into_response()
    })
    .await
    .unwrap()
}

async fn get_step(State(trainer): State<Arc<Trainer>>, Path(k): Path<u32>) -> Json<StepState> {
    let state = trainer.state().await;
    let done = state.step >= k;
    Json(StepState {
        step: k,
        state: if done { StepPhase::Done } else { StepPhase::Queued },
        weights: done.then(|| state.weights.clone()),
        manifest_sha256: done.then(|| state.manifest_sha256.clone()),
        metrics: None,
        error: None,
    })
}

/// The rows of the episode that a turn's file belongs to; any other path stays unchanged.
fn rows_of(path: &str) -> String {
    path.split_once("/turns/")
        .map_or_else(|| path.to_owned(), |(episode, _)| grpo_records::paths::rows(episode))
}

/// The state of a trainer that has no store.
pub fn state_of(step: u32, phase: TrainerPhase) -> TrainerState {
    TrainerState {
        attempt: 1,
        world_size: 1,
        lineage: "a".into(),
        step,
        weights: paths::weights_version("a", step),
        manifest_sha256: String::new(),
        checkpoint_step: 0,
        phase,
        error: None,
    }
}
