//! Executes the decision about a run: first what it gives back, then its objects, then its pods, so that a pod finds
//! what it mounts.

use grpo_crds::{GrpoRun, InferencePool, SandboxPool};
use grpo_operator_core::{
    desired_object::{DesiredObject, Owner},
    grpo_run::{
        decision::{AdmissionStep, ClaimStep, Decision, WorkloadStep},
        gpu_claims::shape,
        observation::{QueueState, RunObservation},
    },
    kueue::Workload,
    names::{CLAIM_FIELD_MANAGER, role},
    ownership::is_owned_by,
};
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::{Resource, ResourceExt};
use serde_json::{Value, json};

use super::read::group_key;
use crate::{context::Context, error::Error, gpu_claims::is_gpu_claim, parent::Parent};

/// Gives back what the run holds no more. Nothing that the API server may refuse comes before: it must not keep GPUs.
pub async fn give_back(seen: &RunObservation, decision: &Decision, context: &Context) -> Result<(), Error> {
    // Otherwise admission could lift the gates of pods that are deleted now.
    if decision.admission == AdmissionStep::Forget {
        context.admission.forget(&seen.owner.uid);
    }
    delete_pods(seen, &decision.give_back, context).await?;
    if decision.claim == ClaimStep::Release {
        step_claim(seen, decision.claim, context).await?;
    }
    delete_services(seen, decision, context).await?;
    if decision.delete_pools {
        delete_own_pools(seen, context).await?;
    }
    if decision.delete_gpu_claims {
        context.cluster.delete_gpu_claims(&seen.owner).await?;
    }
    if returns_quota(decision) {
        step_workload(seen, &decision.workload, context).await?;
    }
    Ok(())
}

/// Whether Kueue gets quota back. While the run holds its pods, Kueue is only told whether they are ready: if it does
/// not answer, the run makes its pods all the same.
fn returns_quota(decision: &Decision) -> bool {
    match &decision.workload {
        WorkloadStep::Delete => true,
        WorkloadStep::Status(_) => decision.delete_pools,
        WorkloadStep::Leave | WorkloadStep::Create(_) => false,
    }
}

/// Makes the objects, and then the pods, which need them: a refused object ends the step.
pub async fn make(seen: &RunObservation, decision: &Decision, context: &Context) -> Result<(), Error> {
    make_objects(seen, decision, context).await?;
    execute(seen, decision, context).await
}

async fn make_objects(seen: &RunObservation, decision: &Decision, context: &Context) -> Result<(), Error> {
    let (cluster, owner) = (&context.cluster, &seen.owner);
    for desired in &decision.objects {
        if is_missed(seen, desired) {
            cluster.distrust(&owner.namespace, desired);
        }
        match is_gpu_claim(desired) {
            true => cluster.create_gpu_claim(owner, desired, shape(&seen.run)).await?,
            false => cluster.apply(&owner.namespace, desired).await?,
        }
    }
    Ok(())
}

/// All of a decision that follows its objects.
async fn execute(seen: &RunObservation, decision: &Decision, context: &Context) -> Result<(), Error> {
    let (cluster, owner) = (&context.cluster, &seen.owner);
    if let AdmissionStep::Expect(candidate) = &decision.admission {
        context.admission.expect(candidate.clone());
    }
    if decision.claim == ClaimStep::Take {
        step_claim(seen, decision.claim, context).await?;
    }
    delete_pods(seen, &decision.delete_pods, context).await?;
    for (role, pod, facts) in &decision.create {
        cluster.create_pod(&owner.namespace, pod).await?;
        context.pending_pods.made(&group_key(&owner.uid, role), facts.clone());
    }
    if !returns_quota(decision) {
        step_workload(seen, &decision.workload, context).await?;
    }
    if decision.delete_run {
        cluster
            .delete::<GrpoRun>(&owner.namespace, &owner.name, Some(&owner.uid))
            .await?;
    }
    Ok(())
}

/// Services of ended attempts. Before the next attempt's: a namespace's quota may have room for one of the two.
async fn delete_services(seen: &RunObservation, decision: &Decision, context: &Context) -> Result<(), Error> {
    let owner = &seen.owner;
    for service in &decision.delete_services {
        context
            .cluster
            .delete_owned::<Service>(&owner.namespace, service, &owner.uid)
            .await?;
    }
    Ok(())
}

