//! Gives graders access to the pool's package index: resolves its host, labels the pod, and waits until the network
//! lets the pod through.
//!
//! The label is the durable record: it is on the pod before the lease is in the ledger, and a pod with the label is
//! never leased again.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use grpo_contracts::names::GRADER;
use grpo_crds::sandbox_pool::PackageIndex;
use grpo_sandbox_protocol::{ErrorBody, PackageIndexState, ProbeReply, ProbeRequest};
use hyper::Method;
use k8s_openapi::api::core::v1::{HostAlias, Pod};
use kube::api::{Patch, PatchParams};
use serde_json::json;
use tokio::net::{TcpStream, lookup_host};
use tokio::time::{Instant, timeout};

use super::Core;
use crate::index::ActiveLease;
use crate::package_index::{addresses, aliases, name, reaches_packages, unreachable};
use crate::pod::INDEX_ANNOTATION;
use crate::sandbox::Holder;

/// The network opens to a labelled pod after a moment. A pod without access after this time will not get it.
const LET_OUT_WITHIN: Duration = Duration::from_secs(20);
/// Deadline of one round of connections.
const CONNECT_WITHIN: Duration = Duration::from_secs(1);
/// Pause between two rounds.
const PAUSE: Duration = Duration::from_millis(200);
/// Deadline for the API server's answer to the label patch. After it the grader's lease is refused.
const LABELLED_WITHIN: Duration = Duration::from_secs(10);
/// Deadline of the DNS lookup for the index. No agent waits longer for it.
const FOUND_WITHIN: Duration = Duration::from_secs(2);
/// How long resolved addresses count.
const BELIEVED_FOR: Duration = Duration::from_secs(30);
/// Pause after a failed lookup. Pods are made meanwhile, without waiting for it.
const LOOK_AGAIN_AFTER: Duration = Duration::from_secs(5);

const CHECK_NETWORK: &str = "check that it runs, that spec.packageIndex of the pool names its pods or addresses and the \
     port of its pods (behind a Service: targetPort), and that the policies of its namespace let in sandboxes and the \
     gateway of this pool";

/// The last resolved addresses of the index's host.
#[derive(Debug, Default)]
pub struct Addresses {
    found: Vec<IpAddr>,
    look_again_at: Option<Instant>,
}

impl Core {
    /// The pool's package index, if this lease may reach it.
    pub(super) fn packages_for(&self, held: &ActiveLease) -> Option<&PackageIndex> {
        let index = self.template.spec.package_index.as_ref();
        index.filter(|_| reaches_packages(&held.entry))
    }

    /// The package index that the sandbox of a lease already reaches, if any.
    pub fn packages_of(&self, held: &ActiveLease) -> Option<&PackageIndex> {
        let index = self.packages_for(held)?;
        self.look(|pool| pool.is_graders(held)).then_some(index)
    }

    /// The hosts-file entries of a new pod. Empty if the host is not found: agents need none.
    pub(super) async fn package_aliases(&self) -> Vec<HostAlias> {
        match &self.template.spec.package_index {
            Some(index) => aliases(index, self.package_addresses(index).await),
            None => Vec::new(),
        }
    }

    async fn package_addresses(&self, index: &PackageIndex) -> Vec<IpAddr> {
        let Some(name) = name(index) else {
            return index.host().parse().into_iter().collect();
        };
        let mut known = self.package_host.lock().await;
        if known.look_again_at.is_none_or(|at| at <= Instant::now()) {
            let looked = timeout(FOUND_WITHIN, lookup_host((name, index.url_port()))).await;
            let is_found = matches!(looked, Ok(Ok(_)));
            let pause = if is_found { BELIEVED_FOR } else { LOOK_AGAIN_AFTER };
            known.look_again_at = Some(Instant::now() + pause);
            match looked {
                Ok(Ok(found)) => known.found = found.map(|address| address.ip()).collect(),
                Ok(Err(error)) => tracing::warn!(%error, name, "looking up the package index; graders wait for it"),
                Err(_) => tracing::warn!(name, "DNS does not answer for the package index; graders wait for it"),
            }
        }
        known.found.clone()
    }

