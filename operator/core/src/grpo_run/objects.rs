//! The objects of a run besides its pods: configuration, volume, services, the driver's rights, claims on shared GPUs,
//! and the pools described in the run.

use grpo_contracts::RunConfig;
use grpo_crds::{
    GrpoRun, GrpoRunSpec, InferencePool, SandboxPool,
    common::{OverlaySpec, PodOverlay},
};
use k8s_openapi::api::{
    core::v1::{ConfigMap, LocalObjectReference, PersistentVolumeClaim, Service, ServiceAccount},
    networking::v1::NetworkPolicy,
    rbac::v1::{Role, RoleBinding},
};
use kube::Resource;
use serde_json::json;

use super::{
    colocation::colocated,
    gpu_claims::{self, GpuClaimStep},
    observation::RunObservation,
    queue::{self, QueueVerdict},
};
use crate::{
    desired_object::{DesiredObject, Owner},
    names::{self, Labels, account, labels, role},
    pod_parts::from_metrics,
};

/// Rendezvous port of the collectives.
pub const MASTER_PORT: u16 = 29500;

/// All objects of a run with its groups in these attempts.
pub fn objects(seen: &RunObservation, driver_attempt: u32, trainer_attempt: u32) -> Vec<DesiredObject> {
    let (run, owner) = (&seen.run, &seen.owner);
    let mut objects = vec![config(run, owner)];
    objects.extend(volume(run, owner));
    objects.extend(driver_rights(owner));
    objects.push(driver_service(owner, driver_attempt));
    objects.push(callers_reach_the_driver(run, owner));
    if run.spec.mode.needs_trainer() {
        objects.push(trainer_account(owner));
        objects.push(callers_reach_the_trainer(owner));
        objects.extend(trainer_services(owner, trainer_attempt));
    }
    if gpu_claims::step(seen) == GpuClaimStep::Create {
        objects.extend(gpu_claims::gpu_claims(run, owner));
    }
    // Engines of a run in Kueue's queue are created when it is admitted, and the pool with them. While Kueue's answer
    // is unknown, the pool stays as it is.
    if queue::verdict(seen) == QueueVerdict::NoQueue || queue::engine_quota(seen).is_some() {
        objects.extend(own_engines(seen));
    }
    objects.extend(own_sandboxes(run, owner));
    objects
}

/// Labels of a run's objects that have a role.
fn of_role(owner: &Owner, role: &str) -> Labels {
    labels([(names::RUN, owner.name.as_str()), (names::ROLE, role)])
}

fn config(run: &GrpoRun, owner: &Owner) -> DesiredObject {
    // A RunConfig has only texts and numbers, so it always serializes to JSON.
    let text = serde_json::to_string_pretty(&RunConfig::of(run)).unwrap_or_default();
    owner.object::<ConfigMap>(
        names::config(&owner.name),
        &labels([(names::RUN, owner.name.as_str())]),
        json!({"data": {RunConfig::KEY: text}}),
    )
}

/// The volume claim of the run's own store.
pub fn volume(run: &GrpoRun, owner: &Owner) -> Option<DesiredObject> {
    let template = run.spec.store.volume_claim_template.as_ref()?;
    let mut spec = json!({"accessModes": template.access_modes, "resources": template.resources});
    if let Some(class) = &template.storage_class_name {
        spec["storageClassName"] = json!(class);
    }
    let mut claim = owner.object::<PersistentVolumeClaim>(
        names::store_claim(&owner.name),
        &labels([(names::RUN, owner.name.as_str())]),
        json!({"spec": spec}),
    );
    if run.spec.store.retain {
        // Without an owner the volume claim outlives the run; a run of the same name finds it again.
        claim.object["metadata"]["ownerReferences"] = json!([]);
        claim = claim.annotated(names::RETAINED_BY, &owner.uid);
    }
    Some(claim)
}

/// The driver may read its own run and write its status, and nothing else.
fn driver_rights(owner: &Owner) -> [DesiredObject; 3] {
    let (name, labels) = (names::driver(&owner.name), of_role(owner, role::DRIVER));
    let only = [&owner.name];
    [
        owner.object::<ServiceAccount>(&name, &labels, json!({"automountServiceAccountToken": false})),
        owner.object::<Role>(
            &name,
            &labels,
            json!({"rules": [
                {"apiGroups": [grpo_crds::GROUP], "resources": ["grporuns"], "resourceNames": only, "verbs": ["get"]},
                {"apiGroups": [grpo_crds::GROUP], "resources": ["grporuns/status"], "resourceNames": only, "verbs": ["get", "patch"]},
            ]}),
        ),
        owner.object::<RoleBinding>(
            &name,
            &labels,
            json!({
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
                "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": owner.namespace}],
            }),
        ),
    ]
}

