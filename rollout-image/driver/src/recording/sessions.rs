//! The open sessions, and the way from their HTTP requests to their episodes.
//!
//! A session belongs to one live episode. Its path holds a secret of 128 random bits, which only the gateway's relay
//! knows: the sandbox names a path below the relay's, and never sees the secret. An episode takes one request at a
//! time; a bounded number of others waits here.
//!
//! An agent outlives its driver, and its relay leads to the path of the last one until the next driver has taken the
//! episode up. So only a session whose episode ended ([`Session::over`]) is over. A request of any other unknown
//! session waits here, at most 4096 for 90 seconds each: it uses up one of its client's few attempts, not all of them.

use super::api::Api;
use super::canon::Keys;
use super::request::{Answer, Request};
use grpo_sandbox_protocol::Room;
use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc, oneshot, watch};

/// The prefix of session paths.
pub const SESSIONS: &str = "/sessions";
/// The most requests of one session that wait or are being answered. The gateway serves as many connections per port.
pub const MOST_REQUESTS: usize = 16;
/// The memory for request bodies of all sessions together, in largest files of the sandbox protocol (64 MiB).
const ROOM: usize = 8;
/// How long a request waits for its session: clients give up a request without headers after two minutes.
pub(super) const HOLD: Duration = Duration::from_secs(90);
/// The most requests that wait for a session.
const MOST_HELD: usize = 4096;
/// The most ended sessions that are remembered. Their agents are killed, so few ask again.
const MOST_OVER: usize = 4096;

/// Every open session of this driver. Cloning is cheap.
#[derive(Clone)]
pub struct Sessions(Arc<Shared>);

struct Shared {
    known: Mutex<Known>,
    /// Told of every change of `known`.
    changed: watch::Sender<()>,
    held: Semaphore,
    room: Room,
}

/// Sessions by the checksum of their secret, so that the time of a look-up reveals nothing about a secret.
#[derive(Default)]
struct Known {
    open: HashMap<String, Door>,
    /// The leases whose relay leads to an open session.
    led: HashSet<String>,
    over: HashSet<String>,
    /// Those of `over`, oldest first.
    ended: VecDeque<String>,
}

/// What becomes of a request that no session answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// Its episode has ended.
    Over,
    /// Its driver is away, or has just taken the episode up again: the client is to repeat the request.
    Away,
}

/// The entry of one session for requests.
#[derive(Clone)]
pub(super) struct Door {
    /// The lease whose sandbox may send requests.
    pub lease: String,
    pub model: String,
    pub places: Arc<Semaphore>,
    /// One body at a time: otherwise two sandboxes with slow bodies hold the memory of all.
    pub body: Arc<Semaphore>,
    pub asked: mpsc::Sender<Asked>,
}

/// The episode's end of a session. Dropping it closes the session, and says nothing about the end of the episode: an
/// error of the driver drops it too, and the next driver continues the episode.
pub struct Session {
    sessions: Sessions,
    secret: String,
    lease: String,
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

/// The reply to a request. A request without a reply is over only if its session is.
#[derive(Clone, Debug)]
pub enum Reply {
    Answer(Box<Answer>),
    Count(usize),
    /// The chat template cannot render it, for this reason.
    Unusable(String),
    /// It was answered too often: its client is to end.
    Over,
}

impl Default for Sessions {
    fn default() -> Self {
        Self(Arc::new(Shared {
            known: Mutex::default(),
            changed: watch::channel(()).0,
            held: Semaphore::new(MOST_HELD),
            room: Room::of_files(ROOM),
        }))
    }
}

impl fmt::Debug for Sessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sessions({} open)", self.lock().open.len())
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
            body: Arc::new(Semaphore::new(1)),
            asked: sender,
        };
        self.lock().open.insert(checksum(&secret), door);
        Session {
            sessions: self.clone(),
            secret,
            lease: lease.to_owned(),
            asked,
        }
    }

    /// The session of a secret, if it belongs to this lease.
    pub(super) fn door(&self, secret: &str, lease: &str) -> Option<Door> {
        let door = self.lock().open.get(&checksum(secret)).cloned();
        door.filter(|door| door.lease == lease)
    }

    /// Waits until it is known what becomes of a request that no session answers.
    pub(super) async fn fate(&self, secret: &str, lease: &str) -> Fate {
        let Ok(_place) = self.0.held.try_acquire() else {
            return Fate::Away;
        };
        let secret = checksum(secret);
        let mut changed = self.0.changed.subscribe();
        let known = async {
            loop {
                let fate = self.lock().fate(&secret, lease);
                if let Some(fate) = fate {
                    return fate;
                }
                // The sender lives as long as `self`.
                if changed.changed().await.is_err() {
                    return Fate::Away;
                }
            }
        };
        tokio::time::timeout(HOLD, known).await.unwrap_or(Fate::Away)
    }

    pub(super) fn room(&self) -> &Room {
        &self.0.room
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Known> {
        self.0.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    /// `secret`: its checksum. `None` while only time can tell.
    fn fate(&self, secret: &str, lease: &str) -> Option<Fate> {
        if self.over.contains(secret) {
            return Some(Fate::Over);
        }
        match self.open.get(secret) {
            // Its reply was dropped, and its session is about to be.
            Some(door) if door.lease == lease => None,
            // The session of another sandbox.
            Some(_) => Some(Fate::Over),
            None => self.led.contains(lease).then_some(Fate::Away),
        }
    }

    fn end(&mut self, secret: String) {
        if self.ended.len() >= MOST_OVER
            && let Some(oldest) = self.ended.pop_front()
        {
            self.over.remove(&oldest);
        }
        self.over.insert(secret.clone());
        self.ended.push_back(secret);
    }
}

impl Session {
    /// Its path on the driver's port.
    pub fn path(&self) -> String {
        format!("{SESSIONS}/{}", self.secret)
    }

    /// The lease's relay leads here now: requests that wait under the path of an earlier driver are to be repeated.
    pub fn led(&self) {
        self.sessions.lock().led.insert(self.lease.clone());
        self.sessions.0.changed.send_replace(());
    }

    /// Closes the session because its episode has ended.
    pub fn over(self) {
        self.sessions.lock().end(checksum(&self.secret));
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
        {
            let mut known = self.sessions.lock();
            known.open.remove(&checksum(&self.secret));
            known.led.remove(&self.lease);
        }
        self.sessions.0.changed.send_replace(());
    }
}

fn checksum(secret: &str) -> String {
    grpo_records::store::sha256_hex(secret.as_bytes())
}

#[cfg(test)]
mod tests;
