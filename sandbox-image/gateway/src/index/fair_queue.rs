//! The fair queue: graders first, then the run with the fewest leases, then the waiter who came first.
//!
//! Graders are first because their episodes are finished but for the verdict. Between runs the shares are max-min fair:
//! a run alone has everything, and of several none gets another lease while one that waits has fewer.

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

/// Offers a place to each waiter in fair order, by its position in the queue. `take` answers whether it was taken: that
/// counts for the run's share.
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
mod tests {
    use super::*;
    use grpo_sandbox_protocol::{LeaseRequest, LedgerEntry};

    fn waiter(run: &str, nth: usize, priority: Priority) -> Waiter {
        let request = LeaseRequest {
            id: format!("{run}{nth}"),
            run: run.into(),
            image: "x".into(),
            ttl_seconds: 60,
            wait_seconds: 60,
            priority,
        };
        Waiter {
            request,
            since: 0,
            deadline: 1,
            queued: false,
        }
    }

    fn held(run: &str, priority: Priority) -> ActiveLease {
        let entry = LedgerEntry {
            lease: "l".into(),
            run: run.into(),
            sandbox: "s".into(),
            pod_uid: "u".into(),
            restarts: 0,
            image: "x".into(),
            epoch: 1,
            expires_at: 1,
            ttl_millis: 1,
            priority,
        };
        ActiveLease::restored(entry, Default::default(), 0)
    }

    /// `waiting` and `holding` are runs by letter; capital letters are graders.
    fn order(waiting: &str, holding: &str, refused: &str) -> String {
        let priority = |c: char| match c.is_uppercase() {
            true => Priority::Grader,
            false => Priority::Agent,
        };
        let run = |c: char| c.to_lowercase().to_string();
        let queue = waiting.chars().enumerate();
        let queue = queue.map(|(n, c)| waiter(&run(c), n, priority(c))).collect();
        let leases = holding.chars().enumerate();
        let leases = leases
            .map(|(n, c)| (n.to_string(), held(&run(c), priority(c))))
            .collect();
        let mut order = String::new();
        in_fair_order(&queue, &leases, |_, waiter| {
            if refused.contains(&waiter.request.run) {
                return false;
            }
            order.push_str(&match waiter.request.priority {
                Priority::Grader => waiter.request.run.to_uppercase(),
                Priority::Agent => waiter.request.run.clone(),
            });
            true
        });
        order
    }

    #[test]
    fn runs_take_turns_whoever_has_fewer_is_first_and_graders_are_before_all() {
        for (waiting, holding, refused, wanted) in [
            ("aaaa", "", "", "aaaa"),
            ("aaaab", "", "", "abaaa"),
            ("aaabbbc", "", "", "abcabab"),
            ("aabb", "aaa", "", "bbaa"),
            ("aabbb", "aa", "", "bbaba"),
            ("aaB", "", "", "Baa"),
            // What graders of a run hold is not counted against its agents.
            ("ab", "A", "", "ab"),
            ("aabb", "", "a", "bb"),
        ] {
            assert_eq!(
                order(waiting, holding, refused),
                wanted,
                "{waiting} while {holding} are held"
            );
        }
    }
}
