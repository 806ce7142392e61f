//! One ConfigMap of the ledger: its owner, and its replacement by compare-and-swap.

use std::collections::BTreeMap;
use std::time::Duration;

use grpo_sandbox_protocol::{LedgerEntry, PoolReport, REPORT_ANNOTATION};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, ObjectMeta, PostParams};
use sha2::{Digest, Sha256};

use super::{Counters, LedgerError};

/// Maximum tries to take hold of a shard while others write to it.
const HOLD_TRIES: usize = 16;
/// Mark of the gateway that holds the ledger.
const HOLDER_ANNOTATION: &str = "grpo.dev/ledger-holder";
/// How many gateways have held the ledger, this one included.
const TERM_ANNOTATION: &str = "grpo.dev/ledger-term";
/// First and longest pause before an update is tried again.
const PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// The owner of the ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    pub term: u64,
    pub holder: String,
}

impl Mark {
    fn of(metadata: &ObjectMeta) -> Option<Self> {
        let annotations = metadata.annotations.as_ref()?;
        let term = annotations.get(TERM_ANNOTATION).and_then(|term| term.parse().ok());
        Some(Self {
            term: term.unwrap_or(0),
            holder: annotations.get(HOLDER_ANNOTATION)?.clone(),
        })
    }

    fn put_on(&self, metadata: &mut ObjectMeta) {
        let annotations = metadata.annotations.get_or_insert_default();
        annotations.insert(HOLDER_ANNOTATION.to_owned(), self.holder.clone());
        annotations.insert(TERM_ANNOTATION.to_owned(), self.term.to_string());
    }
}

/// A shard as last written.
pub struct Shard {
    number: usize,
    name: String,
    /// Without its data.
    current: ConfigMap,
    entries: BTreeMap<String, String>,
    /// The report on the pool, in the first shard.
    report: Option<String>,
}

impl Shard {
    /// Takes the first shard, which decides the owner of the ledger, and begins a term.
    pub async fn take_first(api: &Api<ConfigMap>, name: &str, holder: &str) -> Result<(Self, Mark), LedgerError> {
        take_hold(api, name, |found| {
            Ok(Mark {
                term: found.map_or(0, |mark| mark.term) + 1,
                holder: holder.to_owned(),
            })
        })
        .await
    }

    /// Takes another shard, unless a later gateway has it.
    pub async fn take(api: &Api<ConfigMap>, name: &str, mark: &Mark) -> Result<Self, LedgerError> {
        let taken = take_hold(api, name, |found| match found {
            Some(found) if found.term > mark.term || found.term == mark.term && found.holder != mark.holder => {
                Err(LedgerError::Fenced { name: name.to_owned() })
            }
            _ => Ok(mark.clone()),
        });
        Ok(taken.await?.0)
    }

    fn of(name: &str, mut current: ConfigMap) -> Self {
        let entries = current.data.take().unwrap_or_default();
        let report = current.metadata.annotations.as_ref();
        let report = report
            .and_then(|annotations| annotations.get(REPORT_ANNOTATION))
            .cloned();
        Self {
            number: 0,
            name: name.to_owned(),
            current,
            entries,
            report,
        }
    }

    /// The last report. Empty if it cannot be read.
    pub fn report(&self) -> PoolReport {
        let read = |text: &String| serde_json::from_str(text).ok();
        self.report.as_ref().and_then(read).unwrap_or_default()
    }

    /// Sets the report for the next update. Returns whether it is new.
    pub fn tell(&mut self, report: String) -> bool {
        let is_new = self.report.as_ref() != Some(&report);
        self.report = Some(report);
        is_new
    }

    pub fn number(&self) -> usize {
        self.number
    }

