//! Decides the next action for each pull. Pure: the input is the wanted pulls and the states of their pods, the output
//! actions. [`take`] applies an action to the pulls.

use super::pod::PullStatus;
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

/// Pauses between attempts at one pull, each longer than the last.
const FIRST_PAUSE: Duration = Duration::from_secs(5);
const LONGEST_PAUSE: Duration = Duration::from_secs(300);
const FACTOR: u32 = 3;

/// One image on one node.
#[derive(Clone, Debug, PartialEq)]
pub struct Pull {
    pub node: String,
    pub image: String,
    pub state: State,
}

/// Times count from the beginning of the call.
#[derive(Clone, Debug, PartialEq)]
pub enum State {
    /// Not tried before this time.
    Waiting {
        attempt: u32,
        not_before: Duration,
    },
    /// The time at which its pod was created.
    Pulling {
        attempt: u32,
        pod: String,
        since: Duration,
    },
    Pulled,
    Failed {
        attempts: u32,
        message: String,
    },
}

/// The user's settings.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Concurrent pulls on a node.
    pub parallel: u32,
    /// Attempts after the first one.
    pub retries: u32,
    pub deadline: Duration,
}

/// The next action for the pull with this number. Each but `Create` deletes its pod.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    Create {
        pull: usize,
        attempt: u32,
    },
    Pulled {
        pull: usize,
    },
    Again {
        pull: usize,
        attempt: u32,
        not_before: Duration,
    },
    Fail {
        pull: usize,
        attempts: u32,
        message: String,
    },
}

/// Every image on every node, one image after another: nodes take turns with a registry.
pub fn wanted(nodes: &[String], images: &[String]) -> Vec<Pull> {
    let of_image = |image: &String| {
        let image = image.clone();
        nodes.iter().map(move |node| Pull {
            node: node.clone(),
            image: image.clone(),
            state: State::Waiting {
                attempt: 1,
                not_before: Duration::ZERO,
            },
        })
    };
    images.iter().flat_map(of_image).collect()
}

/// Decides the actions. `pods` is keyed by name; a pod that was created and is missing was deleted by another client.
pub fn decide(pulls: &[Pull], pods: &BTreeMap<String, PullStatus>, limits: &Limits, now: Duration) -> Vec<Action> {
    let mut actions = Vec::new();
    let mut busy: HashMap<&str, u32> = HashMap::new();
    for (number, pull) in pulls.iter().enumerate() {
        let State::Pulling { attempt, pod, .. } = &pull.state else {
            continue;
        };
        match concluded(number, *attempt, pods.get(pod), limits, now) {
            Some(action) => actions.push(action),
            None => *busy.entry(&pull.node).or_default() += 1,
        }
    }
    for (number, pull) in pulls.iter().enumerate() {
        let State::Waiting { attempt, not_before } = pull.state else {
            continue;
        };
        if now >= limits.deadline {
            let why = match attempt {
                1 => "its turn had not come; give a later --deadline, or raise --parallel",
                _ => "it was not tried again",
            };
            actions.push(Action::Fail {
                pull: number,
                attempts: attempt - 1,
                message: late(limits, why),
            });
            continue;
        }
        let busy = busy.entry(&pull.node).or_default();
        if now >= not_before && *busy < limits.parallel {
            *busy += 1;
            actions.push(Action::Create { pull: number, attempt });
        }
    }
    actions
}

/// The end of a pull with a pod; `None` while it is under way.
fn concluded(pull: usize, attempt: u32, seen: Option<&PullStatus>, limits: &Limits, now: Duration) -> Option<Action> {
    let fail = |message: String| Action::Fail {
        pull,
        attempts: attempt,
        message,
    };
    let again = |message: &str| match attempt <= limits.retries && now < limits.deadline {
        true => Action::Again {
            pull,
            attempt: attempt + 1,
            not_before: now + pause(attempt),
        },
        false => fail(message.to_owned()),
    };
    match seen {
        Some(PullStatus::Pulled) => Some(Action::Pulled { pull }),
        Some(PullStatus::Refused { message }) => Some(fail(message.clone())),
        Some(PullStatus::Failed { message } | PullStatus::Ended { message }) => Some(again(message)),
        None => Some(again("its pod was deleted by another")),
        Some(PullStatus::Waits { why }) if now >= limits.deadline => {
            Some(fail(late(limits, why.as_deref().unwrap_or("it is still being pulled"))))
        }
        Some(PullStatus::Waits { .. }) => None,
    }
}

fn late(limits: &Limits, why: &str) -> String {
    format!("not there within {} s: {why}", limits.deadline.as_secs())
}

fn pause(attempt: u32) -> Duration {
    let factor = FACTOR.saturating_pow(attempt.saturating_sub(1));
    FIRST_PAUSE.saturating_mul(factor).min(LONGEST_PAUSE)
}

/// Applies an action to its pull, and returns the pod that is no longer needed. `made` is the name of the pod of a
/// `Create`.
pub fn take(pulls: &mut [Pull], action: &Action, made: &str, now: Duration) -> Option<String> {
    let (number, state) = match action.clone() {
        Action::Create { pull, attempt } => {
            let (pod, since) = (made.to_owned(), now);
            (pull, State::Pulling { attempt, pod, since })
        }
        Action::Pulled { pull } => (pull, State::Pulled),
        Action::Again {
            pull,
            attempt,
            not_before,
        } => (pull, State::Waiting { attempt, not_before }),
        Action::Fail {
            pull,
            attempts,
            message,
        } => (pull, State::Failed { attempts, message }),
    };
    let pull = pulls.get_mut(number)?;
    match std::mem::replace(&mut pull.state, state) {
        State::Pulling { pod, .. } => Some(pod),
        _ => None,
    }
}

/// Whether every pull has ended.
pub fn is_over(pulls: &[Pull]) -> bool {
    let is_over = |pull: &Pull| matches!(pull.state, State::Pulled | State::Failed { .. });
    pulls.iter().all(is_over)
}

#[cfg(test)]
mod tests;
