//! Observes a run: pods, attempts and pools from memory, the volume and missing references from the API server.

use std::collections::{BTreeMap, BTreeSet};

use grpo_contracts::reason::Reason;
use grpo_crds::{
    GrpoRun,
    grpo_run::{AccessMode, Phase},
};
use grpo_operator_core::{
    admission::{Verdict, facts::VolumeTerms, whole},
    desired_object::Owner,
    grpo_run::{
        gpu_claims::{self, GpuClaimStep},
        observation::{QueueState, RunObservation, StoreVolume},
        queue::{self, QueueVerdict},
        references::{Reference, ReferenceKind, references},
    },
    names::role,
    pod_group::unbound,
    pods::PodFacts,
    quota::Maker,
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Secret};
use kube::{Resource, ResourceExt};

use crate::{
    context::Context,
    error::Error,
    parent::{Controlled, Parent},
};

/// The annotation with which the scheduler tells a provisioner on which node a claim's volume is needed.
const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";

pub async fn read(run: &GrpoRun, context: &Context) -> Result<RunObservation, Error> {
    let owner = Owner::of(run).ok_or_else(|| Error::Nameless {
        what: format!("GrpoRun {}", run.name_any()),
    })?;
    let parent = Parent::run(&owner);
    // Pods of a deleted run with the same name do not belong to this run.
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
        attempts: context.attempts.attempts(
            &owner.uid,
            run.status.as_ref().and_then(|status| status.attempts.as_ref()),
        ),
        driver_pods: context
            .pending_pods
            .with_made(&group_key(&owner.uid, role::DRIVER), driver_pods),
        trainer_pods: context
            .pending_pods
            .with_made(&group_key(&owner.uid, role::TRAINER), trainer_pods),
        inference: None,
        judge: None,
        sandboxes: None,
        store: StoreVolume::Missing,
        volumes: VolumeTerms::new(),
        provisioning: BTreeSet::new(),
        gpu_memory: context.admission.gpu_memory(),
        verdict: context.admission.verdict(&owner.uid),
        quota: None,
        unbound_engines: Vec::new(),
        engines_on_nodes: false,
        gpu_claims: Vec::new(),
        engines_left: false,
        queue: QueueState::default(),
        priority: None,
        missing: Vec::new(),
        now: Timestamp::now(),
        run: run.clone(),
        owner,
    };
    if run.spec.queue_name.is_some() || context.kueue.has_asked(&read.owner.uid) {
        let all_namespaces = context.admission.sees_nodes();
        (read.queue, read.priority) = context.kueue.ask(&read, &context.cluster, all_namespaces).await?;
    }
    if let QueueVerdict::Admitted(message) = queue::verdict(&read) {
        read.verdict = Some(Verdict {
            admitted: true,
            reason: Reason::Admitted,
            message,
        });
    }
    let found = volumes(&read, context).await?;
    (read.store, read.volumes, read.provisioning) = (found.store, found.terms, found.provisioning);
    if !read.has_begun() {
        read.missing = missing(&read, context).await?;
    }
    if run.spec.mode.needs_engines() {
        let pools = &context.watched.inference_pools;
        read.inference = pools.read(&read.owner.namespace, read.inference_name(), &parent).await;
    }
    if let Some(judge) = read.judge_name() {
        let pools = &context.watched.inference_pools;
        read.judge = pools.read(&read.owner.namespace, judge, &parent).await;
    }
    if run.spec.mode.needs_sandboxes() {
        let pools = &context.watched.sandbox_pools;
        read.sandboxes = pools
            .read(read.sandboxes_namespace(), read.sandboxes_name(), &parent)
            .await;
    }
    read.engines_left = run.spec.queue_name.is_some() && engines_left(&read, context);
    // A run that Kueue has not admitted makes no pods, and takes no other run's turn.
    let makes_pods = matches!(queue::verdict(&read), QueueVerdict::NoQueue | QueueVerdict::Admitted(_));
    read.quota = context.quotas.ask(&maker(run), makes_pods && lacks_pods(&read));
    if read.quota.as_ref().is_some_and(|wait| wait.refused) {
        read.unbound_engines = unbound_engines(&read, context);
    }
    if let Some(shape) = gpu_claims::shape(run).filter(|_| !is_over(run)) {
        read.engines_on_nodes = engines_on_nodes(&read, context);
        if gpu_claims::step(&read) == GpuClaimStep::Create {
            read.gpu_claims = context.cluster.earlier_gpu_claims(&read.owner, shape).await?;
        }
    }
    Ok(read)
}

/// Whether the run is suspended, or has ended.
fn is_over(run: &GrpoRun) -> bool {
    let phase = run.status.as_ref().and_then(|status| status.phase);
    run.spec.suspend || matches!(phase, Some(Phase::Succeeded | Phase::Failed))
}

/// The maker of the run's pods, including its own engines' pods.
pub fn maker(run: &GrpoRun) -> Maker {
    Maker {
        namespace: run.namespace().unwrap_or_default(),
        name: format!("{} {}", GrpoRun::kind(&()), run.name_any()),
        uid: run.uid().unwrap_or_default(),
    }
}

/// Whether pods of driver or trainer are missing.
fn lacks_pods(read: &RunObservation) -> bool {
    let groups = [(role::DRIVER, &read.driver_pods), (role::TRAINER, &read.trainer_pods)];
    !is_over(&read.run)
        && whole(&read.run).iter().any(|(role, wanted)| {
            let group = groups.iter().find(|(name, _)| name == role);
            group.is_some_and(|(_, pods)| pods.iter().filter(|pod| !pod.deleting).count() < *wanted as usize)
        })
}