/// An account without rights: the trainer asks the API server only for the cluster's public keys, which every account
/// may read.
fn trainer_account(owner: &Owner) -> DesiredObject {
    owner.object::<ServiceAccount>(
        account::trainer(&owner.name),
        &of_role(owner, role::TRAINER),
        json!({"automountServiceAccountToken": false}),
    )
}

/// Allows the run's engines to reach the driver, since they pull weights; also the run's trainer if the driver decides
/// which files of a model it takes. Behind a proxy pool the engines are of another pool. The gateway forwards requests
/// of command-line agents to their model.
fn callers_reach_the_driver(run: &GrpoRun, owner: &Owner) -> DesiredObject {
    let inference = &run.spec.inference;
    let external = inference.pool.as_ref().and_then(|pool| pool.engine.external.as_ref());
    let mut engines = json!({names::ROLE: role::ENGINE});
    if external.is_none() {
        let pool = inference.pool_ref.as_ref().map_or(&owner.name, |pool| &pool.name);
        engines[names::INFERENCE_POOL] = json!(pool);
    }
    let mut from = vec![json!({"podSelector": {"matchLabels": engines}})];
    if run.spec.model.source().is_downloaded() {
        let trainer = json!({names::RUN: owner.name, names::ROLE: role::TRAINER});
        from.push(json!({"podSelector": {"matchLabels": trainer}}));
    }
    if run.spec.agent.cli.is_some() {
        let pool = run.spec.sandboxes.pool_ref.as_ref();
        let name = pool.map_or(&owner.name, |pool| &pool.name);
        let gateway = json!({names::SANDBOX_POOL: name, names::ROLE: role::GATEWAY});
        let mut peer = json!({"podSelector": {"matchLabels": gateway}});
        // Without a selector of namespaces a peer is of the run's namespace.
        let namespace = pool.and_then(|pool| pool.namespace.as_ref());
        if let Some(namespace) = namespace.filter(|namespace| **namespace != owner.namespace) {
            peer["namespaceSelector"] = json!({"matchLabels": {names::NAMESPACE_NAME: namespace}});
        }
        from.push(peer);
    }
    from.push(from_metrics());
    owner.object::<NetworkPolicy>(
        names::driver(&owner.name),
        &of_role(owner, role::DRIVER),
        json!({"spec": {
            "podSelector": {"matchLabels": {names::RUN: owner.name, names::ROLE: role::DRIVER}},
            "policyTypes": ["Ingress"],
            "ingress": [{
                "from": from,
                "ports": [{"protocol": "TCP", "port": RunConfig::DRIVER_PORT}],
            }],
        }}),
    )
}

/// Allows the driver to reach the trainer, and ranks to reach each other on every port, since collectives choose their
/// ports.
fn callers_reach_the_trainer(owner: &Owner) -> DesiredObject {
    let of = |role: &str| json!({"podSelector": {"matchLabels": {names::RUN: owner.name, names::ROLE: role}}});
    owner.object::<NetworkPolicy>(
        names::trainer(&owner.name),
        &of_role(owner, role::TRAINER),
        json!({"spec": {
            "podSelector": {"matchLabels": {names::RUN: owner.name, names::ROLE: role::TRAINER}},
            "policyTypes": ["Ingress"],
            "ingress": [
                {"from": [of(role::TRAINER)]},
                {
                    "from": [of(role::DRIVER), from_metrics()],
                    "ports": [{"protocol": "TCP", "port": RunConfig::TRAINER_PORT}],
                },
            ],
        }}),
    )
}

fn driver_service(owner: &Owner, attempt: u32) -> DesiredObject {
    owner.object::<Service>(
        names::driver(&owner.name),
        &of_role(owner, role::DRIVER),
        json!({"spec": {
            "selector": {names::RUN: owner.name, names::ROLE: role::DRIVER, names::ATTEMPT: attempt.to_string()},
            "ports": [{"name": "http", "port": RunConfig::DRIVER_PORT, "targetPort": RunConfig::DRIVER_PORT, "protocol": "TCP"}],
        }}),
    )
}

