//! The endpoint over HTTP: the routes of each API below a session's path, streams that stay open while an answer takes
//! long, and each API's own errors.
//!
//! A request whose episode is over gets 404: command-line agents end on 404, and retry other errors. The message does
//! not mention limits, because the policy may read it. A request whose driver is away waits, also while this driver
//! ends or starts, and then gets 503: the agent is to go on when the episode does. A path that is not served gets 404
//! too, with the paths that are.

use super::api::{Api, BadRequest, ModelMethod};
use super::canon::Keys;
use super::request::{Answer, Request};
use super::sessions::{Asked, Door, Fate, Reply, SESSIONS, Sessions, Wanted};
use axum::Router;
use axum::body::Body;
use axum::extract::{Path, Request as HttpRequest, State};
use axum::http::header::{CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use bytes::Bytes;
use futures::stream;
use grpo_auth::CallersPlace;
use grpo_sandbox_protocol::RELAY_LEASE_HEADER;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// The largest body of a request, in bytes.
const MOST_BYTES: usize = 16 << 20;
/// How long a body may take to arrive.
const BODY_WITHIN: Duration = Duration::from_secs(60);
/// A stream opens after this time without an answer, and sends an event at this interval: clients give up a request
/// without headers after two minutes, and a silent stream after four.
const PAUSE: Duration = Duration::from_secs(30);
const OVER: &str = "this session has ended";
const AWAY: &str = "the model is not available now; repeat the request";
const UNSERVED: &str = "this endpoint serves only POST /v1/chat/completions, /v1/responses, \
    /v1/responses/input_tokens, /v1/messages, /v1/messages/count_tokens, /v1beta/models/{id}:generateContent, \
    /v1beta/models/{id}:streamGenerateContent and /v1beta/models/{id}:countTokens, and GET /v1/models, \
    /v1/models/{id}, /v1beta/models and /v1beta/models/{id}";
/// When a client may repeat a request that was not answered, in seconds.
const AGAIN_AFTER: &str = "5";
const JSON: &str = "application/json";

/// The routes of every session.
pub fn router(sessions: Sessions) -> Router {
    let at = |path: &str| format!("/{{secret}}/v1{path}");
    let below = Router::new()
        .route(&at("/chat/completions"), post(chat))
        .route(&at("/responses"), post(responses))
        .route(&at("/responses/input_tokens"), post(count_responses))
        .route(&at("/messages"), post(messages))
        .route(&at("/messages/count_tokens"), post(count_messages))
        .route(&at("/models"), get(models))
        .route(&at("/models/{*name}"), get(model))
        .route("/{secret}/v1beta/models", get(models))
        .route("/{secret}/v1beta/models/{*name}", get(model).post(generate))
        .fallback(unserved)
        .layer(middleware::from_fn_with_state(sessions.clone(), keep_place))
        .with_state(sessions);
    Router::new().nest(SESSIONS, below)
}

type Shared = State<Sessions>;

/// A request of an open session keeps the place of its connection, as one with a token does: it may wait for minutes.
async fn keep_place(State(sessions): Shared, request: HttpRequest, next: Next) -> Response {
    let path = request.uri().path();
    let secret = path.strip_prefix(SESSIONS).unwrap_or(path).split('/').nth(1);
    let lease = request
        .headers()
        .get(RELAY_LEASE_HEADER)
        .and_then(|lease| lease.to_str().ok());
    let is_open = sessions
        .door(secret.unwrap_or_default(), lease.unwrap_or_default())
        .is_some();
    let place = request.extensions().get::<CallersPlace>().filter(|_| is_open);
    if let Some(Err(full)) = place.map(CallersPlace::keep) {
        tracing::debug!(%full, "a session's request is answered, unless a newer connection takes its place");
    }
    next.run(request).await
}

async fn chat(State(sessions): Shared, Path(secret): Path<String>, headers: HeaderMap, body: Body) -> Response {
    ask(&sessions, &secret, &headers, body, Api::ChatCompletions, false).await
}

async fn responses(State(sessions): Shared, Path(secret): Path<String>, headers: HeaderMap, body: Body) -> Response {
    ask(&sessions, &secret, &headers, body, Api::Responses, false).await
}

async fn count_responses(
    State(sessions): Shared,
    Path(secret): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    ask(&sessions, &secret, &headers, body, Api::Responses, true).await
}

async fn messages(State(sessions): Shared, Path(secret): Path<String>, headers: HeaderMap, body: Body) -> Response {
    ask(&sessions, &secret, &headers, body, Api::Messages, false).await
}

async fn count_messages(
    State(sessions): Shared,
    Path(secret): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    ask(&sessions, &secret, &headers, body, Api::Messages, true).await
}

/// Gemini's API, whose paths end with a model and a method.
async fn generate(
    State(sessions): Shared,
    Path((secret, name)): Path<(String, String)>,
    uri: Uri,
    headers: HeaderMap,
    body: Body,
) -> Response {
    match ModelMethod::of(&name, uri.query()) {
        Some(method) => {
            let counts = method.counts;
            ask_by(
                &sessions,
                &secret,
                &headers,
                body,
                Api::GenerateContent,
                counts,
                Some(method),
            )
            .await
        }
        None => unserved(State(sessions), uri, headers).await,
    }
}

async fn models(State(sessions): Shared, Path(secret): Path<String>, uri: Uri, headers: HeaderMap) -> Response {
    let api = vendor(&uri, &headers);
    match door(&sessions, &secret, &headers).await {
        Ok(door) => json(StatusCode::OK, api.models(&door.model)),
        Err(fate) => unanswered(api, fate),
    }
}

/// Every name is the policy's, as in requests.
async fn model(
    State(sessions): Shared,
    Path((secret, name)): Path<(String, String)>,
    uri: Uri,
    headers: HeaderMap,
) -> Response {
    let api = vendor(&uri, &headers);
    match door(&sessions, &secret, &headers).await {
        Ok(_) => json(StatusCode::OK, api.model(&name)),
        Err(fate) => unanswered(api, fate),
    }
}

/// Any other path. `uri`: without [`SESSIONS`].
async fn unserved(State(sessions): Shared, uri: Uri, headers: HeaderMap) -> Response {
    let api = vendor(&uri, &headers);
    let secret = uri.path().split('/').nth(1).unwrap_or_default();
    match door(&sessions, secret, &headers).await {
        Ok(_) => error(api, StatusCode::NOT_FOUND, UNSERVED),
        Err(fate) => unanswered(api, fate),
    }
}

/// The API of a request whose path does not name it. Google's paths have a version of their own. OpenAI and Anthropic
/// list models at the same path, and Anthropic's clients say their version. `uri`: without [`SESSIONS`].
fn vendor(uri: &Uri, headers: &HeaderMap) -> Api {
    if uri.path().split('/').nth(2) == Some("v1beta") {
        return Api::GenerateContent;
    }
    match headers.contains_key("anthropic-version") {
        true => Api::Messages,
        false => Api::ChatCompletions,
    }
}

/// The session of a request, or what becomes of the request without one.
async fn door(sessions: &Sessions, secret: &str, headers: &HeaderMap) -> Result<Door, Fate> {
    let lease = headers.get(RELAY_LEASE_HEADER).and_then(|lease| lease.to_str().ok());
    // A request that no gateway passed on belongs to no agent.
    let Some(lease) = lease else {
        return Err(Fate::Over);
    };
    match sessions.door(secret, lease) {
        Some(door) => Ok(door),
        None => Err(sessions.fate(secret, lease).await),
    }
}

async fn ask(sessions: &Sessions, secret: &str, headers: &HeaderMap, body: Body, api: Api, counts: bool) -> Response {
    ask_by(sessions, secret, headers, body, api, counts, None).await
}

/// `method`: what the path says, in Gemini's API.
async fn ask_by(
    sessions: &Sessions,
    secret: &str,
    headers: &HeaderMap,
    body: Body,
    api: Api,
    counts: bool,
    method: Option<ModelMethod>,
) -> Response {
    let door = match door(sessions, secret, headers).await {
        Ok(door) => door,
        Err(fate) => return unanswered(api, fate),
    };
    let Ok(place) = door.places.clone().try_acquire_owned() else {
        let message = "too many requests at one time; wait for the answers to earlier ones";
        return again(api, StatusCode::TOO_MANY_REQUESTS, message);
    };
    let arriving = door.body.acquire().await;
    let body = match read(sessions, headers, body).await {
        Ok(body) => body,
        Err((status, message)) => return error(api, status, &message),
    };
    drop(arriving);
    let decoded = tokio::task::spawn_blocking(move || {
        let mut request = api.decode(&body)?;
        if let Some(method) = method {
            method.apply(&mut request)?;
        }
        let wanted = match counts {
            true => Wanted::Count,
            false => Wanted::Answer(api, Keys::of(&request)),
        };
        Ok::<_, BadRequest>((request, wanted))
    });
    let (request, wanted) = match decoded.await {
        Ok(Ok(decoded)) => decoded,
        Ok(Err(bad)) => return json(StatusCode::BAD_REQUEST, api.bad_request(&bad)),
        Err(_) => return error(api, StatusCode::INTERNAL_SERVER_ERROR, "the request cannot be read"),
    };
    let request = Arc::new(request);
    let (reply, mut replied) = oneshot::channel();
    let asked = Asked {
        wanted,
        request: request.clone(),
        reply,
    };
    if door.asked.send(asked).await.is_err() {
        return unanswered(api, sessions.fate(secret, &door.lease).await);
    }
    if request.stream && !counts {
        return match tokio::time::timeout(PAUSE, &mut replied).await {
            Ok(Ok(Reply::Answer(answer))) => {
                let events = api.events(&request, &answer.id, answer.created).finish(&answer);
                streamed(Body::from(events.concat()), request.array)
            }
            Ok(Ok(reply)) => whole(api, &request, reply),
            Ok(Err(_)) => unanswered(api, sessions.fate(secret, &door.lease).await),
            Err(_) => {
                let (sender, receiver) = mpsc::channel(4);
                let (sessions, secret, array) = (sessions.clone(), secret.to_owned(), request.array);
                tokio::spawn(async move {
                    if !hold_open(api, &request, replied, &sender).await
                        && sessions.fate(&secret, &door.lease).await == Fate::Away
                    {
                        // A stream that ends without an error looks like an empty answer, after which some agents end.
                        let last = match api {
                            // Gemini's clients repeat a request whose stream says the error, and give up a broken one.
                            Api::GenerateContent => Ok(api.error(503, AWAY).into()),
                            _ => Err(io::Error::other(AWAY)),
                        };
                        let _ = sender.send(last).await;
                    }
                    drop(place);
                });
                let chunks = stream::unfold(receiver, |mut receiver| async move {
                    let chunk: Result<Bytes, io::Error> = receiver.recv().await?;
                    Some((chunk, receiver))
                });
                streamed(Body::from_stream(chunks), array)
            }
        };
    }
    match replied.await {
        Ok(reply) => whole(api, &request, reply),
        Err(_) => unanswered(api, sessions.fate(secret, &door.lease).await),
    }
}

/// Keeps a client waiting, then sends the answer. If the reply is no answer, the stream ends without content: the
/// client asks again, and gets the end. False if there is no reply.
async fn hold_open(
    api: Api,
    request: &Request,
    mut replied: oneshot::Receiver<Reply>,
    to: &mpsc::Sender<Result<Bytes, io::Error>>,
) -> bool {
    // The stream's id and time are sent before the answer is known.
    let id = format!("w{}", hex::encode(rand::random::<[u8; 8]>()));
    let created = jiff::Timestamp::now().as_second();
    let mut events = api.events(request, &id, created);
    let answer = loop {
        if to.send(Ok(events.wait().into())).await.is_err() {
            return true;
        }
        match tokio::time::timeout(PAUSE, &mut replied).await {
            Ok(Ok(Reply::Answer(answer))) => break answer,
            Ok(Ok(_)) => return true,
            Ok(Err(_)) => return false,
            Err(_) => {}
        }
    };
    let answer = Answer {
        id: id.clone(),
        created,
        ..*answer
    };
    for event in events.finish(&answer) {
        if to.send(Ok(event.into())).await.is_err() {
            return true;
        }
    }
    true
}

/// A body, if it is not too large and arrives in time.
async fn read(sessions: &Sessions, headers: &HeaderMap, body: Body) -> Result<Bytes, (StatusCode, String)> {
    let said = headers
        .get(CONTENT_LENGTH)
        .and_then(|value| value.to_str().ok()?.parse().ok());
    let too_large = || {
        let message = format!("the body of a request has at most {MOST_BYTES} bytes");
        (StatusCode::PAYLOAD_TOO_LARGE, message)
    };
    let length = said.unwrap_or(MOST_BYTES);
    if length > MOST_BYTES {
        return Err(too_large());
    }
    let late = || {
        (
            StatusCode::REQUEST_TIMEOUT,
            "the body of the request did not arrive".to_owned(),
        )
    };
    let share = sessions.room().take(length).await;
    let bytes = tokio::time::timeout(BODY_WITHIN, axum::body::to_bytes(body, length)).await;
    let bytes = bytes.map_err(|_| late())?.map_err(|_| too_large())?;
    Ok(share.hold(bytes.into()))
}

/// A reply without a stream.
fn whole(api: Api, request: &Request, reply: Reply) -> Response {
    match reply {
        Reply::Answer(answer) => json(StatusCode::OK, api.answer(request, &answer)),
        Reply::Count(tokens) => json(StatusCode::OK, api.token_count(tokens)),
        Reply::Unusable(why) => error(api, StatusCode::BAD_REQUEST, &why),
        Reply::Over => ended(api),
    }
}

/// The response to a request that no session answered.
fn unanswered(api: Api, fate: Fate) -> Response {
    match fate {
        Fate::Over => ended(api),
        Fate::Away => again(api, StatusCode::SERVICE_UNAVAILABLE, AWAY),
    }
}

/// An error after which the client is to repeat its request.
fn again(api: Api, status: StatusCode, message: &str) -> Response {
    ([(RETRY_AFTER, AGAIN_AFTER)], error(api, status, message)).into_response()
}

fn ended(api: Api) -> Response {
    error(api, StatusCode::NOT_FOUND, OVER)
}

fn error(api: Api, status: StatusCode, message: &str) -> Response {
    json(status, api.error(status.as_u16(), message))
}

fn json(status: StatusCode, body: Vec<u8>) -> Response {
    (status, [(CONTENT_TYPE, JSON)], body).into_response()
}

/// `array`: the stream is one JSON array.
fn streamed(body: Body, array: bool) -> Response {
    let kind = if array { JSON } else { "text/event-stream" };
    let headers = [(CONTENT_TYPE, kind), (CACHE_CONTROL, "no-cache")];
    (headers, body).into_response()
}

#[cfg(test)]
mod tests;
