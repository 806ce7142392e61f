//! The pods of a run's two groups: the driver, and the ranks of the trainer.

use grpo_crds::{RunConfig, grpo_run::Trainer};
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use super::{
    objects::MASTER_PORT,
    read::{Seen, StoreVolume},
};
use crate::{
    child::{Child, Owner},
    cluster::digest,
    names::{self, labels, role},
    pod_parts::{
        claim_volume, container_security, environment, image_volume, lay_over, model, mount, pod_security, resources,
        scratch_volume,
    },
    settings::Settings,
};

const CONFIG_FOLDER: &str = "/etc/grpo";

/// The driver of an attempt.
pub fn driver(seen: &Seen, settings: &Settings, attempt: u32) -> Child {
    let config = RunConfig::of(&seen.run);
    let options = seen.run.spec.driver.clone().unwrap_or_default();
    let (mut volumes, mut mounts) = common_volumes(seen, settings);
    for (n, dataset) in config.datasets.iter().enumerate() {
        let name = format!("dataset-{n}");
        let volume = match (&dataset.image, &dataset.claim_name) {
            (Some(reference), _) => image_volume(&name, reference, settings),
            (None, Some(claim)) => claim_volume(&name, claim, true),
            (None, None) => continue,
        };
        volumes.push(volume);
        mounts.push(mount(&name, &dataset.path, true));
    }
    let mut spec = group_pod_spec(seen, volumes);
    spec["serviceAccountName"] = json!(names::driver(&seen.owner.name));
    spec["automountServiceAccountToken"] = json!(true);
    spec["containers"] = json!([{
        "name": "driver",
        "image": settings.driver_image,
        "imagePullPolicy": settings.image_pull_policy,
        "args": ["--config", RunConfig::PATH],
        "env": environment(settings, attempt, &[], &options.env),
        "ports": [{"name": "http", "containerPort": RunConfig::DRIVER_PORT, "protocol": "TCP"}],
        "resources": resources(options.resources.as_ref(), 0),
        "securityContext": container_security(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounts,
    }]);
    let mut pod = group_pod(seen, role::DRIVER, attempt, 0, spec);
    lay_over(&mut pod.object, options.pod_template.as_ref());
    pod
}

/// One pod of the trainer of an attempt. The process starts the ranks of its GPUs itself.
pub fn trainer(seen: &Seen, trainer: &Trainer, settings: &Settings, attempt: u32, node: u32) -> Child {
    let (mut volumes, mut mounts) = common_volumes(seen, settings);
    if trainer.gpus_per_node > 0 {
        volumes.push(json!({"name": "shm", "emptyDir": {"medium": "Memory"}}));
        mounts.push(mount("shm", "/dev/shm", false));
    }
    let hosts = names::trainer_hosts(&seen.owner.name, attempt);
    let mut spec = group_pod_spec(seen, volumes);
    spec["automountServiceAccountToken"] = json!(false);
    spec["hostname"] = json!(names::group_pod(&seen.owner.name, role::TRAINER, attempt, node));
    spec["subdomain"] = json!(hosts);
    spec["containers"] = json!([{
        "name": "trainer",
        "image": settings.trainer_image,
        "imagePullPolicy": settings.image_pull_policy,
        "args": ["serve", "--config", RunConfig::PATH],
        "env": environment(settings, attempt, &rendezvous(&seen.owner, trainer, attempt, node), &trainer.env),
        "ports": [
            {"name": "http", "containerPort": RunConfig::TRAINER_PORT, "protocol": "TCP"},
            {"name": "rendezvous", "containerPort": MASTER_PORT, "protocol": "TCP"},
        ],
        "resources": resources(trainer.resources.as_ref(), trainer.gpus_per_node),
        "securityContext": container_security(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounts,
    }]);
    let mut pod = group_pod(seen, role::TRAINER, attempt, node, spec);
    lay_over(&mut pod.object, trainer.pod_template.as_ref());
    pod
}

/// The environment torchrun would give the first rank of a pod.
fn rendezvous(owner: &Owner, trainer: &Trainer, attempt: u32, node: u32) -> [(&'static str, String); 6] {
    let local = trainer.gpus_per_node.max(1);
    let first = names::group_pod(&owner.name, role::TRAINER, attempt, 0);
    [
        (
            "MASTER_ADDR",
            format!("{first}.{}", names::trainer_hosts(&owner.name, attempt)),
        ),
        ("MASTER_PORT", MASTER_PORT.to_string()),
        ("RANK", (node * local).to_string()),
        ("WORLD_SIZE", (trainer.nodes * local).to_string()),
        ("LOCAL_RANK", "0".to_owned()),
        ("LOCAL_WORLD_SIZE", local.to_string()),
    ]
}

/// Volumes of driver and trainer: configuration, store, model, and somewhere to write.
fn common_volumes(seen: &Seen, settings: &Settings) -> (Vec<Value>, Vec<Value>) {
    let mut volumes = vec![
        json!({"name": "config", "configMap": {"name": names::config(&seen.owner.name)}}),
        claim_volume("store", &store_claim(seen), false),
        scratch_volume("tmp"),
    ];
    let mut mounts = vec![
        mount("config", CONFIG_FOLDER, true),
        mount("store", RunConfig::STORE_MOUNT, false),
        mount("tmp", "/tmp", false),
    ];
    if let Some((volume, at)) = model(&seen.run.spec.model.source(), settings) {
        volumes.push(volume);
        mounts.push(at);
    }
    (volumes, mounts)
}

/// The claim that holds the store.
fn store_claim(seen: &Seen) -> String {
    match &seen.run.spec.store.persistent_volume_claim {
        Some(existing) => existing.claim_name.clone(),
        None => names::store_claim(&seen.owner.name),
    }
}

/// The claim as a label's value, which is shorter than a name may be.
fn store_label(seen: &Seen) -> String {
    let claim = store_claim(seen);
    if claim.len() <= 63 {
        claim
    } else {
        digest(&json!(claim))
    }
}

fn group_pod_spec(seen: &Seen, volumes: Vec<Value>) -> Value {
    let mut spec = json!({
        "restartPolicy": "Never",
        "enableServiceLinks": false,
        "terminationGracePeriodSeconds": 30,
        "securityContext": pod_security(),
        "volumes": volumes,
    });
    if seen.store != StoreVolume::Shared {
        spec["affinity"] = json!({"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{
            "labelSelector": {"matchLabels": {names::STORE: store_label(seen)}},
            "topologyKey": "kubernetes.io/hostname",
        }]}});
    }
    spec
}

fn group_pod(seen: &Seen, role: &str, attempt: u32, rank: u32, spec: Value) -> Child {
    let owner = &seen.owner;
    let (attempt_text, rank_text, claim) = (attempt.to_string(), rank.to_string(), store_label(seen));
    let labels = labels([
        (names::RUN, owner.name.as_str()),
        (names::ROLE, role),
        (names::ATTEMPT, attempt_text.as_str()),
        (names::RANK, rank_text.as_str()),
        (names::STORE, claim.as_str()),
    ]);
    owner.child::<Pod>(
        names::group_pod(&owner.name, role, attempt, rank),
        &labels,
        json!({"spec": spec}),
    )
}
