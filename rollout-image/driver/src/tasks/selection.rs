//! The choice and the order of a dataset's tasks.

use super::Task;
use super::format::Candidate;
use super::reader::Place;
use super::source::Source;
use crate::fault::TerminalFault;
use grpo_contracts::reason::Reason;
use grpo_crds::grpo_run::{HiddenField, RowFormat, TaskOrder};
use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use regex_lite::Regex;
use std::collections::HashSet;

/// A selection of a dataset's rows: filters, then a shuffle, then a slice, then a limit.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    pub source: Source,
    /// The format of its rows.
    pub format: RowFormat,
    /// The image of rows that name none.
    pub image: Option<String>,
    /// Only these; empty means all.
    pub instances: Vec<String>,
    /// Not these.
    pub exclude: Vec<String>,
    /// Only names that match it as a whole.
    pub pattern: Option<Regex>,
    /// Only rows of these repositories; empty means all.
    pub repos: Vec<String>,
    pub shuffle: Option<u64>,
    pub slice: Option<Slice>,
    pub limit: Option<usize>,
    /// The source of statements that replace the rows' own.
    pub overrides: Option<Source>,
    /// Fields that prompts may show although they give the answer away.
    pub revealed: Vec<HiddenField>,
}

/// Every `of`-th row from the `index`-th on: `of` runs with one index each share a dataset without overlap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    pub index: usize,
    pub of: usize,
}

/// A regular expression that must match a whole name.
pub fn pattern(text: &str) -> Result<Regex, regex_lite::Error> {
    Regex::new(&format!("^(?:{text})$"))
}

impl Selection {
    /// How many rows that pass the filters are enough; `None` if all must be read.
    fn enough(&self) -> Option<usize> {
        let limit = self.limit.filter(|_| self.shuffle.is_none())?;
        let slice = self.slice.unwrap_or(Slice { index: 0, of: 1 });
        Some(slice.index + (limit - 1) * slice.of + 1)
    }
}

/// A selection under way: it sees one row after the other, and gets the task of each row that it takes.
pub struct Choice<'a> {
    selection: &'a Selection,
    wanted: HashSet<&'a str>,
    excluded: HashSet<&'a str>,
    /// Every instance seen so far.
    known: HashSet<String>,
    kept: Vec<Task>,
}

impl<'a> Choice<'a> {
    pub fn new(selection: &'a Selection) -> Self {
        Self {
            selection,
            wanted: selection.instances.iter().map(String::as_str).collect(),
            excluded: selection.exclude.iter().map(String::as_str).collect(),
            known: HashSet::new(),
            kept: Vec::new(),
        }
    }

    /// Whether the row passes the filters. A repeated instance is a fault of the dataset.
    pub fn takes(&mut self, row: &Candidate, place: &Place<'_>) -> Result<bool, TerminalFault> {
        let name = row.instance.as_str();
        if !self.known.insert(name.to_owned()) {
            return Err(place.fault("instance_id", format!("{name} is there twice")));
        }
        let selection = self.selection;
        Ok((self.wanted.is_empty() || self.wanted.contains(name))
            && !self.excluded.contains(name)
            && selection.pattern.as_ref().is_none_or(|pattern| pattern.is_match(name))
            && (selection.repos.is_empty() || selection.repos.contains(&row.repo)))
    }

    pub fn keep(&mut self, task: Task) {
        self.kept.push(task);
    }

    /// Whether no further row is needed.
    pub fn is_full(&self) -> bool {
        self.selection.enough() == Some(self.kept.len())
    }

    /// The selected tasks, in order; `from` names the rows' files.
    pub fn tasks(self, from: &str) -> Result<Vec<Task>, TerminalFault> {
        let (selection, known) = (self.selection, self.known);
        let missing: Vec<&str> = match selection.limit {
            Some(_) => Vec::new(),
            None => self.wanted.into_iter().filter(|id| !known.contains(*id)).collect(),
        };
        if !missing.is_empty() {
            return Err(TerminalFault::new(
                Reason::TaskNotFound,
                format!("{from} has no row for {}", missing.join(", ")),
            ));
        }
        let mut tasks = self.kept;
        if let Some(seed) = selection.shuffle {
            tasks.shuffle(&mut random(seed, 0, b"order of choice."));
        }
        let Slice { index, of } = selection.slice.unwrap_or(Slice { index: 0, of: 1 });
        let limit = selection.limit.unwrap_or(usize::MAX);
        let mut tasks: Vec<Task> = tasks.into_iter().skip(index).step_by(of).take(limit).collect();
        for (index, task) in tasks.iter_mut().enumerate() {
            task.index = index as u32;
        }
        Ok(tasks)
    }
}

/// The random numbers of a seed, for one of its uses.
fn random(seed: u64, number: u64, usage: &[u8; 16]) -> StdRng {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    bytes[8..16].copy_from_slice(&number.to_le_bytes());
    bytes[16..].copy_from_slice(usage);
    StdRng::from_seed(bytes)
}

/// The positions of the tasks of iteration `k` (from 1): the next `prompts` of the endless sequence.
pub fn for_iteration(order: TaskOrder, seed: u64, tasks: usize, prompts: usize, k: u32) -> Vec<u32> {
    let first = (k as usize - 1) * prompts;
    let mut sequence = Sequence::new(order, seed, tasks);
    (first..first + prompts).map(|place| sequence.at(place)).collect()
}

/// The endless sequence of passes over a dataset, each with its own shuffle. The task at a place depends on nothing
/// else, so a restarted driver takes the same tasks.
#[derive(Clone, Debug)]
pub struct Sequence {
    order: TaskOrder,
    seed: u64,
    tasks: usize,
    /// The last requested pass, and its positions in order.
    pass: Option<(usize, Vec<u32>)>,
}

impl Sequence {
    /// `tasks`: the number of tasks in the dataset.
    pub fn new(order: TaskOrder, seed: u64, tasks: usize) -> Self {
        Self {
            order,
            seed,
            tasks,
            pass: None,
        }
    }

    /// The number of tasks in the dataset.
    pub fn tasks(&self) -> usize {
        self.tasks
    }

    /// The position in the dataset of the task at a place, from 0.
    pub fn at(&mut self, place: usize) -> u32 {
        let (number, inside) = (place / self.tasks, place % self.tasks);
        let positions = match self.pass.take() {
            Some((of, positions)) if of == number => positions,
            _ => order_of_pass(self.order, self.seed, self.tasks, number),
        };
        let position = positions[inside];
        self.pass = Some((number, positions));
        position
    }
}

fn order_of_pass(order: TaskOrder, seed: u64, tasks: usize, pass: usize) -> Vec<u32> {
    let mut positions: Vec<u32> = (0..tasks as u32).collect();
    if order == TaskOrder::Shuffled {
        positions.shuffle(&mut random(seed, pass as u64, b"order of a pass."));
    }
    positions
}