/// Pods of the run's own engines that are not on a node.
fn unbound_engines(read: &RunObservation, context: &Context) -> Vec<String> {
    let Some(pool) = read.own_inference() else {
        return Vec::new();
    };
    let uid = pool.uid().unwrap_or_default();
    let parent = Parent {
        kind: Controlled::InferencePool,
        namespace: read.owner.namespace.clone(),
        name: pool.name_any(),
    };
    let pods = context.pods.pods(&parent, role::ENGINE).into_iter();
    let pods = pods
        .filter(|pod| pod.owner.as_deref() == Some(&uid))
        .map(|pod| pod.facts);
    unbound(&context.pending_pods.with_made(&uid, pods.collect()))
}

/// Whether a pod of the run's own engines is on a node, also one of an earlier pool: it uses GPUs of the trainer.
fn engines_on_nodes(read: &RunObservation, context: &Context) -> bool {
    let engines = context.pods.pods(&Parent::inference_pool(&read.owner), role::ENGINE);
    engines
        .iter()
        .any(|pod| pod.facts.node_name.is_some() && !pod.facts.is_finished())
}

/// Whether a pod of the run's own engines has not ended, also one of an earlier pool. Engines of another owner's pool
/// with the run's name are not the run's.
fn engines_left(read: &RunObservation, context: &Context) -> bool {
    let own = read.own_inference().and_then(|pool| pool.uid());
    let foreign = read
        .inference
        .as_ref()
        .and_then(|pool| pool.uid())
        .filter(|_| own.is_none());
    let engines = context.pods.pods(&Parent::inference_pool(&read.owner), role::ENGINE);
    read.run.spec.inference.pool.is_some()
        && engines
            .iter()
            .any(|pod| !pod.facts.is_finished() && (pod.owner.is_none() || pod.owner != foreign))
}

/// Key of a group's pods in the pending pods.
pub fn group_key(uid: &str, role: &str) -> String {
    format!("{uid}/{role}")
}

/// References in the spec to missing objects.
async fn missing(read: &RunObservation, context: &Context) -> Result<Vec<Reference>, Error> {
    let (namespace, mut missing) = (&read.owner.namespace, Vec::new());
    for reference in references(&read.run.spec) {
        let is_there = match reference.kind {
            ReferenceKind::Secret => context
                .cluster
                .metadata::<Secret>(namespace, &reference.name)
                .await?
                .is_some(),
            ReferenceKind::ConfigMap => {
                let found: Option<ConfigMap> = context.cluster.get(namespace, &reference.name).await?;
                let values = found.and_then(|found| found.data).unwrap_or_default();
                reference.key.as_ref().is_none_or(|key| values.contains_key(key))
            }
            // An operator of one namespace may read no object of the whole cluster.
            ReferenceKind::DeviceClass => {
                !context.admission.sees_nodes() || context.cluster.has_device_class(&reference.name).await?
            }
        };
        if !is_there {
            missing.push(reference);
        }
    }
    Ok(missing)
}

/// What is known about the volumes of a run's pods.
struct Volumes {
    store: StoreVolume,
    /// Node requirements of the volumes whose claims are bound.
    terms: VolumeTerms,
    /// Claims without a volume whose node the scheduler has chosen.
    provisioning: BTreeSet<String>,
}

async fn volumes(read: &RunObservation, context: &Context) -> Result<Volumes, Error> {
    let uid = &read.owner.uid;
    let (mut terms, kind) = match read.is_admitted() {
        true => (context.run_volumes.terms(uid), context.run_volumes.of(uid)),
        false => (VolumeTerms::new(), None),
    };
    let mut found = BTreeMap::new();
    for name in read.claims_to_look_up(&terms, kind) {
        let claim: Option<PersistentVolumeClaim> = context.cluster.get(&read.owner.namespace, &name).await?;
        found.extend(claim.map(|claim| (name, claim)));
    }
    let store = store(read, &found, kind, context);
    let mut provisioning = BTreeSet::new();
    for (name, claim) in found {
        let has_node = claim.annotations().contains_key(SELECTED_NODE);
        match claim.spec.and_then(|spec| spec.volume_name) {
            // Volumes are cluster-scoped, as nodes are.
            Some(bound) => {
                let of_volume = match context.admission.sees_nodes() {
                    true => context.cluster.volume_terms(&bound).await?,
                    false => Vec::new(),
                };
                terms.insert(name, of_volume);
            }
            None if has_node => {
                provisioning.insert(name);
            }
            None => {}
        }
    }
    context.run_volumes.keep_terms(uid, &terms);
    Ok(Volumes {
        store,
        terms,
        provisioning,
    })
}

/// The kind of the store's volume, by its claim if that was looked up now. `kind`: what was known before.
fn store(
    read: &RunObservation,
    found: &BTreeMap<String, PersistentVolumeClaim>,
    kind: Option<StoreVolume>,
    context: &Context,
) -> StoreVolume {
    let of_modes = |shared: bool| match shared {
        true => StoreVolume::Shared,
        false => StoreVolume::OneNode,
    };
    let claim = read.store_claim().and_then(|name| found.get(&name));
    if let Some(claim) = claim {
        let modes = claim.spec.as_ref().and_then(|spec| spec.access_modes.as_ref());
        let volume = of_modes(modes.into_iter().flatten().any(|mode| mode == "ReadWriteMany"));
        context.run_volumes.keep(&read.owner.uid, volume);
        return volume;
    }
    let store = &read.run.spec.store;
    match (&store.persistent_volume_claim, &store.volume_claim_template) {
        // After admission it is looked up only until its volume is known.
        (Some(_), _) => kind.unwrap_or(StoreVolume::Missing),
        (None, Some(template)) => of_modes(template.access_modes.contains(&AccessMode::ReadWriteMany)),
        // An object store: no volume is mounted.
        (None, None) => StoreVolume::Shared,
    }
}
