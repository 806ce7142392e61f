//! Which tasks of a dataset are taken, and in which order.

use super::reader::Row;
use super::{Task, format};
use crate::fault::TerminalFault;
use grpo_crds::grpo_run::{RowFormat, TaskOrder};
use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use std::collections::HashSet;
use std::path::PathBuf;

/// Which rows of which file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    pub file: PathBuf,
    /// What the file's rows are.
    pub format: RowFormat,
    /// Only these, in the order of the file; empty means all.
    pub instances: Vec<String>,
    /// Only rows of this repository.
    pub repo: Option<String>,
    pub limit: Option<usize>,
}

/// The tasks that the selection asks for. Rows behind the limit are not read.
pub fn choose<'a>(
    selection: &Selection,
    rows: impl Iterator<Item = Result<Row<'a>, TerminalFault>>,
) -> Result<Vec<Task>, TerminalFault> {
    let file = &selection.file;
    let wanted: HashSet<&str> = selection.instances.iter().map(String::as_str).collect();
    let mut known = HashSet::new();
    let mut tasks = Vec::new();
    for row in rows {
        let row = row?;
        let place = row.place;
        let task = format::task(selection.format, row, tasks.len())?;
        if !known.insert(task.instance.clone()) {
            return Err(place.fault("instance_id", format!("{} is there twice", task.instance)));
        }
        let of_repo = selection.repo.as_deref().is_none_or(|repo| task.row["repo"] == repo);
        if of_repo && (wanted.is_empty() || wanted.contains(task.instance.as_str())) {
            tasks.push(task);
        }
        if selection.limit.is_some_and(|limit| tasks.len() == limit) {
            break;
        }
    }
    let missing: Vec<&str> = match selection.limit {
        Some(_) => Vec::new(),
        None => wanted.into_iter().filter(|id| !known.contains(*id)).collect(),
    };
    if !missing.is_empty() {
        return Err(TerminalFault::new(
            "TaskNotFound",
            format!("{} has no row for {}", file.display(), missing.join(", ")),
        ));
    }
    if tasks.is_empty() {
        return Err(TerminalFault::new(
            "NoTasks",
            format!("{} has no row that the selection asks for", file.display()),
        ));
    }
    Ok(tasks)
}

/// The positions of the tasks of iteration `k` (from 1): the next `prompts` of an endless sequence of passes over the
/// dataset, each pass shuffled by itself. A pure function, so a restarted driver takes the same ones.
pub fn for_iteration(order: TaskOrder, seed: u64, tasks: usize, prompts: usize, k: u32) -> Vec<u32> {
    let first = (k as usize - 1) * prompts;
    let mut pass: Option<(usize, Vec<u32>)> = None;
    (first..first + prompts)
        .map(|at| {
            let (number, inside) = (at / tasks, at % tasks);
            if pass.as_ref().is_none_or(|(of, _)| *of != number) {
                pass = Some((number, order_of_pass(order, seed, tasks, number)));
            }
            pass.as_ref().map_or(0, |(_, positions)| positions[inside])
        })
        .collect()
}

fn order_of_pass(order: TaskOrder, seed: u64, tasks: usize, pass: usize) -> Vec<u32> {
    let mut positions: Vec<u32> = (0..tasks as u32).collect();
    if order == TaskOrder::Shuffled {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        bytes[8..16].copy_from_slice(&(pass as u64).to_le_bytes());
        bytes[16..].copy_from_slice(b"order of a pass.");
        positions.shuffle(&mut StdRng::from_seed(bytes));
    }
    positions
}
