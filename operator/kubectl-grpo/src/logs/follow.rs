//! Reads the logs of all parts at once, finds parts that start later, and prints their lines in one order.

use super::interleave::{Interleaver, SourceId};
use super::parts::{Part, Run, selector};
use super::stream;
use crate::arguments::Logs;
use crate::cluster::Cluster;
use crate::error::{Asking, Error, refused, watch_refused};
use crate::records::listing_pods;
use crate::status::is_over;
use anstyle::{AnsiColor, Style};
use futures::StreamExt;
use grpo_records::show::harmless;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams, LogParams};
use kube::runtime::{WatchStreamExt, watcher};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// The time that a line waits for older lines of other parts.
const PATIENCE: Duration = Duration::from_millis(700);
/// The pause before a broken connection is resumed.
const PAUSE: Duration = Duration::from_secs(1);
/// How often a followed run without open logs is checked.
const LOOK_AGAIN: Duration = Duration::from_secs(2);
/// Lines between readers and printer: a fast log waits for a slow terminal.
const ON_THEIR_WAY: usize = 4096;
/// Wide enough for most names; longer ones push their line to the right.
const NAME: usize = 10;

const COLOURS: [AnsiColor; 6] = [
    AnsiColor::Cyan,
    AnsiColor::Green,
    AnsiColor::Yellow,
    AnsiColor::Magenta,
    AnsiColor::Blue,
    AnsiColor::Red,
];

enum News {
    Line(SourceId, stream::Stamped),
    Closed(SourceId, End),
}

/// How the reading of a log ended.
enum End {
    Complete,
    /// All logs of the namespace are refused.
    Refused(Error),
    /// The rest of this log cannot be read: its node does not answer.
    Unread(String),
}

pub async fn logs(cluster: &Cluster, wanted: &Logs) -> Result<(), Error> {
    let run = cluster.run(&wanted.run).await?;
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    let found = pods
        .list(&ListParams::default().labels(&selector()))
        .await
        .map_err(|error| listing_pods(cluster).failed(error))?;
    let (sender, news) = mpsc::channel(ON_THEIR_WAY);
    let mut readers = Readers {
        pods,
        namespace: cluster.namespace.clone(),
        run: Run::of(&run, &wanted.part),
        wanted,
        sender,
        begun: BTreeSet::new(),
        names: BTreeMap::new(),
        lines: Interleaver::new(wanted.follow.then_some(PATIENCE)),
        open: 0,
        unread: 0,
    };
    for pod in &found.items {
        readers.begin(pod);
    }
    if readers.open == 0 && (!wanted.follow || is_over(&run)) {
        return Err(match is_over(&run) {
            true => Error::PodsGone {
                run: wanted.run.clone(),
            },
            false => Error::NoPods {
                run: wanted.run.clone(),
            },
        });
    }
    print(cluster, readers, news).await
}

struct Readers<'a> {
    pods: Api<Pod>,
    namespace: String,
    run: Run,
    wanted: &'a Logs,
    sender: mpsc::Sender<News>,
    begun: BTreeSet<Part>,
    names: BTreeMap<SourceId, String>,
    lines: Interleaver,
    open: usize,
    /// Logs that could not be read to their end.
    unread: usize,
}

impl Readers<'_> {
    /// Begins to read every unread log of the pod.
    fn begin(&mut self, pod: &Pod) {
        for part in self.run.parts(pod) {
            if self.begun.insert(part.clone()) {
                let id = self.begun.len() as SourceId;
                self.names.insert(id, part.name.clone());
                self.lines.open(id);
                self.open += 1;
                let reading = read(
                    self.pods.clone(),
                    self.namespace.clone(),
                    part,
                    parameters(self.wanted),
                    id,
                    self.sender.clone(),
                );
                tokio::spawn(reading);
            }
        }
    }

    /// Takes the end of a log, which is an error if it ends all of them.
    fn closed(&mut self, id: SourceId, end: End) -> Result<(), Error> {
        self.lines.close(id);
        self.open -= 1;
        match end {
            End::Complete => Ok(()),
            End::Refused(error) => Err(error),
            End::Unread(why) => {
                self.unread += 1;
                let name = self.names.get(&id).map_or("", String::as_str);
                eprintln!("{name}: its log cannot be read: {}", harmless(&why));
                Ok(())
            }
        }
    }

    /// The result after the last line.
    fn ended(&self) -> Result<(), Error> {
        match self.unread {
            0 => Ok(()),
            unread => Err(Error::LogsUnread {
                unread,
                all: self.begun.len(),
            }),
        }
    }
}

