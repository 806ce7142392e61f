//! Sessions: interactive programs behind a terminal, such as a shell or a debugger.
//!
//! Each input has an id and is typed once: a repeated request gets the first reply, even if the first caller left
//! before the reply came.

mod terminal;

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use grpo_sandbox_protocol::{CloseRequest, DEFAULT_OUTPUT_BYTES, SessionInput, SessionReply, SessionRequest, Until};
use regex_lite::Regex;
use tokio::sync::{Notify, OnceCell, watch};
use tokio::time::Instant;

use crate::exec::{self, ExecError, Executor, Target};
use crate::output::Output;
use crate::reaper::End;
use terminal::Terminal;

pub use terminal::{TAKE_TERMINAL, take};

/// Maximum remembered sessions, ended ones included.
const MAX_SESSIONS: usize = 32;
/// Maximum remembered replies, and ids of inputs, so that no input is typed twice.
const REPLIES: usize = 16;
const INPUTS: usize = 1024;
/// Deadline to set up a session's environment.
const BEGIN_WITHIN: Duration = Duration::from_secs(60);
/// Longest wait for a reply.
const MAX_WAIT: Duration = Duration::from_secs(24 * 3600);
/// Default times: how long a prompt must stand, and how long a silence must last.
const PROMPT_STANDS: Duration = Duration::from_millis(20);
const SILENCE: Duration = Duration::from_millis(500);
/// After this silence the output of an ended program is complete.
const DRAIN_QUIET: Duration = Duration::from_millis(50);
/// Prompts are searched for in this many last bytes. A pattern has at most [`MAX_PROMPT_BYTES`].
const PROMPT_WITHIN: usize = 4 << 10;
const MAX_PROMPT_BYTES: usize = 1 << 10;

/// A session, from its first request on: later requests with its id wait for the same session.
type Begun = Arc<Beginning>;

#[derive(Default)]
struct Beginning {
    session: OnceCell<Arc<Session>>,
    /// It was closed, perhaps before its program began.
    closed: AtomicBool,
}

impl Beginning {
    fn get(&self) -> Option<&Arc<Session>> {
        self.session.get()
    }
}

/// The sandbox's sessions. Cloning is cheap.
#[derive(Clone)]
pub struct Sessions {
    executor: Executor,
    known: Arc<Mutex<HashMap<String, Begun>>>,
}

struct Session {
    id: String,
    terminal: Terminal,
    target: Target,
    /// The output since the last reply.
    pending: Mutex<Output>,
    /// Time of the last output, and whether the terminal is closed.
    printed: watch::Sender<(Instant, bool)>,
    ended: watch::Receiver<Option<(End, Instant)>>,
    /// The session was closed, so its output is no longer read.
    closed: Notify,
    /// Serializes inputs. Holds the replies, newest last; old entries have only the id.
    inputs: tokio::sync::Mutex<VecDeque<(String, Option<SessionReply>)>>,
}

impl Sessions {
    pub fn new(executor: Executor) -> Self {
        Self {
            executor,
            known: Arc::default(),
        }
    }

    /// Begins the session with this id, unless it exists.
    pub async fn begin(&self, request: SessionRequest) -> Result<(), ExecError> {
        exec::check(&request.id, &request.argv)?;
        let cell = self.cell(&request.id)?;
        let (sessions, id) = (self.clone(), request.id.clone());
        // In a separate task: if the caller goes away, the session is still completed.
        let begun = tokio::spawn({
            let cell = cell.clone();
            async move {
                let session = cell.session.get_or_try_init(|| sessions.start(request)).await?;
                match cell.closed.load(Ordering::SeqCst) {
                    true => {
                        session.kill().await;
                        Err(ExecError::Unknown(format!("session {}", session.id)))
                    }
                    false => Ok(()),
                }
            }
        });
        let begun = begun
            .await
            .unwrap_or_else(|error| Err(ExecError::Setup(format!("beginning session {id}: {error}"))));
        if begun.is_err() && cell.get().is_none() {
            let mut known = self.known();
            // Another request with this id may try to begin it now, and holds the cell too.
            let is_last = Arc::strong_count(&cell) == 2;
            if is_last && known.get(&id).is_some_and(|there| Arc::ptr_eq(there, &cell)) {
                known.remove(&id);
            }
        }
        begun
    }