    /// Labels the pod of a grader's lease. Returns the addresses at which the pod finds the index. From the first try
    /// on the pod counts as a grader's, because an answer may be lost.
    pub(super) async fn label_for_packages(
        &self,
        held: &ActiveLease,
        index: &PackageIndex,
    ) -> Result<Vec<SocketAddr>, ErrorBody> {
        let sandbox = &held.entry.sandbox;
        self.look(|pool| pool.becomes_graders(sandbox));
        let label = Patch::Merge(json!({"metadata": {
            "uid": held.entry.pod_uid,
            "labels": {GRADER: "true"},
            "annotations": {INDEX_ANNOTATION: index.url},
        }}));
        let parameters = PatchParams::default();
        let labelled = timeout(LABELLED_WITHIN, self.pods.patch(sandbox, &parameters, &label));
        let pod: Pod = match labelled.await {
            Ok(Ok(pod)) => pod,
            Ok(Err(error)) => {
                let what = format!("labelling pod {sandbox} failed: {error}");
                return Err(unreachable(
                    index,
                    &what,
                    "check the gateway's Role, which the operator writes",
                ));
            }
            Err(_) => {
                let what = format!("the API server did not label pod {sandbox} within {LABELLED_WITHIN:?}");
                return Err(unreachable(index, &what, "check the API server"));
            }
        };
        self.metrics.wrote("patch");
        let written = pod.spec.and_then(|spec| spec.host_aliases).unwrap_or_default();
        match addresses(index, &written) {
            found if found.is_empty() => {
                let what = format!(
                    "the cluster's DNS had no address of {} when pod {sandbox} was made",
                    index.host()
                );
                let remedy = "check the host in spec.packageIndex.url, and that the gateway's pod can ask DNS for it";
                Err(unreachable(index, &what, remedy))
            }
            found => Ok(found),
        }
    }

    /// Returns when the sandbox can connect to the index, and the gateway too. The gateway looks again when tests have
    /// failed ([`Core::packages_now`]).
    pub(super) async fn await_packages(
        &self,
        held: &ActiveLease,
        index: &PackageIndex,
        addresses: &[SocketAddr],
    ) -> Result<(), ErrorBody> {
        let began = Instant::now();
        while let Err(why) = self.connect_from(held, addresses).await {
            if began.elapsed() > LET_OUT_WITHIN {
                let sandbox = &held.entry.sandbox;
                let what = format!("sandbox {sandbox} could not connect to it within {LET_OUT_WITHIN:?} ({why})");
                return Err(unreachable(index, &what, CHECK_NETWORK));
            }
            tokio::time::sleep(PAUSE).await;
        }
        connect(addresses).await.map_err(|why| {
            let what = format!("a sandbox reached it, but the gateway could not connect to it ({why})");
            unreachable(index, &what, CHECK_NETWORK)
        })
    }

    /// One round of connections from the sandbox of a lease.
    async fn connect_from(&self, held: &ActiveLease, addresses: &[SocketAddr]) -> Result<(), String> {
        let request = ProbeRequest {
            addresses: addresses.to_vec(),
            timeout_millis: CONNECT_WITHIN.as_millis() as u64,
        };
        let body = serde_json::to_vec(&request).map_err(|e| e.to_string())?;
        let within = CONNECT_WITHIN * 5;
        let asked = self
            .sandboxes
            .send(Holder::of(held), Method::POST, "/probe", body.into(), within);
        let (status, body) = asked.await.map_err(|e| e.to_string())?;
        if !status.is_success() {
            return Err(format!(
                "sandboxd answered {status}: {}",
                String::from_utf8_lossy(&body)
            ));
        }
        let reply: ProbeReply = serde_json::from_slice(&body).map_err(|e| format!("sandboxd's answer: {e}"))?;
        match reply.reached.is_empty() {
            true => Err(format!("no connection to {}", told(addresses))),
            false => Ok(()),
        }
    }

    /// Whether the index answers now, seen from the gateway. The workload in a sandbox must not decide this, or a patch
    /// could make its own grading void.
    pub async fn packages_now(&self) -> PackageIndexState {
        let Some(index) = &self.template.spec.package_index else {
            return PackageIndexState::default();
        };
        let found = self.package_addresses(index).await;
        let addresses: Vec<SocketAddr> = found
            .into_iter()
            .map(|ip| SocketAddr::new(ip, index.url_port()))
            .collect();
        let reached = match addresses.is_empty() {
            true => Err(format!("the cluster's DNS has no address of {}", index.host())),
            false => connect(&addresses).await,
        };
        PackageIndexState {
            url: Some(index.url.clone()),
            unreachable: reached.err(),
        }
    }
}

/// Connects to the first address that answers.
async fn connect(addresses: &[SocketAddr]) -> Result<(), String> {
    match timeout(CONNECT_WITHIN * 3, TcpStream::connect(addresses)).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(format!("connecting to {}: {error}", told(addresses))),
        Err(_) => Err(format!("no connection to {}", told(addresses))),
    }
}

fn told(addresses: &[SocketAddr]) -> String {
    let told: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    told.join(", ")
}
