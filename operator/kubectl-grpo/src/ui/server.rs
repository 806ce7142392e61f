//! The viewer's local web server: the page's files, views as JSON, and a stream that says when something has changed.
//!
//! It listens on loopback, and shows records only to the browser that opened the printed address: the address has a
//! token, which becomes a cookie. A request with another `Host` is refused, so that a web page of somebody else cannot
//! read records under a name that resolves to this machine. Everything that a page shows came out of sandboxes, so the
//! page may load nothing but its own files.

use super::assets;
use super::files::Download;
use super::viewed::Viewed;
use super::wanted::Wanted;
use super::wire::{Problem, RunsView};
use crate::error::Error;
use axum::Router;
use axum::body::Body;
use axum::extract::{Path, Query, Request, State};
use axum::http::header::{
    CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_SECURITY_POLICY, CONTENT_TYPE, COOKIE, HOST, LOCATION, REFERRER_POLICY,
    SET_COOKIE, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::middleware::{self, Next};
use axum::response::sse::{self, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures::{Stream, TryStreamExt};
use serde::{Deserialize, Serialize};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use subtle::ConstantTimeEq;

const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The runs that are shown, and who may see them.
pub struct Shown {
    pub runs: Vec<Arc<Viewed>>,
    /// 32 hexadecimal digits.
    pub token: String,
    pub at: SocketAddr,
}

#[derive(Deserialize)]
struct Entry {
    token: Option<String>,
}

#[derive(Deserialize)]
struct Search {
    #[serde(default)]
    q: String,
}

#[derive(Deserialize)]
struct Part {
    #[serde(default)]
    from: u64,
}

/// The routes.
pub fn router(shown: Arc<Shown>) -> Router {
    Router::new()
        .route("/", get(page))
        .route("/app.js", get(|| async { file("text/javascript", assets::SCRIPT) }))
        .route("/app.css", get(|| async { file("text/css", assets::STYLE) }))
        .route("/api/runs", get(runs))
        .route("/api/{run}/search", get(search))
        .route("/api/{run}/log/{*episode}", get(log))
        .route("/api/{run}/export/{*file}", get(download))
        .route("/api/{run}/{*view}", get(view))
        .route("/events", get(events))
        .layer(middleware::from_fn_with_state(Arc::clone(&shown), check))
        .with_state(shown)
}

/// Refuses strangers, and adds the headers that keep the page to itself.
async fn check(State(shown): State<Arc<Shown>>, request: Request, next: Next) -> Response {
    let mut response = match is_refused(&shown, request.headers(), request.uri().query()) {
        Some(refusal) => refusal,
        None => next.run(request).await,
    };
    let headers = response.headers_mut();
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(X_FRAME_OPTIONS, HeaderValue::from_static("DENY"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

fn is_refused(shown: &Shown, headers: &HeaderMap, query: Option<&str>) -> Option<Response> {
    let host = headers
        .get(HOST)
        .and_then(|host| host.to_str().ok())
        .unwrap_or_default();
    let port = shown.at.port();
    if ![
        format!("127.0.0.1:{port}"),
        format!("localhost:{port}"),
        format!("[::1]:{port}"),
    ]
    .contains(&host.to_owned())
    {
        let message = "this viewer answers only to its own address: open the one that kubectl grpo ui printed";
        return Some(problem(StatusCode::FORBIDDEN, message));
    }
    let given = serde_urlencoded::from_str::<Entry>(query.unwrap_or_default())
        .ok()
        .and_then(|entry| entry.token);
    if given.is_some_and(|token| is_token(shown, &token)) {
        // The token leaves the address bar and the history.
        let cookie = format!("{}={}; HttpOnly; SameSite=Lax; Path=/", cookie_name(shown), shown.token);
        let headers = [(LOCATION, "/".to_owned()), (SET_COOKIE, cookie)];
        return Some((StatusCode::SEE_OTHER, headers).into_response());
    }
    let cookies = headers
        .get_all(COOKIE)
        .iter()
        .filter_map(|cookies| cookies.to_str().ok());
    let name = cookie_name(shown);
    let known = cookies.flat_map(|cookies| cookies.split(';')).any(|cookie| {
        let named = cookie.trim().split_once('=');
        named.is_some_and(|(key, value)| key == name && is_token(shown, value))
    });
    match known {
        true => None,
        false => {
            let message =
                "open the address that kubectl grpo ui printed: it has a token that this browser does not have";
            Some(problem(StatusCode::UNAUTHORIZED, message))
        }
    }
}

/// Browsers share cookies between ports.
fn cookie_name(shown: &Shown) -> String {
    format!("grpo-ui-{}", shown.at.port())
}

fn is_token(shown: &Shown, given: &str) -> bool {
    given.as_bytes().ct_eq(shown.token.as_bytes()).into()
}

async fn page() -> Response {
    file("text/html", assets::PAGE)
}

fn file(kind: &'static str, content: &'static str) -> Response {
    ([(CONTENT_TYPE, format!("{kind}; charset=utf-8"))], content).into_response()
}

async fn runs(State(shown): State<Arc<Shown>>) -> Response {
    let view = RunsView {
        runs: shown.runs.iter().map(|run| run.name()).collect(),
        live: shown.runs.iter().any(|run| run.is_live()),
        bundle: false,
    };
    json(&view)
}

fn of(shown: &Shown, run: usize) -> Result<Arc<Viewed>, Box<Response>> {
    let found = shown.runs.get(run).cloned();
    found.ok_or_else(|| {
        Box::new(problem(
            StatusCode::NOT_FOUND,
            "this viewer shows no run of this number",
        ))
    })
}

async fn view(State(shown): State<Arc<Shown>>, Path((run, path)): Path<(usize, String)>) -> Response {
    let run = match of(&shown, run) {
        Ok(run) => run,
        Err(refusal) => return *refusal,
    };
    match Wanted::parse(&path) {
        Some(wanted) => answer(run.answer(&wanted).await),
        None => problem(StatusCode::NOT_FOUND, "there is no such view"),
    }
}

async fn search(State(shown): State<Arc<Shown>>, Path(run): Path<usize>, Query(search): Query<Search>) -> Response {
    match of(&shown, run) {
        Ok(run) => answer(run.search(&search.q)),
        Err(refusal) => *refusal,
    }
}

async fn log(
    State(shown): State<Arc<Shown>>,
    Path((run, episode)): Path<(usize, String)>,
    Query(part): Query<Part>,
) -> Response {
    match of(&shown, run) {
        Ok(run) if grpo_records::paths::parse_episode(&episode).is_some() => answer(run.log(&episode, part.from).await),
        Ok(_) => problem(StatusCode::NOT_FOUND, "there is no such episode"),
        Err(refusal) => *refusal,
    }
}

async fn download(State(shown): State<Arc<Shown>>, Path((run, file)): Path<(usize, String)>) -> Response {
    let run = match of(&shown, run) {
        Ok(run) => run,
        Err(refusal) => return *refusal,
    };
    let Some(wanted) = Download::parse(&file) else {
        return problem(StatusCode::NOT_FOUND, "there is no such file");
    };
    let pieces = match run.download(&wanted).await {
        Ok(pieces) => pieces,
        // Of a refusal there is nothing to save: opened in a tab, it shows its message.
        Err(error) => return answer(Err(error)),
    };
    let name = wanted.name();
    let attachment = HeaderValue::from_str(&format!("attachment; filename=\"{name}\""));
    // The status is sent by then, so the browser sees only that the file ends too early.
    let pieces = pieces.map_err(move |error| {
        eprintln!("{name}: {error}");
        error.to_string()
    });
    let mut response = ([(CONTENT_TYPE, "application/json")], Body::from_stream(pieces)).into_response();
    if let Ok(attachment) = attachment {
        response.headers_mut().insert(CONTENT_DISPOSITION, attachment);
    }
    response
}

/// What changed, as a number that grows; and why records cannot be read, if so.
#[derive(Serialize)]
struct Change {
    run: usize,
    change: u64,
    live: bool,
    problem: Option<Problem>,
}

/// A stream with an event for each run, and one for each of its changes.
async fn events(State(shown): State<Arc<Shown>>) -> Sse<impl Stream<Item = Result<sse::Event, Infallible>>> {
    let streams = shown.runs.iter().enumerate().map(|(number, run)| {
        let run = Arc::clone(run);
        let mut changes = run.changes();
        // A page that was opened, or connected again, later does not know the state yet.
        changes.mark_changed();
        let next = move |(run, mut changes): (Arc<Viewed>, tokio::sync::watch::Receiver<u64>)| async move {
            changes.changed().await.ok()?;
            let change = *changes.borrow_and_update();
            let told = Change {
                run: number,
                change,
                live: run.is_live(),
                problem: run.problem(),
            };
            let event = sse::Event::default().json_data(&told).ok()?;
            Some((Ok(event), (run, changes)))
        };
        Box::pin(futures::stream::unfold((run, changes), next))
    });
    Sse::new(futures::stream::select_all(streams)).keep_alive(sse::KeepAlive::default())
}

fn answer(view: Result<Vec<u8>, Error>) -> Response {
    match view {
        Ok(body) => ([(CONTENT_TYPE, "application/json")], body).into_response(),
        Err(error) => {
            let status = match &error {
                Error::NoEpisode(_) => StatusCode::NOT_FOUND,
                Error::Records(refusal) if refusal.code == grpo_records::look::RefusalCode::NotThere => {
                    StatusCode::NOT_FOUND
                }
                _ => StatusCode::BAD_GATEWAY,
            };
            problem(status, &error.to_string())
        }
    }
}

fn json(view: &impl Serialize) -> Response {
    axum::Json(view).into_response()
}

fn problem(status: StatusCode, message: &str) -> Response {
    let problem = Problem {
        message: message.to_owned(),
    };
    (status, axum::Json(problem)).into_response()
}

#[cfg(test)]
mod tests;
