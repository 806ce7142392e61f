//! The observed state of a run, as input of a decision.

use grpo_crds::{
    GrpoRun, InferencePool, SandboxPool,
    grpo_run::{Attempts, Mode},
};
use jiff::Timestamp;
use k8s_openapi::api::resource::v1::ResourceClaim;
use serde_json::{Value, json};
use std::collections::BTreeSet;

use super::references::Reference;
use crate::{
    admission::{Verdict, facts::VolumeTerms},
    desired_object::{DesiredObject, Owner},
    kueue::{Placements, Workload},
    names,
    ownership::is_owned_by,
    pods::PodFacts,
    quota::QuotaWait,
};

/// All input of a decision about a run.
#[derive(Clone, Debug)]
pub struct RunObservation {
    pub run: GrpoRun,
    pub owner: Owner,
    pub attempts: Attempts,
    pub driver_pods: Vec<PodFacts>,
    pub trainer_pods: Vec<PodFacts>,
    /// The pool the run samples from, if it exists.
    pub inference: Option<InferencePool>,
    /// The pool that judges the run's turns, if it exists.
    pub judge: Option<InferencePool>,
    /// The pool of the run's sandboxes, if it exists.
    pub sandboxes: Option<SandboxPool>,
    pub store: StoreVolume,
    /// Node requirements of the volumes that the run's pods mount, once their claims are bound.
    pub volumes: VolumeTerms,
    /// Claims without a volume whose node the scheduler has chosen.
    pub provisioning: BTreeSet<String>,
    /// Memory of the largest GPU, in MiB, if nodes report it.
    pub gpu_memory: Option<u64>,
    /// Admission's verdict on the run.
    pub verdict: Option<Verdict>,
    /// Why the run creates no pods now, if a ResourceQuota is short.
    pub quota: Option<QuotaWait>,
    /// Pods of the run's own engines to delete, because they are not on a node.
    pub unbound_engines: Vec<String>,
    /// A pod of the run's own engines is on a node, also one of an earlier pool. Only looked at if they share GPUs with
    /// the trainer.
    pub engines_on_nodes: bool,
    /// The run's claims on shared GPUs, if they may be of an earlier spec.
    pub gpu_claims: Vec<ResourceClaim>,
    /// A pod of the run's own engines has not ended, also one of an earlier pool. Only looked at if the run has a
    /// queue: it uses its quota.
    pub engines_left: bool,
    /// What Kueue says about the run. Only asked if the run has a queue.
    pub queue: QueueState,
    /// The value of the class that decides the run's place in Kueue's queue. Only read before its Workload is made.
    pub priority: Option<i32>,
    /// Missing objects that the spec refers to. Only checked before a pod is on a node.
    pub missing: Vec<Reference>,
    pub now: Timestamp,
}

/// The run's Workload of Kueue, as it was read.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum QueueState {
    /// The run has no Workload, or no queue.
    #[default]
    Unasked,
    /// The cluster does not serve Kueue's API.
    NotServed,
    /// The operator watches one namespace, and may not read ResourceFlavors.
    NotAllowed,
    /// There is no class of this kind and name, which decides the run's place in the queue.
    LacksClass(String),
    Asked(Box<Asked>),
}

/// A Workload of the run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Asked {
    pub workload: Workload,
    /// Where its pods are placed, if it is admitted.
    pub placements: Placements,
    /// The ResourceFlavor of its admission that is missing: its pods cannot be placed.
    pub lacks_flavor: Option<String>,
}

impl Asked {
    /// A Workload as if Kueue admitted it at once, without a flavor.
    pub fn granted(workload: &DesiredObject) -> Option<Self> {
        let mut object = workload.object.clone();
        object["status"] = json!({"conditions": [{
            "type": "Admitted", "status": "True", "reason": "Admitted", "message": "", "lastTransitionTime": "1970-01-01T00:00:00Z",
        }]});
        Some(Self {
            workload: serde_json::from_value(object).ok()?,
            ..Self::default()
        })
    }
}

/// The volume of the run's store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreVolume {
    /// Pods of several nodes may write it.
    Shared,
    /// All pods that mount the volume must be on one node.
    OneNode,
    /// The volume claim named by the spec does not exist.
    Missing,
}

impl RunObservation {
    /// The claim of the store's volume; none in a bucket.
    pub fn store_claim(&self) -> Option<String> {
        let store = &self.run.spec.store;
        let existing = store
            .persistent_volume_claim
            .as_ref()
            .map(|claim| claim.claim_name.clone());
        existing.or_else(|| {
            let template = store.volume_claim_template.as_ref();
            template.map(|_| names::store_claim(&self.owner.name))
        })
    }