    fn cell(&self, id: &str) -> Result<Begun, ExecError> {
        let mut known = self.known();
        if let Some(cell) = known.get(id) {
            return Ok(cell.clone());
        }
        if known.len() >= MAX_SESSIONS {
            let has_ended = |cell: &Begun| cell.get().is_some_and(|session| session.end().is_some());
            let ended = known.iter().find(|(_, cell)| has_ended(cell)).map(|(id, _)| id.clone());
            let forgotten = known.remove(&ended.ok_or(ExecError::TooMany)?);
            if let Some(session) = forgotten.as_ref().and_then(|cell| cell.get()) {
                session.closed.notify_one();
            }
        }
        Ok(known.entry(id.to_owned()).or_default().clone())
    }

    async fn start(&self, request: SessionRequest) -> Result<Arc<Session>, ExecError> {
        let failed = |error: &dyn std::fmt::Display| {
            ExecError::Setup(format!(
                "beginning session {} with {}: {error}",
                request.id, request.argv[0]
            ))
        };
        let place = self.executor.place()?;
        let (user, activate) = (request.user.as_deref(), request.activate.as_deref());
        let until = Instant::now() + BEGIN_WITHIN;
        let surroundings = self.executor.surroundings(user, activate, until);
        let mut surroundings = surroundings.await.map_err(|error| failed(&error))?;
        surroundings.folder = request.cwd.clone();
        surroundings.variables.insert("TERM".into(), "dumb".into());
        surroundings.variables.extend(request.env.clone());
        let mark = format!("session {}", request.id);
        let surroundings = surroundings.marked(&mark);
        let terminal = Terminal::open(surroundings.user.clone()).await;
        let terminal = terminal.map_err(|error| failed(&error))?;
        let mut arguments = vec![TAKE_TERMINAL.to_owned(), terminal.name.clone()];
        arguments.extend(request.argv.clone());
        let launcher = self.executor.launcher();
        let started = launcher.program(&mark, surroundings, "/proc/self/exe", arguments, until);
        let (target, end) = started.await.map_err(|error| failed(&error))?;
        let (tell, ended) = watch::channel(None);
        let session = Arc::new(Session {
            id: request.id.clone(),
            terminal,
            target,
            pending: Mutex::new(Output::new(DEFAULT_OUTPUT_BYTES as usize)),
            printed: watch::channel((Instant::now(), false)).0,
            ended,
            closed: Notify::new(),
            inputs: tokio::sync::Mutex::default(),
        });
        tokio::spawn({
            let session = session.clone();
            async move {
                tokio::select! {
                    () = session.keep_reading() => {}
                    () = session.closed.notified() => {}
                }
            }
        });
        tokio::spawn(async move {
            let end = end.await.unwrap_or(End::Killed(9));
            tell.send_replace(Some((end, Instant::now())));
            drop(place);
        });
        Ok(session)
    }

    /// Types the input and returns the reply.
    pub async fn input(&self, input: SessionInput) -> Result<SessionReply, ExecError> {
        let session = self.known().get(&input.session).and_then(|cell| cell.get().cloned());
        let session = session.ok_or_else(|| ExecError::Unknown(format!("session {}", input.session)))?;
        let prompt = input.prompt.as_deref().map(prompt).transpose()?;
        // In a separate task: a repeated request gets the reply, too.
        let reply = tokio::spawn(async move { session.input(&input, prompt).await });
        reply
            .await
            .unwrap_or_else(|error| Err(ExecError::Setup(format!("waiting for the reply: {error}"))))
    }

    /// Ends the session and all its descendants.
    pub async fn close(&self, request: &CloseRequest) {
        let Some(cell) = self.known().remove(&request.id) else {
            return;
        };
        // Either this sees the session, or the request that begins it sees the mark.
        cell.closed.store(true, Ordering::SeqCst);
        if let Some(session) = cell.get() {
            session.kill().await;
        }
    }

    /// Number of busy sessions: an input is not answered yet, or a shell runs a program.
    pub fn busy(&self) -> u32 {
        let known = self.known();
        let sessions = known.values().filter_map(|cell| cell.get());
        sessions.filter(|session| session.is_at_work()).count() as u32
    }

    fn known(&self) -> MutexGuard<'_, HashMap<String, Begun>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The pattern, anchored at the end of the output.
fn prompt(pattern: &str) -> Result<Regex, ExecError> {
    if pattern.len() > MAX_PROMPT_BYTES {
        return Err(ExecError::BadPrompt(format!(
            "it has more than {MAX_PROMPT_BYTES} bytes"
        )));
    }
    Regex::new(&format!("(?:{pattern})\\z")).map_err(|error| ExecError::BadPrompt(error.to_string()))
}

impl Session {
    /// Kills the program and all that it started.
    async fn kill(&self) {
        exec::kill_all_of(&self.target).await;
        self.closed.notify_one();
    }