async fn delete_pods(seen: &RunObservation, pods: &[String], context: &Context) -> Result<(), Error> {
    let (cluster, owner) = (&context.cluster, &seen.owner);
    for pod in pods {
        let uid = uid_of(seen, pod, context);
        cluster.delete::<Pod>(&owner.namespace, pod, uid.as_deref()).await?;
        for role in [role::DRIVER, role::TRAINER] {
            context.pending_pods.deleted(&group_key(&owner.uid, role), pod);
        }
        if let Some(pool) = seen.own_inference().and_then(|pool| pool.metadata.uid.as_deref()) {
            context.pending_pods.deleted(pool, pod);
        }
    }
    Ok(())
}

/// The uid of a pod of the run or of its own engines, so that a pod that took its name meanwhile is not deleted.
/// `None`: the pod was created a moment ago, and no watch has shown it.
fn uid_of(seen: &RunObservation, pod: &str, context: &Context) -> Option<String> {
    let run = Parent::run(&seen.owner);
    let own = context.pods.uid(&run, &seen.owner.uid, pod);
    let of_engines = || {
        let pool = Owner::of(seen.own_inference()?)?;
        context.pods.uid(&Parent::inference_pool(&pool), &pool.uid, pod)
    };
    own.or_else(of_engines)
}

/// Whether this reconcile found the run's own pool deleted, or with another owner: then it is written again, even if
/// the children's watch has not reported that yet.
fn is_missed(seen: &RunObservation, desired: &DesiredObject) -> bool {
    let is = |kind: &str| desired.kind() == kind;
    let ours = |metadata: &kube::core::ObjectMeta| is_owned_by(metadata, &seen.owner.uid);
    (is(&InferencePool::kind(&())) && !seen.inference.as_ref().is_some_and(|pool| ours(&pool.metadata)))
        || (is(&SandboxPool::kind(&())) && !seen.sandboxes.as_ref().is_some_and(|pool| ours(&pool.metadata)))
}

/// Takes the claim against the observed version of the pool: of two runs that see it free, one gets it.
async fn step_claim(seen: &RunObservation, step: ClaimStep, context: &Context) -> Result<(), Error> {
    let Some(pool) = &seen.inference else { return Ok(()) };
    let status: Value = match step {
        ClaimStep::Leave => return Ok(()),
        ClaimStep::Take => json!({"claimedBy": {"name": seen.owner.name, "uid": seen.owner.uid}}),
        ClaimStep::Release => json!({}),
    };
    context
        .cluster
        .write_status(pool, CLAIM_FIELD_MANAGER, status, pool.resource_version().as_deref())
        .await
}

/// Asks Kueue for quota, or returns it.
async fn step_workload(seen: &RunObservation, step: &WorkloadStep, context: &Context) -> Result<(), Error> {
    let (cluster, namespace) = (&context.cluster, &seen.owner.namespace);
    let known = match &seen.queue {
        QueueState::Asked(asked) => Some(&asked.workload),
        _ => None,
    };
    match (step, known) {
        (WorkloadStep::Create(desired), _) => {
            // No watch says that one which was applied before is gone: that was read just now.
            cluster.distrust(namespace, desired);
            cluster.apply(namespace, desired).await
        }
        (WorkloadStep::Delete, Some(known)) => {
            let uid = known.metadata.uid.as_deref();
            cluster.delete::<Workload>(namespace, &known.name_any(), uid).await
        }
        (WorkloadStep::Status(patch), Some(known)) => cluster.patch_workload(namespace, known, patch).await,
        _ => Ok(()),
    }
}

/// Deletes the pools that were made for the run; owner references delete their objects.
async fn delete_own_pools(seen: &RunObservation, context: &Context) -> Result<(), Error> {
    let (cluster, owner) = (&context.cluster, &seen.owner);
    if let Some(pool) = seen
        .inference
        .as_ref()
        .filter(|pool| is_to_go(&pool.metadata, &owner.uid))
    {
        cluster
            .delete::<InferencePool>(&owner.namespace, &pool.name_any(), pool.metadata.uid.as_deref())
            .await?;
    }
    if let Some(pool) = seen
        .sandboxes
        .as_ref()
        .filter(|pool| is_to_go(&pool.metadata, &owner.uid))
    {
        cluster
            .delete::<SandboxPool>(&owner.namespace, &pool.name_any(), pool.metadata.uid.as_deref())
            .await?;
    }
    Ok(())
}

fn is_to_go(metadata: &kube::core::ObjectMeta, owner: &str) -> bool {
    metadata.deletion_timestamp.is_none() && is_owned_by(metadata, owner)
}
