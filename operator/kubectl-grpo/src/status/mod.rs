//! `kubectl grpo status`: one run as a screen, once or continuously, or all runs as a table.

mod overview;
mod screen;
mod waits;

pub use overview::overview;
pub use screen::screen;

use crate::arguments::Status;
use crate::cluster::Cluster;
use crate::error::Error;
use crate::wait::{self, Observer};
use grpo_crds::GrpoRun;
use grpo_crds::grpo_run::Phase;
use grpo_records::show::harmless;
use jiff::Timestamp;
use kube::ResourceExt;
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
                true => watch(cluster, &run, &mut out).await?,
            }
        }
    }
    Ok(())
}

/// Shows the run after every change, until it has ended or is deleted.
async fn watch(cluster: &Cluster, run: &GrpoRun, out: &mut impl Write) -> Result<(), Error> {
    let mut watched = WatchedScreen {
        name: run.name_any(),
        terminal: std::io::stdout().is_terminal(),
        out,
        err: std::io::stderr(),
        shown: String::new(),
        told: String::new(),
    };
    let ended = wait::follow(cluster, run, None, &mut watched).await;
    match ended {
        Err(Error::RunDeleted { run }) => Ok(writeln!(watched.out, "GrpoRun {run} was deleted")?),
        ended => ended.map(drop),
    }
}

/// The screen of a run that is watched, and the failures of the watch.
struct WatchedScreen<'a, O, E> {
    name: String,
    terminal: bool,
    out: &'a mut O,
    err: E,
    shown: String,
    /// The last printed failure since the last state.
    told: String,
}

impl<O: Write, E: Write> Observer for WatchedScreen<'_, O, E> {
    fn state(&mut self, run: &GrpoRun) -> Result<(), Error> {
        let text = screen(run, Timestamp::now());
        // On a terminal, the screen is drawn again to replace the line about a failure.
        if text != self.shown || (self.terminal && !self.told.is_empty()) {
            let before = if self.terminal { CLEAR } else { "" };
            write!(self.out, "{before}{text}")?;
            if !self.terminal {
                writeln!(self.out, "---")?;
            }
            self.out.flush()?;
            self.shown = text;
        }
        self.told.clear();
        Ok(())
    }

    /// Says that the screen may be old, once for each cause. An unwritable standard error does not end the watch.
    fn failure(&mut self, why: &str) {
        if self.told != why {
            why.clone_into(&mut self.told);
            let (name, why) = (&self.name, harmless(why));
            let _ = writeln!(
                self.err,
                "GrpoRun {name} cannot be watched now, so its state above may be old; trying again: {why}"
            );
        }
    }
}

/// Whether the run will not change any more.
pub fn is_over(run: &GrpoRun) -> bool {
    let phase = run.status.as_ref().and_then(|status| status.phase);
    matches!(phase, Some(Phase::Succeeded | Phase::Failed))
}

#[cfg(test)]
mod tests;