    async fn keep_reading(&self) {
        let mut buffer = vec![0; 16 << 10];
        loop {
            let count = self.terminal.read(&mut buffer).await;
            self.pending().push(&buffer[..count]);
            self.printed.send_replace((Instant::now(), count == 0));
            if count == 0 {
                return;
            }
        }
    }

    async fn input(&self, input: &SessionInput, prompt: Option<Regex>) -> Result<SessionReply, ExecError> {
        let mut inputs = self.inputs.lock().await;
        if let Some((_, reply)) = inputs.iter().find(|(id, _)| *id == input.id) {
            let forgotten = || ExecError::Unknown(format!("reply to input {} of session {}", input.id, self.id));
            return reply.clone().ok_or_else(forgotten);
        }
        let until = self.type_and_wait(input, prompt.as_ref()).await;
        let (output, omitted_bytes) = {
            let empty = Output::new(DEFAULT_OUTPUT_BYTES as usize);
            std::mem::replace(&mut *self.pending(), empty).text()
        };
        let (exit_code, signal) = match self.end() {
            Some((End::Exited(code), _)) => (Some(code), None),
            Some((End::Killed(signal), _)) => (None, Some(signal)),
            None => (None, None),
        };
        let reply = SessionReply {
            id: input.id.clone(),
            output,
            omitted_bytes,
            until,
            busy: self.runs_another(),
            exit_code,
            signal,
        };
        inputs.push_back((input.id.clone(), Some(reply.clone())));
        if let Some(old) = inputs.len().checked_sub(REPLIES + 1) {
            inputs[old].1 = None;
        }
        if inputs.len() > INPUTS {
            inputs.pop_front();
        }
        Ok(reply)
    }

    async fn type_and_wait(&self, input: &SessionInput, prompt: Option<&Regex>) -> Until {
        let began = Instant::now();
        let deadline = began + Duration::from_millis(input.timeout_millis).min(MAX_WAIT);
        let before = self.pending().written();
        let typed = self.terminal.write_all(input.text.as_bytes());
        // A program that does not read has the same deadline as one that does not print. An ended program is reported
        // below.
        if self.end().is_none() && tokio::time::timeout_at(deadline, typed).await.is_err() {
            return Until::Timeout;
        }
        // A prompt that was already there does not count; the program must print after the input.
        let prompt_after = if input.text.is_empty() { 0 } else { before + 1 };
        let default = if prompt.is_some() { PROMPT_STANDS } else { SILENCE };
        let still = input.idle_millis.map_or(default, Duration::from_millis).min(MAX_WAIT);
        self.waits(prompt, prompt_after, still, deadline).await
    }

    async fn waits(&self, prompt: Option<&Regex>, prompt_after: u64, still: Duration, deadline: Instant) -> Until {
        let began = Instant::now();
        let (mut printed, mut ended) = (self.printed.subscribe(), self.ended.clone());
        loop {
            let (last, closed) = *printed.borrow_and_update();
            let end = *ended.borrow_and_update();
            let asks = prompt.is_none_or(|prompt| {
                let pending = self.pending();
                pending.written() >= prompt_after && prompt.is_match(&pending.end(PROMPT_WITHIN))
            });
            let (at, until) = match end {
                Some(_) if closed => return Until::Ended,
                Some((_, at)) => (last.max(at) + DRAIN_QUIET, Until::Ended),
                None if asks && prompt.is_some() => (last + still, Until::Prompt),
                None if asks => (last.max(began) + still, Until::Idle),
                None => (deadline, Until::Timeout),
            };
            tokio::select! {
                () = tokio::time::sleep_until(at.min(deadline)) => {
                    return if at <= deadline { until } else { Until::Timeout };
                }
                Ok(()) = printed.changed() => {}
                Ok(()) = ended.changed() => {}
            }
        }
    }

    /// Whether a Unix process group other than the program's own has the terminal.
    fn runs_another(&self) -> bool {
        self.end().is_none() && self.terminal.foreground() != Some(self.target.pid)
    }

    fn is_at_work(&self) -> bool {
        self.inputs.try_lock().is_err() || self.runs_another()
    }

    fn end(&self) -> Option<(End, Instant)> {
        *self.ended.borrow()
    }

    fn pending(&self) -> MutexGuard<'_, Output> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