fn parameters(wanted: &Logs) -> LogParams {
    LogParams {
        follow: wanted.follow,
        timestamps: true,
        since_seconds: wanted.since.map(|since| since.as_secs().max(1)),
        tail_lines: wanted.tail.map(i64::from),
        ..LogParams::default()
    }
}

/// Reads one log to its end. While following, a broken connection is resumed where it broke.
async fn read(
    pods: Api<Pod>,
    namespace: String,
    part: Part,
    mut parameters: LogParams,
    id: SourceId,
    sender: mpsc::Sender<News>,
) {
    parameters.container = Some(part.container.clone());
    let mut last: Option<Timestamp> = None;
    let asking = Asking {
        verb: "get",
        resource: "pods/log",
        namespace: Some(&namespace),
        name: &part.pod,
    };
    let end = loop {
        match pods.log_stream(&part.pod, &parameters).await {
            Ok(log) => {
                let mut lines = std::pin::pin!(stream::lines(log, last));
                let broken = loop {
                    match lines.next().await {
                        Some(Ok(line)) => {
                            last = Some(line.at);
                            if sender.send(News::Line(id, line)).await.is_err() {
                                return;
                            }
                        }
                        Some(Err(error)) => break Some(error),
                        None => break None,
                    }
                };
                match broken {
                    None => break End::Complete,
                    Some(error) if !parameters.follow => break End::Unread(error.to_string()),
                    Some(_) => {}
                }
            }
            Err(error) => {
                if let Some(end) = end_after(error, parameters.follow, asking) {
                    break end;
                }
            }
        }
        tokio::time::sleep(PAUSE).await;
        if last.is_some() {
            parameters.since_seconds = None;
            parameters.tail_lines = None;
            parameters.since_time = last;
        }
    };
    // The receiver is gone only at the end of the program.
    let _ = sender.send(News::Closed(id, end)).await;
}

/// The end of a log whose request failed; `None` if the request is repeated.
fn end_after(error: kube::Error, follow: bool, asking: Asking<'_>) -> Option<End> {
    match error {
        // The container ended between the listing and this request.
        error if refused(&error, 404) || refused(&error, 400) => Some(End::Complete),
        error if refused(&error, 403) => Some(End::Refused(asking.failed(error))),
        error if !follow => Some(End::Unread(asking.failed(error).to_string())),
        _ => None,
    }
}

/// Prints until all logs are read; while following, until the run has ended.
async fn print(cluster: &Cluster, mut readers: Readers<'_>, mut news: mpsc::Receiver<News>) -> Result<(), Error> {
    let follow = readers.wanted.follow;
    let mut out = anstream::stdout();
    let later = watcher(readers.pods.clone(), watcher::Config::default().labels(&selector())).default_backoff();
    let mut later = std::pin::pin!(later);
    loop {
        // Without open logs, the run may have ended without a further event.
        let turn = match readers.open {
            0 => Some(Instant::now() + LOOK_AGAIN),
            _ => readers.lines.next_turn(),
        };
        let patience = async {
            match turn {
                Some(at) => tokio::time::sleep_until(at.into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            Some(one) = news.recv() => match one {
                News::Line(id, line) => readers.lines.push(id, line.at, line.text, Instant::now()),
                News::Closed(id, end) => readers.closed(id, end)?,
            },
            Some(event) = later.next(), if follow => match event {
                Ok(watcher::Event::Apply(pod) | watcher::Event::InitApply(pod)) => readers.begin(&pod),
                Ok(_) => {}
                Err(error) => {
                    if let Some(refusal) = watch_refused(error) {
                        return Err(Asking { verb: "watch", ..listing_pods(cluster) }.failed(refusal));
                    }
                }
            },
            () = patience => {}
        }
        for line in readers.lines.ready(Instant::now()) {
            let name = readers.names.get(&line.source).map_or("", String::as_str);
            print_line(&mut out, name, line.source, &line.text)?;
        }
        if readers.open == 0
            && readers.lines.is_idle()
            && (!follow || is_over(&cluster.run(&readers.wanted.run).await?))
        {
            return readers.ended();
        }
    }
}

/// A line after the name of its part, with color if the output is a terminal.
fn print_line(out: &mut impl Write, name: &str, source: SourceId, text: &str) -> Result<(), Error> {
    let colour = COLOURS[(source as usize) % COLOURS.len()];
    let style = Style::new().fg_color(Some(colour.into()));
    writeln!(out, "{style}{name:<NAME$}{style:#} {}", harmless(text))?;
    Ok(())
}

#[cfg(test)]
mod tests;