    pub fn numbered(self, number: usize) -> Self {
        Self { number, ..self }
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn entries(&self) -> &BTreeMap<String, String> {
        &self.entries
    }

    /// The leases in the shard.
    pub fn leases(&self) -> Vec<LedgerEntry> {
        let read = |text: &String| {
            serde_json::from_str(text)
                .inspect_err(
                    |e| tracing::error!(error = %e, ledger = self.name, "an entry of the ledger cannot be read"),
                )
                .ok()
        };
        self.entries.values().filter_map(read).collect()
    }

    /// Replaces the shard's content, however long that takes. Fails only if another gateway has the shard.
    pub async fn write(
        &mut self,
        api: &Api<ConfigMap>,
        mark: &Mark,
        wanted: BTreeMap<String, String>,
        counters: &Counters,
    ) -> Result<(), LedgerError> {
        let mut pause = PAUSE;
        loop {
            let mut next = self.current.clone();
            next.data = Some(wanted.clone());
            if let Some(report) = &self.report {
                let annotations = next.metadata.annotations.get_or_insert_default();
                annotations.insert(REPORT_ANNOTATION.to_owned(), report.clone());
            }
            match api.replace(&self.name, &PostParams::default(), &next).await {
                Ok(mut written) => {
                    counters.writes.inc();
                    written.data = None;
                    (self.current, self.entries) = (written, wanted);
                    return Ok(());
                }
                Err(kube::Error::Api(status)) if status.code == 409 => {
                    counters.retries.inc();
                    // The operator may have changed labels. Only another gateway changes leases or the mark.
                    if let Ok(found) = api.get(&self.name).await {
                        let is_ours = Mark::of(&found.metadata).as_ref() == Some(mark);
                        let found = Self::of(&self.name, found);
                        if is_ours && found.entries == wanted && found.report == self.report {
                            // This is our own update, whose answer was lost.
                            counters.writes.inc();
                            (self.current, self.entries) = (found.current, wanted);
                            return Ok(());
                        }
                        if !is_ours || found.entries != self.entries {
                            return Err(LedgerError::Fenced {
                                name: self.name.clone(),
                            });
                        }
                        self.current = found.current;
                        continue;
                    }
                }
                Err(error) => {
                    counters.retries.inc();
                    tracing::warn!(%error, ledger = self.name, "writing the ledger; leases wait");
                }
            }
            // The API server is away: no lease is granted until it is back.
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}

/// Checks whether this gateway still owns the ledger.
#[derive(Clone)]
pub struct FencingCheck {
    pub api: Api<ConfigMap>,
    pub first: String,
    pub mark: Mark,
}

impl FencingCheck {
    /// Fails if another gateway owns the ledger, or if the API server does not answer.
    pub async fn is_ours(&self) -> Result<(), LedgerError> {
        let found = self.api.get_metadata(&self.first).await;
        let found = found.map_err(|source| LedgerError::Read {
            name: self.first.clone(),
            source,
        })?;
        match Mark::of(&found.metadata).as_ref() == Some(&self.mark) {
            true => Ok(()),
            false => Err(LedgerError::Fenced {
                name: self.first.clone(),
            }),
        }
    }
}

/// Reads a shard and writes a new mark into it, which `mark` makes from the existing one.
async fn take_hold(
    api: &Api<ConfigMap>,
    name: &str,
    mark: impl Fn(Option<Mark>) -> Result<Mark, LedgerError>,
) -> Result<(Shard, Mark), LedgerError> {
    let mut tries = 0;
    loop {
        let mut current = api.get(name).await.map_err(|source| LedgerError::Read {
            name: name.to_owned(),
            source,
        })?;
        let mark = mark(Mark::of(&current.metadata))?;
        mark.put_on(&mut current.metadata);
        tries += 1;
        match api.replace(name, &PostParams::default(), &current).await {
            Ok(held) => return Ok((Shard::of(name, held), mark)),
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

/// Longest key of a ConfigMap.
const LONGEST_KEY: usize = 253;

/// The ConfigMap key of a lease id. Keys allow fewer characters than lease ids: other characters are written as hex,
/// and an id that is too long as a digest.
pub fn key(lease: &str) -> String {
    let mut key = String::with_capacity(lease.len());
    for byte in lease.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' => key.push(byte as char),
            other => key.push_str(&format!(".{other:02x}")),
        }
    }
    match key.len() > LONGEST_KEY {
        // No other key has two dots in a row.
        true => format!("..{:x}", Sha256::digest(lease)),
        false => key,
    }
}

#[cfg(test)]
mod tests;