    /// The other PersistentVolumeClaims that the spec names: of rows, models and caches. A claim that no pod mounts is
    /// harmless here.
    pub fn named_claims(&self) -> BTreeSet<String> {
        let mut claims = BTreeSet::new();
        collect_claims(&json!(self.run.spec), &mut claims);
        if let Some(store) = self.store_claim() {
            claims.remove(&store);
        }
        claims
    }

    /// Whether admission, this operator's or Kueue's, has admitted the run.
    pub fn is_admitted(&self) -> bool {
        self.verdict.as_ref().is_some_and(|verdict| verdict.admitted)
    }

    /// All PersistentVolumeClaims of the run.
    fn claims(&self) -> BTreeSet<String> {
        let mut claims = self.named_claims();
        claims.extend(self.store_claim());
        claims
    }

    /// The claims to look up now. While the run waits, all: a person may replace a claim. Later those whose volumes are
    /// not known: the volume of a claim may be made after admission, and pods that are lost, and engines that are
    /// added, must go where it can be reached. Kueue places the pods of a run with a queue without them.
    ///
    /// `known`: the volumes that are known. `store`: the kind of the store's volume, if it was looked up before.
    pub fn claims_to_look_up(&self, known: &VolumeTerms, store: Option<StoreVolume>) -> BTreeSet<String> {
        let mut claims = self.claims();
        if self.is_admitted() {
            let spec = &self.run.spec;
            let existing = spec.store.persistent_volume_claim.as_ref();
            let without_kind = existing.filter(|_| store.is_none()).map(|claim| &claim.claim_name);
            let with_places = spec.queue_name.is_none();
            claims.retain(|claim| Some(claim) == without_kind || (with_places && !known.contains_key(claim)));
        }
        claims
    }

    /// Whether a claim of the run has no volume yet.
    pub fn lacks_volumes(&self) -> bool {
        self.claims().iter().any(|claim| !self.volumes.contains_key(claim))
    }

    /// Name of the InferencePool the run samples from.
    pub fn inference_name(&self) -> &str {
        self.run
            .spec
            .inference
            .pool_ref
            .as_ref()
            .map_or(&self.owner.name, |pool| &pool.name)
    }

    /// Name of the InferencePool that judges the run's turns. `None`: no turn is judged.
    pub fn judge_name(&self) -> Option<&str> {
        let spec = &self.run.spec;
        let process = spec.reward.process.as_ref();
        let process = process.filter(|_| spec.mode == Mode::Train)?;
        Some(&process.pool_ref.name)
    }

    /// Whether a pod of driver or trainer has not ended, on a node or not.
    pub fn has_pods(&self) -> bool {
        let mut pods = self.driver_pods.iter().chain(&self.trainer_pods);
        pods.any(|pod| !pod.is_finished() || pod.outlived)
    }

    /// Whether a pod of the run is on a node.
    pub fn has_begun(&self) -> bool {
        let mut pods = self.driver_pods.iter().chain(&self.trainer_pods);
        pods.any(|pod| pod.node_name.is_some() && !pod.deleting && !pod.is_finished())
    }

    /// The InferencePool that was made for the run.
    pub fn own_inference(&self) -> Option<&InferencePool> {
        let pool = self.inference.as_ref()?;
        Some(pool).filter(|pool| is_owned_by(&pool.metadata, &self.owner.uid))
    }

    /// Namespace of the SandboxPool of the run's sandboxes.
    pub fn sandboxes_namespace(&self) -> &str {
        let pool = self.run.spec.sandboxes.pool_ref.as_ref();
        let named = pool.and_then(|pool| pool.namespace.as_deref());
        named.unwrap_or(&self.owner.namespace)
    }

    /// Name of the SandboxPool of the run's sandboxes.
    pub fn sandboxes_name(&self) -> &str {
        self.run
            .spec
            .sandboxes
            .pool_ref
            .as_ref()
            .map_or(&self.owner.name, |pool| &pool.name)
    }
}

/// Every `claimName` of a value: a source that the API gets later is found too.
fn collect_claims(value: &Value, claims: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                match field {
                    Value::String(claim) if name == "claimName" => {
                        claims.insert(claim.clone());
                    }
                    _ => collect_claims(field, claims),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| collect_claims(item, claims)),
        _ => {}
    }
}
