//! Starts a gateway: takes the ledger, then lists the pods. Both together show the owner of each pod, before any caller
//! is served.
//!
//! The order matters. The list does not show a pod that an earlier gateway makes after it, so no gateway would own that
//! pod. Once the ledger is taken, the earlier gateway soon makes no more pods, and the watch reports the last ones.

use std::sync::Arc;

use grpo_crds::sandbox_pool::Reset;
use grpo_sandbox_protocol::Signer;
use kube::Client;
use kube::api::Api;
use kube::runtime::watcher;
use tokio::task::JoinHandle;

use crate::core::{Core, Watched, now};
use crate::index::{Bounds, Index};
use crate::ledger::{self, Counters, Ledger, LedgerError};
use crate::pod::{Template, template_digest};
use crate::restore::restore;
use crate::sandbox::Sandboxes;

/// Why a gateway did not start.
#[derive(Debug, thiserror::Error)]
pub enum BeginError {
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    #[error("listing sandbox pods: {0}")]
    List(#[from] watcher::Error),
    #[error("making a sandbox pod: {0}")]
    Pod(#[from] serde_json::Error),
    #[error("tidying the ledger: more entries are to go than may wait")]
    Backlog,
}

/// The inputs of a new gateway.
pub struct Beginning {
    pub client: Client,
    pub signer: Signer,
    /// With any term; the ledger sets the real one.
    pub template: Template,
    pub bounds: Bounds,
    /// Names of the ledger's ConfigMaps.
    pub ledgers: Vec<String>,
    /// This gateway's unique mark in them.
    pub holder: String,
}

/// A gateway that knows its pool, and its tasks. It does not listen and does not probe egress yet.
pub struct Begun {
    pub core: Arc<Core>,
    pub counters: Counters,
    /// Ends when another gateway has taken the ledger.
    pub writer: JoinHandle<Result<(), LedgerError>>,
    pub tasks: Vec<JoinHandle<()>>,
}

impl Beginning {
    pub async fn begin(self) -> Result<Begun, BeginError> {
        let Self {
            client,
            signer,
            mut template,
            bounds,
            ledgers,
            holder,
        } = self;
        let (pods, maps) = (
            Api::namespaced(client.clone(), &template.namespace),
            Api::namespaced(client.clone(), &template.namespace),
        );
        let (ledger, entries, known) = Ledger::open(maps, &ledgers, &holder).await?;
        let (watched, listed) = Watched::begin(client, &template.namespace, &template.pool).await?;
        template.term = ledger.term();
        let made_from = template_digest(&template)?;
        let mut index = Index::new(bounds);
        let kept = template.spec.warm.min.iter();
        index.keep(kept.map(|kept| (kept.image.clone(), kept.count as usize)).collect());
        index.resets = template.spec.reset == Reset::ContainerRestart;
        let (changes, receiver) = ledger::channel();
        let packages = template.spec.package_index.as_ref();
        for change in restore(&mut index, entries, &listed, &made_from, packages, now()) {
            changes.try_send(change).map_err(|_| BeginError::Backlog)?;
        }
        let counters = known.counters.clone();
        let sandboxes = Sandboxes::new(signer);
        let core = Core::new(index, pods, changes, sandboxes, template, known);
        let writer = tokio::spawn(ledger.run(receiver));
        core.take_in(listed);
        let tasks = vec![
            tokio::spawn(core.clone().follow(watched)),
            tokio::spawn(core.clone().schedule()),
        ];
        Ok(Begun {
            core,
            counters,
            writer,
            tasks,
        })
    }
}
