//! Images that cannot be pulled: since when, why, and how long leases wait for them.
//!
//! The wait is per image, not per call: the episodes of a group begin and wait together, and later attempts do not wait
//! again for an image that was given up.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// How many images a message names.
const NAMED: usize = 3;
const LOOK_AGAIN: Duration = Duration::from_secs(60);

/// Images whose last pull failed. Cloning is cheap and shares them.
#[derive(Clone, Debug)]
pub struct Images {
    patience: Duration,
    troubles: watch::Sender<BTreeMap<String, Trouble>>,
}

#[derive(Clone, Debug)]
struct Trouble {
    since: Instant,
    last: Instant,
    why: String,
}

impl Trouble {
    fn is_over(&self, patience: Duration, now: Instant) -> bool {
        now.duration_since(self.since) >= patience
    }

    /// An image without a failure for `patience` gets a new chance.
    fn is_forgotten(&self, patience: Duration, now: Instant) -> bool {
        now.duration_since(self.last) >= patience
    }
}

impl Images {
    pub fn new(patience: Duration) -> Self {
        Self {
            patience,
            troubles: watch::channel(BTreeMap::new()).0,
        }
    }

    /// Records a failed pull for a call that began at `began`. Returns whether calls still wait for the image.
    pub fn failed(&self, image: &str, why: &str, began: Instant) -> bool {
        let now = Instant::now();
        let mut is_waited_for = true;
        self.troubles.send_modify(|troubles| {
            troubles.retain(|_, trouble| !trouble.is_forgotten(self.patience, now));
            let trouble = troubles.entry(image.to_owned()).or_insert_with(|| Trouble {
                since: began,
                last: now,
                why: String::new(),
            });
            trouble.last = now;
            why.clone_into(&mut trouble.why);
            is_waited_for = !trouble.is_over(self.patience, now);
        });
        is_waited_for
    }

    /// Records a successful pull.
    pub fn pulled(&self, image: &str) {
        self.troubles
            .send_if_modified(|troubles| troubles.remove(image).is_some());
    }

    /// Reports the message now, at each change, and every minute, so that old failures drop out.
    pub async fn follow(&self, mut tell: impl FnMut(Option<String>)) -> Infallible {
        let mut seen = self.troubles.subscribe();
        loop {
            tell(self.message());
            let _ = tokio::time::timeout(LOOK_AGAIN, seen.changed()).await;
        }
    }

    /// The message for users; `None` if no pull fails.
    pub fn message(&self) -> Option<String> {
        let (troubles, now) = (self.troubles.borrow(), Instant::now());
        let minutes = self.patience.as_secs().div_ceil(60);
        let known: Vec<String> = troubles
            .iter()
            .filter(|(_, trouble)| !trouble.is_forgotten(self.patience, now))
            .map(|(image, trouble)| {
                let then = match trouble.is_over(self.patience, now) {
                    true => format!("for {minutes} min; episodes of its tasks are void until it can be"),
                    false => format!("and is waited for up to {minutes} min"),
                };
                format!("image {image} cannot be pulled {then}: {}", trouble.why)
            })
            .collect();
        let more = known.len().saturating_sub(NAMED);
        let more = (more > 0).then(|| format!("{more} more images cannot be pulled"));
        let named: Vec<String> = known.into_iter().take(NAMED).chain(more).collect();
        (!named.is_empty()).then(|| {
            format!(
                "{}. Check the image's name and tag, and whether the nodes may pull from its registry",
                named.join("; ")
            )
        })
    }
}

#[cfg(test)]
mod tests;
