//! `kubectl grpo wait`: ends when a run has ended, with its result as the exit status. It watches, and does not poll.
//!
//! [`follow`] is the watch, which [`crate::status`] shares: states and failures go to an [`Observer`].

use crate::arguments::plan::Wait;
use crate::cluster::Cluster;
use crate::error::{Asking, Error, watch_refused};
use futures::{Stream, StreamExt};
use grpo_crds::GrpoRun;
use grpo_crds::grpo_run::Phase;
use grpo_records::show::harmless;
use kube::ResourceExt;
use kube::runtime::watcher::Event;
use kube::runtime::{WatchStreamExt, watcher};
use std::io::{IsTerminal, Write};
use std::time::Duration;
use tokio::time::Instant;

/// After this many watch errors without a state in between, the API server is asked for the run. The watch of a quiet
/// run, which a load balancer cuts each minute, also ends that way.
const RECONNECTS: u32 = 12;
/// The number of requests before the wait is given up, and the pause between two: five minutes in all.
const QUESTIONS: u32 = 11;
const PAUSE: Duration = Duration::from_secs(30);
/// Moves to the beginning of the line and clears it.
const SAME_LINE: &str = "\r\u{1b}[K";

/// Gets the states of a watched run.
pub trait Observer {
    /// A state of the run. An error ends the watch.
    fn state(&mut self, run: &GrpoRun) -> Result<(), Error>;
    /// The watch failed, and is begun again: the last state may be old.
    fn failure(&mut self, why: &str);
}

pub async fn wait(cluster: &Cluster, wanted: &Wait) -> Result<(), Error> {
    let name = wanted.run.as_str();
    // If the run does not exist, the error names the existing ones.
    let asked_for = cluster.run(name).await?;
    let mut progress = ProgressLine::on(std::io::stderr());
    let ended = follow(cluster, &asked_for, wanted.timeout, &mut progress).await;
    progress.end();
    let run = ended.and_then(outcome)?;
    Ok(writeln!(anstream::stdout(), "GrpoRun {name} succeeded{}", done(&run))?)
}

/// The run in its last state, once it has ended. It begins a broken watch again.
pub async fn follow(
    cluster: &Cluster,
    asked_for: &GrpoRun,
    timeout: Option<Duration>,
    observer: &mut impl Observer,
) -> Result<GrpoRun, Error> {
    let name = asked_for.name_any();
    let only = watcher::Config::default().fields(&format!("metadata.name={name}"));
    let begun = Instant::now();
    let left = || timeout.map(|timeout| timeout.saturating_sub(begun.elapsed()));
    loop {
        let events = watcher(cluster.runs(), only.clone()).default_backoff();
        let lost = match until_ended(events, &name, &cluster.namespace, left(), observer).await {
            Err(lost @ Error::WatchLost { .. }) => lost,
            // Part of the timeout had passed when the watch was restarted, so report the whole.
            Err(Error::StillRuns {
                run,
                timeout: rest,
                state,
            }) => {
                let timeout = timeout.unwrap_or(rest);
                return Err(Error::StillRuns { run, timeout, state });
            }
            ended => return ended,
        };
        let asked = tokio::time::timeout(left().unwrap_or(Duration::MAX), answer(cluster, &name)).await;
        match asked.ok().flatten() {
            Some(Some(run)) if run.uid() == asked_for.uid() => {}
            Some(_) => return Err(Error::RunDeleted { run: name }),
            None => return Err(lost),
        }
    }
}

/// The run, or `Some(None)` if it does not exist, once the API server answers again.
async fn answer(cluster: &Cluster, name: &str) -> Option<Option<GrpoRun>> {
    for question in 0..QUESTIONS {
        if question > 0 {
            tokio::time::sleep(PAUSE).await;
        }
        match cluster.run(name).await {
            Ok(run) => return Some(Some(run)),
            Err(Error::NoRun { .. }) => return Some(None),
            Err(_) => {}
        }
    }
    None
}

/// The run once it has ended. The observer gets each of its states.
pub async fn until_ended(
    events: impl Stream<Item = Result<Event<GrpoRun>, watcher::Error>>,
    name: &str,
    namespace: &str,
    timeout: Option<Duration>,
    observer: &mut impl Observer,
) -> Result<GrpoRun, Error> {
    let mut last = None;
    let watched = watched(events, name, namespace, observer, &mut last);
    let ended = match timeout {
        None => Some(watched.await),
        Some(timeout) => tokio::time::timeout(timeout, watched).await.ok(),
    };
    ended.unwrap_or_else(|| {
        Err(Error::StillRuns {
            run: name.to_owned(),
            timeout: timeout.unwrap_or_default(),
            state: last.as_ref().map_or_else(|| "has not been seen".to_owned(), state),
        })
    })
}

