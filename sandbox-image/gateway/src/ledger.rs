//! The durable record of leases: one ConfigMap, a key per lease, written by compare-and-swap, one update per batch of changes.
//!
//! Group commit and fencing in one: whatever has gathered while the last update was under way goes into the next one, and an update that
//! meets another writer's version fails. A gateway that begins writes its mark into the ledger; one that finds another's mark, or entries it did not
//! write, has been replaced, and ends.
//!
//! Renewals are not written: an entry's end is that of the first promise, and whoever restores leases gives their holders time to renew them.

use std::collections::BTreeMap;

use grpo_sandbox_protocol::LedgerEntry;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, PostParams};
use tokio::sync::{mpsc, oneshot};

/// Changes that go into one update.
const BATCH: usize = 256;
/// Changes that may wait.
const BACKLOG: usize = 16_384;
/// Times that the ledger is taken hold of while others write to it.
const HOLD_TRIES: usize = 16;
/// Mark of the gateway that holds the ledger.
const HOLDER_ANNOTATION: &str = "grpo.dev/ledger-holder";

/// One change.
pub enum Change {
    Put {
        entry: LedgerEntry,
        done: oneshot::Sender<()>,
    },
    Remove {
        lease: String,
    },
}

#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    #[error("reading the ledger {name}: {source}; does the operator's ConfigMap exist?")]
    Read { name: String, source: kube::Error },
    #[error("taking hold of the ledger {name}: {source}")]
    Hold { name: String, source: kube::Error },
    #[error("another gateway writes the ledger {name}; this one ends")]
    Fenced { name: String },
}

/// The ledger as last written.
pub struct Ledger {
    api: Api<ConfigMap>,
    name: String,
    holder: String,
    current: ConfigMap,
    entries: BTreeMap<String, String>,
}

impl Ledger {
    /// Takes hold of the ledger and answers what it holds. `holder` is this gateway's mark; a gateway that held it before ends when it writes again.
    pub async fn open(api: Api<ConfigMap>, name: &str, holder: &str) -> Result<(Self, Vec<LedgerEntry>), LedgerError> {
        let current = take_hold(&api, name, holder).await?;
        let entries = current.data.clone().unwrap_or_default();
        let leases = entries
            .values()
            .filter_map(|text| {
                serde_json::from_str(text)
                    .inspect_err(|e| tracing::error!(error = %e, "an entry of the ledger cannot be read"))
                    .ok()
            })
            .collect();
        Ok((
            Self {
                api,
                name: name.to_owned(),
                holder: holder.to_owned(),
                current,
                entries,
            },
            leases,
        ))
    }

    /// Commits changes until the channel closes.
    pub async fn run(mut self, mut changes: mpsc::Receiver<Change>) -> Result<(), LedgerError> {
        let mut batch = Vec::with_capacity(BATCH);
        while changes.recv_many(&mut batch, BATCH).await > 0 {
            let mut wanted = self.entries.clone();
            let mut waiting = Vec::new();
            for change in batch.drain(..) {
                match change {
                    Change::Put { entry, done } => {
                        if let Ok(text) = serde_json::to_string(&entry) {
                            wanted.insert(key(&entry.lease), text);
                            waiting.push(done);
                        }
                    }
                    Change::Remove { lease } => drop(wanted.remove(&key(&lease))),
                }
            }
            if wanted != self.entries {
                self.write(wanted).await?;
            }
            for done in waiting {
                let _ = done.send(());
            }
        }
        Ok(())
    }

    async fn write(&mut self, wanted: BTreeMap<String, String>) -> Result<(), LedgerError> {
        let mut pause = std::time::Duration::from_millis(50);
        loop {
            let mut next = self.current.clone();
            next.data = Some(wanted.clone());
            match self.api.replace(&self.name, &PostParams::default(), &next).await {
                Ok(written) => {
                    self.current = written;
                    self.entries = wanted;
                    return Ok(());
                }
                Err(kube::Error::Api(status)) if status.code == 409 => {
                    // Labels may have been changed by the operator; leases and the mark only by another gateway.
                    if let Ok(found) = self.api.get(&self.name).await {
                        let data = found.data.clone().unwrap_or_default();
                        let is_ours = holder(&found) == Some(&self.holder);
                        if is_ours && data == wanted {
                            // Our own update, whose answer was lost.
                            (self.current, self.entries) = (found, wanted);
                            return Ok(());
                        }
                        if !is_ours || data != self.entries {
                            return Err(LedgerError::Fenced {
                                name: self.name.clone(),
                            });
                        }
                        self.current = found;
                        continue;
                    }
                }
                Err(error) => tracing::warn!(%error, ledger = self.name, "writing the ledger; leases wait"),
            }
            // The API server is away: no lease is promised until it is back.
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(std::time::Duration::from_secs(2));
        }
    }
}

fn holder(ledger: &ConfigMap) -> Option<&String> {
    ledger.metadata.annotations.as_ref()?.get(HOLDER_ANNOTATION)
}

/// Reads the ledger and writes this gateway's mark into it.
async fn take_hold(api: &Api<ConfigMap>, name: &str, holder: &str) -> Result<ConfigMap, LedgerError> {
    let mut tries = 0;
    loop {
        let mut current = api.get(name).await.map_err(|source| LedgerError::Read {
            name: name.to_owned(),
            source,
        })?;
        let annotations = current.metadata.annotations.get_or_insert_default();
        annotations.insert(HOLDER_ANNOTATION.to_owned(), holder.to_owned());
        tries += 1;
        match api.replace(name, &PostParams::default(), &current).await {
            Ok(held) => return Ok(held),
            Err(kube::Error::Api(status)) if status.code == 409 && tries < HOLD_TRIES => {}
            Err(source) => {
                return Err(LedgerError::Hold {
                    name: name.to_owned(),
                    source,
                });
            }
        }
    }
}

/// Starts the writer. Answers where changes go.
pub fn channel() -> (mpsc::Sender<Change>, mpsc::Receiver<Change>) {
    mpsc::channel(BACKLOG)
}

/// ConfigMap keys take fewer characters than lease ids; what is not allowed is written as hex.
fn key(lease: &str) -> String {
    let mut key = String::with_capacity(lease.len());
    for byte in lease.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' => key.push(byte as char),
            other => key.push_str(&format!(".{other:02x}")),
        }
    }
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn different_leases_have_different_keys() {
        assert_eq!(key("a-b_1"), "a-b_1");
        assert_ne!(key("a/b"), key("a.b"));
        assert!(
            key("a/b.c")
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
        );
    }
}
