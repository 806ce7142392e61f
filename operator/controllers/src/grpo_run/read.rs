//! What there is of a run: its pods and attempts from memory, its pools and its volume from the API server.

use grpo_crds::{GrpoRun, grpo_run::AccessMode};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt;

use crate::{
    controller::Context,
    error::Error,
    watches::{Controlled, Parent},
};
use grpo_operator_core::{
    child::Owner,
    grpo_run::observation::{RunObservation, StoreVolume},
    names::{self, role},
    pods::PodFacts,
};

/// Where the scheduler notes the node for which a volume that waits for its first consumer is made.
const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";

pub async fn read(run: &GrpoRun, context: &Context) -> Result<RunObservation, Error> {
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

    let mut read = RunObservation {
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
        store: StoreVolume::Missing,
        store_node: None,
        gpu_memory: context.admission.gpu_memory(),
        verdict: context.admission.verdict(&owner.uid),
        now: Timestamp::now(),
        run: run.clone(),
        owner,
    };
    (read.store, read.store_node) = store(&read, context).await?;
    if run.spec.mode.needs_engines() {
        let pools = &context.mirrors.inference_pools;
        read.inference = pools.read(&read.owner.namespace, read.inference_name(), &parent).await;
    }
    if run.spec.mode.needs_sandboxes() {
        let pools = &context.mirrors.sandbox_pools;
        read.sandboxes = pools.read(&read.owner.namespace, read.sandboxes_name(), &parent).await;
    }
    Ok(read)
}

/// Under which name the memory keeps a group's pods.
pub fn memory_key(uid: &str, role: &str) -> String {
    format!("{uid}/{role}")
}

/// What holds the store, and the node that it is on where it is on one.
async fn store(read: &RunObservation, context: &Context) -> Result<(StoreVolume, Option<String>), Error> {
    let store = &read.run.spec.store;
    let admitted = read.verdict.as_ref().is_some_and(|verdict| verdict.admitted);
    let name = match (&store.persistent_volume_claim, &store.volume_claim_template) {
        (Some(existing), _) => {
            // Read once, not at each of the run's events. Only admission wants to know the node, and only until it has
            // let the run in.
            if admitted && let Some(known) = context.memory.store(&read.owner.uid) {
                return Ok((known, None));
            }
            existing.claim_name.clone()
        }
        (None, Some(template)) if template.access_modes.contains(&AccessMode::ReadWriteMany) => {
            return Ok((StoreVolume::Shared, None));
        }
        (None, Some(_)) if admitted => {
            return Ok((StoreVolume::OneNode, None));
        }
        (None, Some(_)) => names::store_claim(&read.owner.name),
        // An object store: nothing is mounted.
        (None, None) => return Ok((StoreVolume::Shared, None)),
    };
    let claim: Option<PersistentVolumeClaim> = context.cluster.get(&read.owner.namespace, &name).await?;
    let Some(claim) = claim else {
        let own = store.volume_claim_template.is_some();
        return Ok((
            if own {
                StoreVolume::OneNode
            } else {
                StoreVolume::Missing
            },
            None,
        ));
    };
    let node = claim.annotations().get(SELECTED_NODE).cloned();
    let modes = claim.spec.and_then(|spec| spec.access_modes).unwrap_or_default();
    Ok(if modes.iter().any(|mode| mode == "ReadWriteMany") {
        context.memory.keep_store(&read.owner.uid, StoreVolume::Shared);
        (StoreVolume::Shared, None)
    } else {
        context.memory.keep_store(&read.owner.uid, StoreVolume::OneNode);
        (StoreVolume::OneNode, node)
    })
}
