//! Decides which run may create pods in a namespace whose ResourceQuota refused some. Pure.
//!
//! Two runs that fit a quota only one at a time would each get some of their pods and wait for the rest for ever. So a
//! refused run deletes its pods that are not on a node, and pauses; while any run of the namespace pauses, one run at a
//! time creates pods. Claims on devices that a run shares count like pods.

use std::{collections::HashMap, time::Duration};

use jiff::{SignedDuration, Timestamp};

use crate::backoff::Backoff;

/// Back-off of a refused run before it creates pods again: first and longest pause.
const PAUSES: Backoff = Backoff::new(Duration::from_secs(10), Duration::from_secs(120));
/// In its turn a run creates all of its pods, or is refused. The turn ends by itself.
const TURN: SignedDuration = SignedDuration::from_secs(15);
/// A refused run that does not return this long after its pause is suspended or over.
const FORGOTTEN: SignedDuration = SignedDuration::from_secs(60);

/// A creator of pods: a run with the engines of its own pool, or an InferencePool without a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Maker {
    pub namespace: String,
    /// For example `GrpoRun demo`.
    pub name: String,
    pub uid: String,
}

/// Why no pods are created now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotaWait {
    pub until: Timestamp,
    /// The maker itself was refused: its pods that are not on a node are deleted.
    pub refused: bool,
    pub message: String,
}

/// Refused makers and the current turn, by namespace. Lost with the process, which only shortens pauses.
#[derive(Clone, Debug, Default)]
pub struct QuotaTurns {
    namespaces: HashMap<String, Namespace>,
}

#[derive(Clone, Debug, Default)]
struct Namespace {
    /// By uid.
    refused: HashMap<String, Refused>,
    turn: Option<Turn>,
}

#[derive(Clone, Debug)]
struct Refused {
    until: Timestamp,
    times: u32,
    message: String,
}

#[derive(Clone, Debug)]
struct Turn {
    uid: String,
    name: String,
    ends: Timestamp,
}

impl QuotaTurns {
    /// Records that the API server refused a pod, or a claim on devices, because of a quota, with its message.
    pub fn refuse(&mut self, maker: &Maker, said: &str, now: Timestamp) {
        let namespace = self.namespaces.entry(maker.namespace.clone()).or_default();
        namespace.turn.take_if(|turn| turn.uid == maker.uid);
        let times = namespace.refused.get(&maker.uid).map_or(0, |known| known.times);
        let until = now + PAUSES.pause(times);
        let message = format!(
            "a ResourceQuota of namespace {0} refused a pod or a ResourceClaim: {said}. The pods that are on no node \
             are deleted with their ResourceClaims, and created again later. Raise the quota \
             (`kubectl describe resourcequota -n {0}`), or end other runs of the namespace",
            maker.namespace
        );
        let times = times.saturating_add(1);
        namespace
            .refused
            .insert(maker.uid.clone(), Refused { until, times, message });
    }

    /// Why the maker may not create pods now; `None` if it may. `wants`: the maker lacks pods, and takes the turn if it
    /// is free.
    pub fn ask(&mut self, maker: &Maker, wants: bool, now: Timestamp) -> Option<QuotaWait> {
        let namespace = self.namespaces.get_mut(&maker.namespace)?;
        // A run without a refusal in its turn has all of its pods.
        if let Some(over) = namespace.turn.take_if(|turn| turn.ends <= now) {
            namespace.refused.remove(&over.uid);
        }
        namespace.refused.retain(|_, refused| refused.until + FORGOTTEN > now);
        if namespace.refused.is_empty() {
            self.namespaces.remove(&maker.namespace);
            return None;
        }
        if let Some(refused) = namespace.refused.get(&maker.uid).filter(|refused| refused.until > now) {
            return Some(QuotaWait {
                until: refused.until,
                refused: true,
                message: refused.message.clone(),
            });
        }
        match &namespace.turn {
            Some(turn) if turn.uid != maker.uid => wants.then(|| QuotaWait {
                until: turn.ends,
                refused: false,
                message: format!(
                    "a ResourceQuota of namespace {} refused a pod, so one run at a time creates its pods: now {}. The \
                     others follow by themselves",
                    maker.namespace, turn.name
                ),
            }),
            Some(_) => None,
            None => {
                if wants {
                    namespace.turn = Some(Turn {
                        uid: maker.uid.clone(),
                        name: maker.name.clone(),
                        ends: now + TURN,
                    });
                }
                None
            }
        }
    }

    /// Forgets a maker.
    pub fn forget(&mut self, uid: &str) {
        for namespace in self.namespaces.values_mut() {
            namespace.refused.remove(uid);
            namespace.turn.take_if(|turn| turn.uid == uid);
        }
        self.namespaces
            .retain(|_, namespace| !(namespace.refused.is_empty() && namespace.turn.is_none()));
    }
}

#[cfg(test)]
mod tests;
