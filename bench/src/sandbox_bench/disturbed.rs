//! A proxy of the API server whose watches are late, doubled and out of order.
//!
//! ```text
//! gateway ──plain HTTP──► [`Disturbed`] ──as the gateway's account──► kube-apiserver
//! ```
//!
//! Everything but watches passes unchanged. An event of a watch arrives a second late. Some events arrive again later,
//! after newer ones of the same object, and some swap places with the next event of another object. Bookmarks stay
//! true: no event moves past one.

use std::{
    collections::VecDeque,
    convert::Infallible,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    time::Duration,
};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::{Request, State},
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use futures::StreamExt;
use http_body_util::BodyExt;
use kube::Client;
use rand::{Rng, SeedableRng, rngs::StdRng};
use serde::Deserialize;
use serde_json::json;
use tokio::{
    net::TcpListener,
    sync::mpsc,
    task::JoinHandle,
    time::{Instant, sleep_until},
};

use super::SandboxBenchError;

/// How late events come.
const LATE: Duration = Duration::from_secs(1);
/// Percentages of events that come again, and of events that swap places with the next.
const DOUBLED: u32 = 20;
const SWAPPED: u32 = 20;
/// A repeated event comes after at most this many others.
const AGAIN_AFTER: usize = 5;
/// Largest body of a request or an answer that is not a watch.
const MOST: usize = 64 << 20;

/// Serves until it is dropped.
pub struct Disturbed {
    pub kubeconfig: PathBuf,
    task: JoinHandle<()>,
}

impl Disturbed {
    /// `client` is the account that the API server sees.
    pub async fn serve(client: Client, folder: &Path) -> Result<Self, SandboxBenchError> {
        let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).await?;
        let server = format!("http://{}", listener.local_addr()?);
        let kubeconfig = folder.join("disturbed.kubeconfig");
        let content = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "it",
            "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
            "clusters": [{"name": "it", "cluster": {"server": server}}],
            "users": [{"name": "it", "user": {}}],
        });
        std::fs::write(&kubeconfig, content.to_string())?;
        let router = Router::new().fallback(pass).with_state(client);
        let task = tokio::spawn(async move {
            // Ends only when dropped.
            let _ = axum::serve(listener, router).await;
        });
        Ok(Self { kubeconfig, task })
    }
}

impl Drop for Disturbed {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn pass(State(client): State<Client>, request: Request) -> Response {
    let failed = |what: String| (StatusCode::BAD_GATEWAY, what).into_response();
    let is_watch = request.uri().query().is_some_and(|query| query.contains("watch=true"));
    let (mut head, body) = request.into_parts();
    head.headers.remove(header::HOST);
    head.headers.remove(header::CONTENT_LENGTH);
    let body = match axum::body::to_bytes(body, MOST).await {
        Ok(body) => body.to_vec(),
        Err(error) => return failed(error.to_string()),
    };
    let answer = match client.send(http::Request::from_parts(head, body.into())).await {
        Ok(answer) => answer,
        Err(error) => return failed(error.to_string()),
    };
    let (mut head, body) = answer.into_parts();
    head.headers.remove(header::CONTENT_LENGTH);
    head.headers.remove(header::TRANSFER_ENCODING);
    if !is_watch || head.status != StatusCode::OK {
        return match body.collect().await {
            Ok(whole) => Response::from_parts(head, Body::from(whole.to_bytes())),
            Err(error) => failed(error.to_string()),
        };
    }
    let (tell, told) = mpsc::channel(16);
    tokio::spawn(disturb(body, tell));
    let events = futures::stream::unfold(told, async |mut told| told.recv().await.map(|event| (event, told)));
    Response::from_parts(head, Body::from_stream(events.map(Ok::<_, Infallible>)))
}

/// One line of a watch.
#[derive(Clone)]
struct Told {
    line: Bytes,
    /// `None` for a bookmark, and for a line that is not an event of an object.
    object: Option<String>,
    due: Instant,
}

#[derive(Deserialize)]
struct Event {
    r#type: String,
    #[serde(default)]
    object: Object,
}

#[derive(Default, Deserialize)]
struct Object {
    #[serde(default)]
    metadata: Metadata,
}

#[derive(Default, Deserialize)]
struct Metadata {
    #[serde(default)]
    name: String,
}

/// Forwards the API server's watch, disturbed, until one side closes it.
async fn disturb(mut body: kube::client::Body, tell: mpsc::Sender<Bytes>) {
    let mut random = StdRng::seed_from_u64(7);
    let mut waiting: VecDeque<Told> = VecDeque::new();
    let mut begun = Vec::new();
    loop {
        let due = waiting.front().map(|told| told.due);
        tokio::select! {
            () = tell.closed() => return,
            () = async { sleep_until(due.unwrap_or_else(Instant::now)).await }, if due.is_some() => {
                let Some(told) = waiting.pop_front() else { continue };
                if tell.send(told.line.clone()).await.is_err() {
                    return;
                }
                if told.object.is_some() && random.random_ratio(DOUBLED, 100) {
                    again(&mut waiting, told, random.random_range(0..AGAIN_AFTER));
                }
            }
            frame = body.frame() => {
                let Some(Ok(frame)) = frame else { break };
                let Ok(data) = frame.into_data() else { continue };
                begun.extend_from_slice(&data);
                while let Some(end) = begun.iter().position(|byte| *byte == b'\n') {
                    let line: Vec<u8> = begun.drain(..=end).collect();
                    take(&mut waiting, line.into(), random.random_ratio(SWAPPED, 100));
                }
            }
        }
    }
    // The watch has ended; its remaining events are still sent.
    for told in waiting {
        sleep_until(told.due).await;
        if tell.send(told.line).await.is_err() {
            return;
        }
    }
}

fn take(waiting: &mut VecDeque<Told>, line: Bytes, is_swapped: bool) {
    let event: Option<Event> = serde_json::from_slice(&line).ok();
    let object = event
        .filter(|event| matches!(event.r#type.as_str(), "ADDED" | "MODIFIED" | "DELETED"))
        .map(|event| event.object.metadata.name);
    let due = Instant::now() + LATE;
    waiting.push_back(Told { line, object, due });
    let last = waiting.len() - 1;
    if !is_swapped || last == 0 {
        return;
    }
    let is_other = match (&waiting[last].object, &waiting[last - 1].object) {
        (Some(new), Some(before)) => new != before,
        _ => false,
    };
    if is_other {
        waiting.swap(last, last - 1);
        // Events are sent in the order in which they wait.
        waiting[last - 1].due = waiting[last].due;
        waiting[last].due = due;
    }
}

/// Inserts the event after this many others, but before the next bookmark.
fn again(waiting: &mut VecDeque<Told>, mut told: Told, after: usize) {
    let bookmark = waiting.iter().position(|other| other.object.is_none());
    let at = after.min(waiting.len()).min(bookmark.unwrap_or(usize::MAX));
    told.due = match at {
        0 => Instant::now(),
        _ => waiting[at - 1].due,
    };
    waiting.insert(at, told);
}

#[cfg(test)]
mod tests;
