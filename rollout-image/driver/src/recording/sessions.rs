//! The open sessions, and the way from their HTTP requests to their episodes.
//!
//! A session belongs to one live episode. Its path holds a secret of 128 random bits, which only the gateway's relay
//! knows: the sandbox names a path below the relay's, and never sees the secret. An episode takes one request at a
//! time; a bounded number of others waits here.

use super::api::Api;
use super::canon::Keys;
use super::request::{Answer, Request};
use grpo_sandbox_protocol::Room;
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{Semaphore, mpsc, oneshot};

/// The prefix of session paths.
pub const SESSIONS: &str = "/sessions";
/// The most requests of one session that wait or are being answered. The gateway serves as many connections per port.
pub const MOST_REQUESTS: usize = 16;
/// The memory for request bodies of all sessions together, in largest files of the sandbox protocol (64 MiB).
const ROOM: usize = 8;

/// Every open session of this driver. Cloning is cheap.
#[derive(Clone)]
pub struct Sessions(Arc<Shared>);

struct Shared {
    /// By the secret's checksum, so that the time of a look-up reveals nothing about a secret.
    open: Mutex<HashMap<String, Door>>,
    room: Room,
}

/// The entry of one session for requests.
#[derive(Clone)]
pub(super) struct Door {
    /// The lease whose sandbox may send requests.
    pub lease: String,
    pub model: String,
    pub places: Arc<Semaphore>,
    pub asked: mpsc::Sender<Asked>,
}

/// The episode's end of a session; dropping it closes the session.
pub struct Session {
    sessions: Sessions,
    secret: String,
    asked: mpsc::Receiver<Asked>,
}

/// A request on its way to its episode. If the client is gone, the answer is still recorded.
pub struct Asked {
    pub wanted: Wanted,
    pub request: Arc<Request>,
    pub reply: oneshot::Sender<Reply>,
}

/// The result that a request asks for.
pub enum Wanted {
    /// An answer, through this API.
    Answer(Api, Keys),
    /// The number of its tokens.
    Count,
}

/// The reply to a request. A request without a reply came too late.
#[derive(Clone, Debug)]
pub enum Reply {
    Answer(Box<Answer>),
    Count(usize),
    /// The chat template cannot render it, for this reason.
    Unusable(String),
}

impl Default for Sessions {
    fn default() -> Self {
        Self(Arc::new(Shared {
            open: Mutex::default(),
            room: Room::of_files(ROOM),
        }))
    }
}

impl fmt::Debug for Sessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sessions({} open)", self.lock().len())
    }
}

impl Sessions {
    /// Opens a session for the sandbox of a lease. `model`: the model's name for clients.
    pub fn open(&self, lease: &str, model: &str) -> Session {
        let secret = hex::encode(rand::random::<[u8; 16]>());
        let (sender, asked) = mpsc::channel(MOST_REQUESTS);
        let door = Door {
            lease: lease.to_owned(),
            model: model.to_owned(),
            places: Arc::new(Semaphore::new(MOST_REQUESTS)),
            asked: sender,
        };
        self.lock().insert(checksum(&secret), door);
        Session {
            sessions: self.clone(),
            secret,
            asked,
        }
    }

    /// The session of a secret, if it belongs to this lease.
    pub(super) fn door(&self, secret: &str, lease: &str) -> Option<Door> {
        let door = self.lock().get(&checksum(secret)).cloned();
        door.filter(|door| door.lease == lease)
    }

    pub(super) fn room(&self) -> &Room {
        &self.0.room
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, Door>> {
        self.0.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Session {
    /// Its path on the driver's port.
    pub fn path(&self) -> String {
        format!("{SESSIONS}/{}", self.secret)
    }

    /// The next request.
    pub async fn next(&mut self) -> Asked {
        match self.asked.recv().await {
            Some(asked) => asked,
            // The map holds the sender until this value is dropped.
            None => std::future::pending().await,
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.sessions.lock().remove(&checksum(&self.secret));
    }
}

fn checksum(secret: &str) -> String {
    grpo_records::store::sha256_hex(secret.as_bytes())
}
