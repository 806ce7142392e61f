//! Observes a run: pods, attempts and pools from memory, the volume and missing references from the API server.

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
    names::{self, role},
    pod_group::unbound,
    pods::PodFacts,
    quota::Maker,
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, NodeSelectorTerm, PersistentVolumeClaim, Secret};
use kube::{Resource, ResourceExt};

use crate::{
    context::Context,
    error::Error,
    parent::{Controlled, Parent},
};

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
    (read.store, read.volumes) = volumes(&read, context).await?;
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

/// The kind of the store's volume, and the node requirements of all volumes of the run's pods.
///
/// While the run waits they are read anew: a person may replace a claim. Later the known ones are kept: pods that are
/// lost, and engines that are added, must go where their volumes can be reached too.
async fn volumes(read: &RunObservation, context: &Context) -> Result<(StoreVolume, VolumeTerms), Error> {
    let (volume, of_store) = store(read, context).await?;
    let uid = &read.owner.uid;
    if read.verdict.as_ref().is_some_and(|verdict| verdict.admitted) {
        return Ok((volume, context.run_volumes.terms(uid)));
    }
    let mut volumes = VolumeTerms::new();
    volumes.extend(read.store_claim().zip(of_store));
    for claim in read.named_claims() {
        let found: Option<PersistentVolumeClaim> = context.cluster.get(&read.owner.namespace, &claim).await?;
        if let Some(bound) = found.and_then(|found| found.spec?.volume_name) {
            // Volumes are cluster-scoped, as nodes are.
            let terms = match context.admission.sees_nodes() {
                true => context.cluster.volume_terms(&bound).await?,
                false => Vec::new(),
            };
            volumes.insert(claim, terms);
        }
    }
    context.run_volumes.keep_terms(uid, &volumes);
    Ok((volume, volumes))
}

/// The kind of the store's volume, and the volume's node requirements. `None`: it does not exist yet, even if the
/// scheduler has chosen its node; it may choose another one.
async fn store(
    read: &RunObservation,
    context: &Context,
) -> Result<(StoreVolume, Option<Vec<NodeSelectorTerm>>), Error> {
    let store = &read.run.spec.store;
    let admitted = read.verdict.as_ref().is_some_and(|verdict| verdict.admitted);
    let nowhere = |volume: StoreVolume| Ok((volume, None));
    let (name, own) = match (&store.persistent_volume_claim, &store.volume_claim_template) {
        (Some(existing), _) => {
            // Read once, not at each event of the run. Only admission needs the node requirements, and only until it
            // has admitted the run.
            if admitted && let Some(known) = context.run_volumes.of(&read.owner.uid) {
                return nowhere(known);
            }
            (existing.claim_name.clone(), None)
        }
        (None, Some(template)) => {
            let shared = template.access_modes.contains(&AccessMode::ReadWriteMany);
            let volume = if shared {
                StoreVolume::Shared
            } else {
                StoreVolume::OneNode
            };
            if admitted {
                return nowhere(volume);
            }
            (names::store_claim(&read.owner.name), Some(volume))
        }
        // An object store: no volume is mounted.
        (None, None) => return nowhere(StoreVolume::Shared),
    };
    let claim: Option<PersistentVolumeClaim> = context.cluster.get(&read.owner.namespace, &name).await?;
    let Some(claim) = claim else {
        return nowhere(own.unwrap_or(StoreVolume::Missing));
    };
    let spec = claim.spec.unwrap_or_default();
    let shared = spec.access_modes.iter().flatten().any(|mode| mode == "ReadWriteMany");
    let volume = if shared {
        StoreVolume::Shared
    } else {
        StoreVolume::OneNode
    };
    context.run_volumes.keep(&read.owner.uid, volume);
    let terms = match &spec.volume_name {
        Some(name) if context.admission.sees_nodes() => Some(context.cluster.volume_terms(name).await?),
        Some(_) => Some(Vec::new()),
        None => None,
    };
    Ok((volume, terms))
}
