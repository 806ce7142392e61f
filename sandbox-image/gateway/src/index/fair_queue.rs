//! The fair queue: graders first, then the run with the fewest leases, then the earliest waiter.
//!
//! Graders are first because their episodes lack only the verdict. Between runs the shares are max-min fair: a run
//! alone gets everything, and among several runs none gets another lease while a waiting run has fewer.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};

use grpo_sandbox_protocol::Priority;

use super::{ActiveLease, Waiter};

/// The waiters of one run.
#[derive(Default)]
struct RunQueue {
    held: usize,
    waiting: VecDeque<usize>,
}

/// Offers a place to each waiter in fair order, by its position in the queue. `take` returns whether the waiter took
/// it; a taken place counts for the run's share.
pub fn in_fair_order(
    queue: &VecDeque<Waiter>,
    leases: &HashMap<String, ActiveLease>,
    mut take: impl FnMut(usize, &Waiter) -> bool,
) {
    if queue.is_empty() {
        return;
    }
    for class in [Priority::Grader, Priority::Agent] {
        let mut lines = lines(queue, leases, class);
        let heads = lines.iter().enumerate();
        let mut heap: BinaryHeap<Reverse<(usize, usize, usize)>> = heads
            .filter_map(|(line, of)| Some(Reverse((of.held, *of.waiting.front()?, line))))
            .collect();
        while let Some(Reverse((held, at, line))) = heap.pop() {
            let taken = queue.get(at).is_some_and(|waiter| take(at, waiter));
            let Some(of) = lines.get_mut(line) else { continue };
            of.waiting.pop_front();
            if let Some(next) = of.waiting.front() {
                heap.push(Reverse((held + usize::from(taken), *next, line)));
            }
        }
    }
}

fn lines(queue: &VecDeque<Waiter>, leases: &HashMap<String, ActiveLease>, class: Priority) -> Vec<RunQueue> {
    let mut lines: Vec<RunQueue> = Vec::new();
    let mut by_run: HashMap<&str, usize> = HashMap::new();
    let waiting = queue.iter().enumerate();
    for (at, waiter) in waiting.filter(|(_, waiter)| waiter.request.priority == class) {
        let line = *by_run.entry(&waiter.request.run).or_insert_with(|| {
            lines.push(RunQueue::default());
            lines.len() - 1
        });
        lines[line].waiting.push_back(at);
    }
    if by_run.is_empty() {
        return lines;
    }
    for held in leases.values().filter(|held| held.entry.priority == class) {
        if let Some(line) = by_run.get(held.entry.run.as_str()) {
            lines[*line].held += 1;
        }
    }
    lines
}

#[cfg(test)]
mod tests;
