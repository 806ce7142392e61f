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
        is_abandoned: false,
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
        // The leases of a run's graders do not count against its agents.
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