/// Stable hostnames for the ranks of one attempt, and one address for its rank 0.
fn trainer_services(owner: &Owner, attempt: u32) -> [DesiredObject; 2] {
    let labels = of_role(owner, role::TRAINER);
    let hosts = owner.object::<Service>(
        names::trainer_hosts(&owner.name, attempt),
        &labels,
        json!({"spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": true,
            "selector": {names::RUN: owner.name, names::ROLE: role::TRAINER, names::ATTEMPT: attempt.to_string()},
            "ports": [{"name": "rendezvous", "port": MASTER_PORT, "targetPort": MASTER_PORT, "protocol": "TCP"}],
        }}),
    );
    let first = owner.object::<Service>(
        names::trainer(&owner.name),
        &labels,
        json!({"spec": {
            "selector": {
                names::RUN: owner.name, names::ROLE: role::TRAINER, names::ATTEMPT: attempt.to_string(), names::RANK: "0",
            },
            "ports": [{"name": "http", "port": RunConfig::TRAINER_PORT, "targetPort": RunConfig::TRAINER_PORT, "protocol": "TCP"}],
        }}),
    );
    [hosts, first]
}

/// The pool of engines described in the run, with what it may use of the run's quota.
fn own_engines(seen: &RunObservation) -> Option<DesiredObject> {
    let pool = described_engines(&seen.run, &seen.owner)?;
    Some(match queue::engine_quota(seen) {
        Some(quota) => quota.mark(pool),
        None => pool,
    })
}

/// The pool of engines as the run describes it.
pub fn described_engines(run: &GrpoRun, owner: &Owner) -> Option<DesiredObject> {
    let pool = run.spec.inference.pool.as_ref();
    let pool = pool.filter(|_| run.spec.mode.needs_engines())?;
    let spec = pool.serving(&run.spec.model.source());
    let mut spec = match &run.spec.model.lora {
        Some(lora) => spec.with_room_for(lora.rank),
        None => spec,
    };
    // Not checked here whether the model is a mixture of experts: the engine of a dense model would not start.
    if run.spec.algorithm.router_replay == Some(true) {
        spec = spec.reporting_experts();
    }
    spec.colocated = colocated(&run.spec, &owner.name);
    spec.pod_template = of_run(&run.spec, spec.pod_template.take());
    let labels = labels([(names::RUN, owner.name.as_str())]);
    Some(owner.object::<InferencePool>(&owner.name, &labels, json!({"spec": spec})))
}

/// The pool of sandboxes described in the run.
fn own_sandboxes(run: &GrpoRun, owner: &Owner) -> Option<DesiredObject> {
    let pool = run.spec.sandboxes.pool.as_ref();
    let mut spec = pool.filter(|_| run.spec.mode.needs_sandboxes())?.clone();
    spec.pod_template = of_run(&run.spec, spec.pod_template.take());
    spec.agent_image = run.spec.agent.cli.as_ref().map(|cli| cli.image.clone());
    let labels = labels([(names::RUN, owner.name.as_str())]);
    Some(owner.object::<SandboxPool>(&owner.name, &labels, json!({"spec": spec})))
}

/// The overlay for the pods of a pool of the run's own: the pool's overlay plus the run's priority and pull secrets.
fn of_run(run: &GrpoRunSpec, given: Option<PodOverlay>) -> Option<PodOverlay> {
    if run.priority_class_name.is_none() && run.image_pull_secrets.is_empty() {
        return given;
    }
    let mut overlay = given.unwrap_or_default();
    let spec = overlay.spec.get_or_insert_with(OverlaySpec::default);
    if spec.priority_class_name.is_none() {
        spec.priority_class_name.clone_from(&run.priority_class_name);
    }
    for secret in &run.image_pull_secrets {
        if !spec.image_pull_secrets.iter().any(|known| known.name == secret.name) {
            spec.image_pull_secrets.push(LocalObjectReference {
                name: secret.name.clone(),
            });
        }
    }
    Some(overlay)
}

/// The name of a pool as messages show it.
pub fn pool_in_words<K: Resource<DynamicType = ()>>(name: &str) -> String {
    format!("{} {name} ({})", K::kind(&()), grpo_crds::GROUP)
}
