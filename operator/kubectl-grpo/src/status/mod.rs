//! `kubectl grpo status`: one run as a screen, once or continuously, or all runs as a table.

mod overview;
mod screen;
mod waits;

pub use overview::overview;
pub use screen::screen;

use crate::arguments::Status;
use crate::cluster::Cluster;
use crate::error::{Asking, Error, watch_refused};
use futures::StreamExt;
use grpo_crds::GrpoRun;
use grpo_crds::grpo_run::Phase;
use jiff::Timestamp;
use kube::runtime::{WatchStreamExt, watcher};
use std::io::{IsTerminal, Write};

/// Moves the cursor to the upper left corner and clears the screen.
const CLEAR: &str = "\u{1b}[H\u{1b}[2J";

pub async fn status(cluster: &Cluster, wanted: &Status) -> Result<(), Error> {
    let mut out = anstream::stdout();
    match &wanted.run {
        None => {
            let runs = cluster.list(wanted.all_namespaces).await?;
            if runs.is_empty() {
                let place = match wanted.all_namespaces {
                    true => "any namespace".to_owned(),
                    false => format!("namespace {}", cluster.namespace),
                };
                eprintln!("there is no GrpoRun (grpo.dev) in {place}");
                return Ok(());
            }
            out.write_all(overview(&runs, wanted.all_namespaces, Timestamp::now()).as_bytes())?;
        }
        Some(name) => {
            let run = cluster.run(name).await?;
            match wanted.watch {
                false => out.write_all(screen(&run, Timestamp::now()).as_bytes())?,
                true => watch(cluster, name, &mut out).await?,
            }
        }
    }
    Ok(())
}

/// Shows the run after every change, until it has ended or is deleted.
async fn watch(cluster: &Cluster, name: &str, out: &mut impl Write) -> Result<(), Error> {
    let terminal = std::io::stdout().is_terminal();
    let only = watcher::Config::default().fields(&format!("metadata.name={name}"));
    let mut events = std::pin::pin!(watcher(cluster.runs(), only).default_backoff());
    let asking = Asking {
        verb: "watch",
        resource: "grporuns.grpo.dev",
        namespace: Some(&cluster.namespace),
        name,
    };
    let mut shown = String::new();
    while let Some(event) = events.next().await {
        match event {
            Ok(watcher::Event::Apply(run) | watcher::Event::InitApply(run)) => {
                let text = screen(&run, Timestamp::now());
                if text != shown {
                    let before = if terminal { CLEAR } else { "" };
                    write!(out, "{before}{text}")?;
                    if !terminal {
                        writeln!(out, "---")?;
                    }
                    out.flush()?;
                    shown = text;
                }
                if is_over(&run) {
                    return Ok(());
                }
            }
            Ok(watcher::Event::Delete(_)) => {
                writeln!(out, "GrpoRun {name} was deleted")?;
                return Ok(());
            }
            Ok(watcher::Event::Init | watcher::Event::InitDone) => {}
            Err(error) => {
                if let Some(refusal) = watch_refused(error) {
                    return Err(asking.failed(refusal));
                }
            }
        }
    }
    Ok(())
}

/// Whether the run will not change any more.
pub fn is_over(run: &GrpoRun) -> bool {
    let phase = run.status.as_ref().and_then(|status| status.phase);
    matches!(phase, Some(Phase::Succeeded | Phase::Failed))
}
