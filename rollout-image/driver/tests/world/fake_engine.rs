//! The engine and its agent.

use super::*;

pub(super) fn router(engine: Arc<Engine>) -> Router {
    Router::new()
        .route("/v1/completions", post(complete))
        .route("/agent/v1/weights", put(order))
        .route("/agent/v1/status", get(status))
        .with_state(engine)
}

async fn order(State(engine): State<Arc<Engine>>, Json(order): Json<engine::WeightsOrder>) -> StatusCode {
    if !*engine.stuck.lock().unwrap() {
        engine.serving.lock().unwrap().clone_from(&order.version);
    }
    engine.orders.lock().unwrap().push(order);
    StatusCode::ACCEPTED
}

async fn status(State(engine): State<Arc<Engine>>) -> Json<engine::AgentStatus> {
    Json(engine::AgentStatus {
        instance: engine.instance.lock().unwrap().clone(),
        serving: Some(engine.serving.lock().unwrap().clone()),
        wanted: None,
        state: engine::AgentState::Idle,
        message: None,
        loaded_sha256: None,
        changed: None,
    })
}

async fn complete(
    State(engine): State<Arc<Engine>>,
    headers: HeaderMap,
    Json(request): Json<engine::CompletionRequest>,
) -> Response {
    let serving = engine.serving.lock().unwrap().clone();
    let wanted = headers[engine::WEIGHTS_HEADER].to_str().unwrap().to_owned();
    if wanted != serving {
        let body = engine::ErrorBody::wrong_weights(Some(&serving), &wanted);
        return (StatusCode::CONFLICT, Json(body)).into_response();
    }
    let engine::Prompt::Tokens(prompt) = request.prompt else {
        panic!("text prompt");
    };
    if request.routed_experts_from.is_some() && !*engine.reports_experts.lock().unwrap() {
        let body = engine::ErrorBody::new(engine::ErrorCode::ExpertsNotReported, "it was started without the flag");
        return (StatusCode::BAD_REQUEST, Json(body)).into_response();
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
