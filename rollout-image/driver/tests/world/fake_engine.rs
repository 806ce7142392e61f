//! The engine and its agent.

use super::*;

pub(super) fn router(engine: Arc<Engine>) -> Router {
    let fence = engine.fence.clone();
    let router = Router::new()
        .route("/v1/completions", post(complete))
        .route("/agent/v1/weights", put(order))
        .route("/agent/v1/prefetch", put(prefetch))
        .route("/agent/v1/sleep", put(sleep))
        .route("/agent/v1/status", get(status))
        .with_state(engine);
    fenced::behind(fence, router)
}

impl Engine {
    fn serving_now(&self) -> Option<String> {
        let absent = *self.booting.lock().unwrap() || *self.asleep.lock().unwrap();
        (!absent).then(|| self.serving.lock().unwrap().clone())
    }
}

async fn order(State(engine): State<Arc<Engine>>, Json(order): Json<engine::WeightsOrder>) -> StatusCode {
    if !*engine.stuck.lock().unwrap() {
        engine.serving.lock().unwrap().clone_from(&order.version);
    }
    engine.orders.lock().unwrap().push(order);
    StatusCode::ACCEPTED
}

async fn prefetch(State(engine): State<Arc<Engine>>, Json(order): Json<engine::WeightsOrder>) -> StatusCode {
    engine.prefetched.lock().unwrap().push(order.version.clone());
    *engine.pulled.lock().unwrap() = Some(order.version);
    StatusCode::ACCEPTED
}

async fn sleep(State(engine): State<Arc<Engine>>, Json(order): Json<engine::SleepOrder>) -> StatusCode {
    if *engine.sleepless.lock().unwrap() {
        return StatusCode::SERVICE_UNAVAILABLE;
    }
    let before = std::mem::replace(&mut *engine.asleep.lock().unwrap(), order.asleep);
    engine
        .sleeps
        .fetch_add(u32::from(order.asleep && !before), Ordering::Relaxed);
    StatusCode::ACCEPTED
}

async fn status(State(engine): State<Arc<Engine>>) -> Json<engine::AgentStatus> {
    engine.looks.fetch_add(1, Ordering::Relaxed);
    Json(engine::AgentStatus {
        instance: engine.instance.lock().unwrap().clone(),
        serving: engine.serving_now(),
        state: match *engine.asleep.lock().unwrap() {
            true => engine::AgentState::Asleep,
            false => engine::AgentState::Idle,
        },
        pulled: engine.pulled.lock().unwrap().clone(),
        ..engine::AgentStatus::serving(engine::BASE_VERSION)
    })
}

async fn complete(
    State(engine): State<Arc<Engine>>,
    headers: HeaderMap,
    Json(request): Json<engine::CompletionRequest>,
) -> Response {
    let wanted = headers[engine::WEIGHTS_HEADER].to_str().unwrap().to_owned();
    let serving = match engine.serving_now() {
        Some(serving) if serving == wanted => serving,
        other => {
            *engine.refused.lock().unwrap() += 1;
            let body = engine::ErrorBody::wrong_weights(other.as_deref(), &wanted);
            return (StatusCode::CONFLICT, Json(body)).into_response();
        }
    };
    let silence = *engine.silence.lock().unwrap();
    match silence {
        Some(Silence::Hangs) => std::future::pending::<()>().await,
        Some(Silence::Crashes) => {
            *engine.booting.lock().unwrap() = true;
            let again = engine.clone();
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_millis(300)).await;
                *again.booting.lock().unwrap() = false;
            });
            let body = engine::ErrorBody::new(engine::ErrorCode::EngineUnavailable, "the engine has ended");
            return (StatusCode::SERVICE_UNAVAILABLE, Json(body)).into_response();
        }
        // A probe is answered; only a long answer is not.
        Some(Silence::SamplesLong) if request.max_tokens > 1 => std::future::pending::<()>().await,
        _ => {}
    }
    let engine::Prompt::Tokens(prompt) = request.prompt else {
        panic!("text prompt");
    };
    if request.routed_experts_from.is_some() && !*engine.reports_experts.lock().unwrap() {
        let body = engine::ErrorBody::new(engine::ErrorCode::ExpertsNotReported, "it was started without the flag");
        return (StatusCode::BAD_REQUEST, Json(body)).into_response();
    }
    let held = engine.held.lock().unwrap().clone();
    if let Some(held) = held {
        held.acquire().await.unwrap().forget();
    }
    let pace = engine.pace.lock().unwrap().clone();
    if let Some(pace) = pace {
        let _slot = pace.slots.acquire().await.unwrap();
        let began = Instant::now();
        tokio::time::sleep(pace.answer).await;
        pace.sampled.lock().unwrap().push((began, Instant::now()));
    }
    let seed = request.seed.unwrap();
    let text = engine.tokenizer.decode(&prompt, false).unwrap();
    let answer = (engine.policy.lock().unwrap())(&text, seed);
    let mut ids = engine
        .tokenizer
        .encode_fast(answer.as_str(), false)
        .unwrap()
        .get_ids()
        .to_vec();
    ids.push(STOP);
    let mut finish = engine::FinishReason::Stop;
    if ids.len() > request.max_tokens as usize {
        ids.truncate(request.max_tokens as usize);
        finish = engine::FinishReason::Length;
    }
    let whole = [&prompt[..], &ids[..]].concat();
    let routed_experts = request.routed_experts_from.map(|from| experts::reported(&whole, from));
    engine.experts_asked.lock().unwrap().push(request.routed_experts_from);
    engine.sampled.lock().unwrap().push((prompt.clone(), ids.clone()));
    engine.asked.lock().unwrap().push((prompt, seed, serving.clone()));
    let logprobs = vec![-0.25; ids.len()];
    Json(engine::CompletionResponse {
        id: "c".into(),
        object: "text_completion".into(),
        created: 0,
        model: request.model,
        weights_version: serving.clone(),
        choices: vec![engine::CompletionChoice {
            index: 0,
            text: String::new(),
            token_ids: ids,
            finish_reason: finish,
            stop_reason: None,
            logprobs: Some(engine::ChoiceLogprobs {
                token_logprobs: logprobs,
            }),
            routed_experts,
            weights_version: serving,
        }],
        usage: engine::Usage::default(),
    })
    .into_response()
}
