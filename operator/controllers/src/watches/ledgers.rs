//! Facts from the ledgers, by pool.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{Arc, PoisonError, RwLock},
};

use futures::StreamExt;
use grpo_operator_core::names;
use grpo_sandbox_protocol::{PoolReport, REPORT_ANNOTATION};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, ResourceExt,
    runtime::{
        WatchStreamExt,
        watcher::{Event, watcher},
    },
};

use super::{
    config::{Pauses, every_object},
    triggers::Triggers,
};
use crate::parent::Parent;

/// The facts kept from a ledger.
#[derive(Clone, Debug, Default)]
pub struct LedgerFacts {
    /// Number of leases.
    pub leases: usize,
    /// The gateway's report on its pool, in the first ledger.
    pub report: Option<Arc<PoolReport>>,
}

impl LedgerFacts {
    fn of(ledger: &ConfigMap) -> Self {
        let report = ledger.annotations().get(REPORT_ANNOTATION);
        let report = report.and_then(|text| {
            serde_json::from_str(text)
                .inspect_err(
                    |error| tracing::warn!(%error, ledger = ledger.name_any(), "a gateway's report cannot be read"),
                )
                .ok()
        });
        Self {
            leases: ledger.data.as_ref().map_or(0, BTreeMap::len),
            report: report.map(Arc::new),
        }
    }
}

/// The ledgers, by namespace and name.
#[derive(Default)]
pub struct Ledgers {
    known: RwLock<HashMap<(String, String), LedgerFacts>>,
}

impl Ledgers {
    pub fn facts(&self, namespace: &str, ledger: &str) -> LedgerFacts {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let facts = known.get(&(namespace.to_owned(), ledger.to_owned()));
        facts.cloned().unwrap_or_default()
    }

    fn keep_only(&self, listed: &HashSet<(String, String)>) {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        known.retain(|key, _| listed.contains(key));
    }

    fn set(&self, ledger: &ConfigMap, facts: Option<LedgerFacts>) {
        let key = (ledger.namespace().unwrap_or_default(), ledger.name_any());
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        match facts {
            Some(facts) => known.insert(key, facts),
            None => known.remove(&key),
        };
    }
}

/// Keeps the ledgers' facts current. Ends only with the process.
pub async fn follow_ledgers(api: Api<ConfigMap>, ledgers: Arc<Ledgers>, triggers: Triggers) {
    let config = every_object().labels(names::LEDGER_SELECTOR);
    let mut events = watcher(api, config).backoff(Pauses::default()).boxed();
    let mut listed = HashSet::new();
    while let Some(event) = events.next().await {
        if let Ok(Event::InitApply(ledger)) = &event {
            listed.insert((ledger.namespace().unwrap_or_default(), ledger.name_any()));
        }
        let ledger = match event {
            Ok(Event::InitApply(ledger) | Event::Apply(ledger)) => {
                ledgers.set(&ledger, Some(LedgerFacts::of(&ledger)));
                ledger
            }
            Ok(Event::Delete(ledger)) => {
                ledgers.set(&ledger, None);
                ledger
            }
            Ok(Event::Init) => {
                listed = HashSet::new();
                continue;
            }
            // A ledger deleted while the watch was interrupted is also one of the children, whose watch triggers the
            // pool.
            Ok(Event::InitDone) => {
                ledgers.keep_only(&std::mem::take(&mut listed));
                continue;
            }
            Err(error) => {
                tracing::warn!(%error, "the watch of ledgers was interrupted; it begins anew");
                triggers.metrics.interrupted("ConfigMap");
                continue;
            }
        };
        if let Some(parent) = Parent::of_owned(&ledger.metadata) {
            triggers.pull(parent).await;
        }
    }
}