/// The run in its last state; `last` has the states before it.
async fn watched(
    events: impl Stream<Item = Result<Event<GrpoRun>, watcher::Error>>,
    name: &str,
    namespace: &str,
    observer: &mut impl Observer,
    last: &mut Option<GrpoRun>,
) -> Result<GrpoRun, Error> {
    let mut events = std::pin::pin!(events);
    let (mut failures, mut listed, mut uid) = (0, false, None);
    let deleted = || Error::RunDeleted { run: name.to_owned() };
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Apply(run) | Event::InitApply(run)) => {
                (failures, listed) = (0, true);
                // A new run with the same name is not the requested run.
                if *uid.get_or_insert_with(|| run.uid()) != run.uid() {
                    return Err(deleted());
                }
                observer.state(&run)?;
                if matches!(phase(&run), Some(Phase::Succeeded | Phase::Failed)) {
                    return Ok(run);
                }
                *last = Some(run);
            }
            Ok(Event::Delete(_)) => return Err(deleted()),
            Ok(Event::Init) => listed = false,
            Ok(Event::InitDone) if !listed => return Err(deleted()),
            Ok(Event::InitDone) => failures = 0,
            Err(error) => {
                failures += 1;
                let why = error.to_string();
                // Some load balancers cut a quiet watch each minute, and it begins anew at once.
                let is_cut = matches!(error, watcher::Error::WatchFailed(_));
                if let Some(refusal) = watch_refused(error) {
                    let asking = Asking {
                        verb: "watch",
                        resource: "grporuns.grpo.dev",
                        namespace: Some(namespace),
                        name,
                    };
                    return Err(asking.failed(refusal));
                }
                if failures > RECONNECTS {
                    return Err(lost(name, why));
                }
                if !is_cut {
                    observer.failure(&why);
                }
            }
        }
    }
    Err(lost(name, "the watch ended".to_owned()))
}

fn lost(name: &str, why: String) -> Error {
    Error::WatchLost {
        run: name.to_owned(),
        tries: RECONNECTS,
        why,
    }
}

fn outcome(run: GrpoRun) -> Result<GrpoRun, Error> {
    if phase(&run) == Some(Phase::Succeeded) {
        return Ok(run);
    }
    let status = run.status.clone().unwrap_or_default();
    let failed = status.conditions.iter().find(|condition| condition.type_ == "Failed");
    let reason = failed.map_or_else(|| "Failed".to_owned(), |failed| failed.reason.clone());
    let message = failed.map(|failed| failed.message.clone()).or(status.message);
    Err(Error::RunFailed {
        run: run.name_any(),
        namespace: run.namespace().unwrap_or_default(),
        reason,
        message: harmless(&message.unwrap_or_default()).into_owned(),
    })
}

fn phase(run: &GrpoRun) -> Option<Phase> {
    run.status.as_ref().and_then(|status| status.phase)
}

/// `Running, iteration 3/12, 41/64 episodes`, or the cause of its wait.
fn state(run: &GrpoRun) -> String {
    let status = run.status.clone().unwrap_or_default();
    let phase = status.phase.map_or_else(
        || "not seen by the operator yet".to_owned(),
        |phase| format!("{phase:?}"),
    );
    let progress = status
        .progress
        .unwrap_or_default()
        .displayed()
        .display
        .unwrap_or_default();
    let iteration = progress.iteration.filter(|_| run.spec.mode.needs_trainer());
    let mut parts = vec![phase];
    match status.phase {
        Some(Phase::Running) => {
            parts.extend(iteration.map(|iteration| format!("iteration {iteration}")));
            parts.extend(progress.episodes.map(|episodes| format!("{episodes} episodes")));
        }
        _ => parts.extend(status.message),
    }
    let words = parts.join(", ");
    harmless(words.lines().next().unwrap_or_default()).into_owned()
}

/// ` after iteration 12/12`, if it trained.
fn done(run: &GrpoRun) -> String {
    let progress = run.status.as_ref().and_then(|status| status.progress.clone());
    let display = progress.and_then(|progress| progress.displayed().display);
    let iteration = display.and_then(|display| display.iteration);
    let iteration = iteration.filter(|_| run.spec.mode.needs_trainer());
    iteration.map_or_else(String::new, |iteration| format!(" after iteration {iteration}"))
}

/// Writes states to standard error: on a terminal in one line, otherwise one line per change.
struct ProgressLine<W> {
    out: W,
    terminal: bool,
    shown: String,
}

impl ProgressLine<std::io::Stderr> {
    fn on(out: std::io::Stderr) -> Self {
        Self {
            terminal: out.is_terminal(),
            out,
            shown: String::new(),
        }
    }
}

impl<W: Write> Observer for ProgressLine<W> {
    /// An unwritable standard error does not end the wait.
    fn state(&mut self, run: &GrpoRun) -> Result<(), Error> {
        let text = crate::text::cut(&state(run), 100);
        if text == self.shown {
            return Ok(());
        }
        let _ = match self.terminal {
            true => write!(self.out, "{SAME_LINE}{text}"),
            false => writeln!(self.out, "{text}"),
        };
        let _ = self.out.flush();
        self.shown = text;
        Ok(())
    }

    /// A script waits for the end, and the error at the end has the cause.
    fn failure(&mut self, _: &str) {}
}

impl<W: Write> ProgressLine<W> {
    /// Leaves the terminal's line.
    fn end(&mut self) {
        if self.terminal && !self.shown.is_empty() {
            let _ = writeln!(self.out);
        }
    }
}

#[cfg(test)]
mod tests;
