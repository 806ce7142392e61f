//! What there is of a run: its pods and attempts from memory, its pools and its volume from the API server.

use grpo_crds::{GrpoRun, InferencePool, SandboxPool, grpo_run::Attempts};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt;

use crate::{
    child::Owner,
    controller::Context,
    error::Error,
    names::role,
    pods::PodFacts,
    watches::{Controlled, Parent},
};

/// Everything a decision about a run is made from.
#[derive(Clone, Debug)]
pub struct Seen {
    pub run: GrpoRun,
    pub owner: Owner,
    pub attempts: Attempts,
    pub driver_pods: Vec<PodFacts>,
    pub trainer_pods: Vec<PodFacts>,
    /// The pool the run samples from, when it exists.
    pub inference: Option<InferencePool>,
    /// The pool the run's sandboxes come from, when it exists.
    pub sandboxes: Option<SandboxPool>,
    pub store: StoreVolume,
    pub now: Timestamp,
}

/// The volume of the run's store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreVolume {
    /// Pods of several nodes may write it.
    Shared,
    /// All pods that mount it have to be on one node.
    OneNode,
    /// The claim that the spec names does not exist.
    Missing,
}

impl Seen {
    /// Name of the InferencePool the run samples from.
    pub fn inference_name(&self) -> &str {
        self.run
            .spec
            .inference
            .pool_ref
            .as_ref()
            .map_or(&self.owner.name, |pool| &pool.name)
    }

    /// Name of the SandboxPool the run's sandboxes come from.
    pub fn sandboxes_name(&self) -> &str {
        self.run
            .spec
            .sandboxes
            .pool_ref
            .as_ref()
            .map_or(&self.owner.name, |pool| &pool.name)
    }
}

pub async fn read(run: &GrpoRun, context: &Context) -> Result<Seen, Error> {
    let owner = Owner::of(run).ok_or_else(|| Error::Nameless {
        what: format!("GrpoRun {}", run.name_any()),
    })?;
    let parent = Parent {
        kind: Controlled::Run,
        namespace: owner.namespace.clone(),
        name: owner.name.clone(),
    };
    // Pods of a deleted run of the same name are not this run's.
    let all: Vec<(String, PodFacts)> = [role::DRIVER, role::TRAINER]
        .iter()
        .flat_map(|role| context.pods.pods(&parent, role))
        .filter(|pod| pod.owner.as_deref() == Some(&owner.uid))
        .map(|pod| (pod.role, pod.facts))
        .collect();
    let seen = |wanted: &str| {
        all.iter()
            .filter(|(role, _)| role == wanted)
            .map(|(_, facts)| facts.clone())
            .collect()
    };
    let (driver_pods, trainer_pods) = (seen(role::DRIVER), seen(role::TRAINER));

    let mut read = Seen {
        attempts: context.memory.attempts(
            &owner.uid,
            run.status.as_ref().and_then(|status| status.attempts.as_ref()),
        ),
        driver_pods: context
            .memory
            .with_made(&memory_key(&owner.uid, role::DRIVER), driver_pods),
        trainer_pods: context
            .memory
            .with_made(&memory_key(&owner.uid, role::TRAINER), trainer_pods),
        inference: None,
        sandboxes: None,
        store: store(run, &owner, context).await?,
        now: Timestamp::now(),
        run: run.clone(),
        owner,
    };
    read.inference = context
        .cluster
        .get(&read.owner.namespace, read.inference_name())
        .await?;
    read.sandboxes = context
        .cluster
        .get(&read.owner.namespace, read.sandboxes_name())
        .await?;
    Ok(read)
}

/// Under which name the memory keeps a group's pods.
pub fn memory_key(uid: &str, role: &str) -> String {
    format!("{uid}/{role}")
}

async fn store(run: &GrpoRun, owner: &Owner, context: &Context) -> Result<StoreVolume, Error> {
    use grpo_crds::grpo_run::AccessMode;

    if let Some(template) = &run.spec.store.volume_claim_template {
        let shared = template.access_modes.contains(&AccessMode::ReadWriteMany);
        return Ok(if shared {
            StoreVolume::Shared
        } else {
            StoreVolume::OneNode
        });
    }
    let Some(existing) = &run.spec.store.persistent_volume_claim else {
        return Ok(StoreVolume::Missing);
    };
    let claim: Option<PersistentVolumeClaim> = context.cluster.get(&owner.namespace, &existing.claim_name).await?;
    let Some(claim) = claim else {
        return Ok(StoreVolume::Missing);
    };
    let shared = claim
        .spec
        .and_then(|spec| spec.access_modes)
        .is_some_and(|modes| modes.iter().any(|mode| mode == "ReadWriteMany"));
    Ok(if shared {
        StoreVolume::Shared
    } else {
        StoreVolume::OneNode
    })
}
