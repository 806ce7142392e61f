//! The output about pulls: their progress, and the failed ones with the kubelet's messages.

use super::pulls::{Pull, State};
use crate::text;
use grpo_records::show::harmless;
use jiff::SignedDuration;
use std::collections::BTreeSet;
use std::time::Duration;

const BAR: usize = 20;
/// Images that a line of progress names.
const NAMED: usize = 2;
/// The longest message in the table of failures.
const MESSAGE: usize = 300;

fn count(pulls: &[Pull], is: impl Fn(&State) -> bool) -> usize {
    pulls.iter().filter(|pull| is(&pull.state)).count()
}

fn failed(pulls: &[Pull]) -> usize {
    count(pulls, |state| matches!(state, State::Failed { .. }))
}

fn span(duration: Duration) -> String {
    text::span(SignedDuration::try_from(duration).unwrap_or(SignedDuration::MAX))
}

/// One line of progress.
pub fn progress(pulls: &[Pull], now: Duration) -> String {
    let pulled = count(pulls, |state| matches!(state, State::Pulled));
    let mut under_way: Vec<(Duration, &Pull)> = pulls
        .iter()
        .filter_map(|pull| match &pull.state {
            State::Pulling { since, .. } => Some((*since, pull)),
            _ => None,
        })
        .collect();
    under_way.sort_by_key(|(since, _)| *since);
    let named = under_way
        .iter()
        .take(NAMED)
        .map(|(since, Pull { node, image, .. })| format!("{image} on {node} ({})", span(now.saturating_sub(*since))));
    let mut named: Vec<String> = named.collect();
    if under_way.len() > NAMED {
        named.push(format!("{} more", under_way.len() - NAMED));
    }
    let pulling = match named.is_empty() {
        true => String::new(),
        false => format!("; pulling {}", named.join(", ")),
    };
    let bar = text::bar(pulled as u64, pulls.len() as u64, BAR);
    let line = format!(
        "{bar} {pulled}/{} pulled, {} failed{pulling}",
        pulls.len(),
        failed(pulls)
    );
    harmless(&line).into_owned()
}

/// The result, with a table of failures.
pub fn result(pulls: &[Pull], took: Duration) -> String {
    let different = |name: fn(&Pull) -> &String| pulls.iter().map(name).collect::<BTreeSet<_>>().len();
    let (images, nodes) = (different(|pull| &pull.image), different(|pull| &pull.node));
    let pulled = count(pulls, |state| matches!(state, State::Pulled));
    let mut out = format!(
        "{images} images on {nodes} nodes: {pulled} pulled, {} failed, in {}\n",
        failed(pulls),
        span(took)
    );
    let row = |pull: &Pull| match &pull.state {
        State::Failed { attempts, message } => {
            let message = message.split_whitespace().collect::<Vec<_>>().join(" ");
            let message = text::cut(&message, MESSAGE);
            Some(vec![
                pull.node.clone(),
                pull.image.clone(),
                attempts.to_string(),
                message,
            ])
        }
        _ => None,
    };
    let mut rows: Vec<_> = pulls.iter().filter_map(row).collect();
    rows.sort();
    if !rows.is_empty() {
        out += "\n";
        out += &text::table(&["NODE", "IMAGE", "TRIES", "MESSAGE"], &rows);
    }
    harmless(&out).into_owned()
}
