//! The gateway's part for command-line agents in sandboxes: a port that leads to the driver, and forced ends.
//!
//! All sandboxes would have the same port of this machine, so commands find a path of the gateway instead.

use super::*;
use axum::extract::Request;
use std::sync::OnceLock;
use tokio::sync::watch;

/// The ports of sandboxes, by lease: their targets, or none while the gateway is unavailable.
#[derive(Default)]
pub struct Relays {
    open: Mutex<HashMap<String, watch::Sender<Option<String>>>>,
    kills: Mutex<HashMap<(String, String), Arc<tokio::sync::Notify>>>,
    pub address: OnceLock<SocketAddr>,
    /// How often a driver set a port's target.
    pub told: Mutex<u32>,
    pub passed: Mutex<Vec<Passed>>,
    /// The gateway is away: agents and driver reach nothing through it.
    pub away: watch::Sender<bool>,
}

/// A forwarded request and its answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Passed {
    pub lease: String,
    pub method: String,
    pub path: String,
    /// Its body or its path requests a stream.
    pub streams: bool,
    pub status: u16,
    /// The body of an error answer.
    pub refusal: String,
}

pub fn router(gateway: Arc<Gateway>) -> Router {
    Router::new()
        .route("/v1/leases/{id}/relay", put(open))
        .route("/v1/leases/{id}/exec/kill", post(kill))
        .route("/relayed/{lease}/{*path}", axum::routing::any(pass_on))
        .with_state(gateway)
}

impl Relays {
    /// The address at which a command finds the port.
    pub fn port_of(&self, lease: &str, value: &str) -> String {
        let there = format!("{}/relayed/{lease}", self.address.get().unwrap());
        value.replace("127.0.0.1:48271", &there)
    }

    /// Ends every connection, like a gateway that ends.
    pub fn cut(&self) {
        for to in self.open.lock().unwrap().values() {
            to.send_replace(None);
        }
    }

    /// The gateway ends, and comes back after this time.
    pub async fn out_for(&self, time: Duration) {
        self.away.send_replace(true);
        self.cut();
        tokio::time::sleep(time).await;
        self.away.send_replace(false);
    }

    pub fn killed(&self, lease: &str, exec: &str) -> Arc<tokio::sync::Notify> {
        let key = (lease.to_owned(), exec.to_owned());
        self.kills.lock().unwrap().entry(key).or_default().clone()
    }
}

async fn open(
    State(gateway): State<Arc<Gateway>>,
    Path(id): Path<String>,
    Json(relay): Json<sandbox::RelayRequest>,
) -> StatusCode {
    if *gateway.relays.away.borrow() {
        return StatusCode::SERVICE_UNAVAILABLE;
    }
    *gateway.relays.told.lock().unwrap() += 1;
    let mut open = gateway.relays.open.lock().unwrap();
    let sender = open.entry(id).or_insert_with(|| watch::channel(None).0);
    sender.send_replace(Some(relay.to));
    StatusCode::NO_CONTENT
}

async fn kill(
    State(gateway): State<Arc<Gateway>>,
    Path(id): Path<String>,
    Json(kill): Json<sandbox::KillRequest>,
) -> Response {
    gateway.relays.killed(&id, &kill.id).notify_one();
    Json(json!({ "id": kill.id })).into_response()
}

async fn pass_on(
    State(gateway): State<Arc<Gateway>>,
    Path((lease, path)): Path<(String, String)>,
    request: Request,
) -> Response {
    let leads = gateway
        .relays
        .open
        .lock()
        .unwrap()
        .get(&lease)
        .map(watch::Sender::subscribe);
    let Some(mut leads) = leads else {
        return StatusCode::BAD_GATEWAY.into_response();
    };
    let Some(to) = leads.borrow_and_update().clone() else {
        return StatusCode::BAD_GATEWAY.into_response();
    };
    let method = request.method().clone();
    let query = request
        .uri()
        .query()
        .map(|query| format!("?{query}"))
        .unwrap_or_default();
    let mut headers = request.headers().clone();
    for name in ["host", "connection", "content-length", "transfer-encoding"] {
        headers.remove(name);
    }
    headers.insert(sandbox::RELAY_LEASE_HEADER, lease.parse().unwrap());
    let body = axum::body::to_bytes(request.into_body(), usize::MAX)
        .await
        .unwrap_or_default();
    let asks = serde_json::from_slice::<Value>(&body).is_ok_and(|body| body["stream"] == json!(true));
    let streams = asks || path.ends_with(":streamGenerateContent");
    let asked = reqwest::Client::new()
        .request(method.clone(), format!("{to}/{path}{query}"))
        .headers(headers)
        .body(body)
        .send();
    let cut = async {
        let _ = leads.wait_for(Option::is_none).await;
    };
    tokio::select! {
        biased;
        () = cut => StatusCode::BAD_GATEWAY.into_response(),
        answer = asked => match answer {
            Ok(answer) => {
                let status = answer.status();
                let kind = answer.headers().get("content-type").cloned();
                let bytes = answer.bytes().await.unwrap_or_default();
                let refusal = match status.is_success() {
                    true => String::new(),
                    false => String::from_utf8_lossy(&bytes).into_owned(),
                };
                gateway.relays.passed.lock().unwrap().push(Passed {
                    lease,
                    method: method.to_string(),
                    path,
                    streams,
                    status: status.as_u16(),
                    refusal,
                });
                let mut answer = (status, bytes).into_response();
                if let Some(kind) = kind {
                    answer.headers_mut().insert("content-type", kind);
                }
                answer
            }
            Err(_) => StatusCode::BAD_GATEWAY.into_response(),
        },
    }
}
