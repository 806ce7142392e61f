//! Creates the pods of a run's two pod groups: the driver, and the ranks of the trainer.
//!
//! Torchrun's environment variables tell a rank how to find the others. All hardware needs of a rank (GPUs, RDMA,
//! locked and shared memory, a network interface) are set here and nowhere else.

use grpo_contracts::run_config::pool_cache;
use grpo_contracts::{ModelDownload, RunConfig, access::Service, names::store_claim_of, volumes::dataset_volumes};
use grpo_crds::{
    AttemptStatus,
    grpo_run::{Rdma, Trainer},
    sources::ModelSource,
};
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use super::{
    colocation::SharedGpus,
    objects::MASTER_PORT,
    observation::{RunObservation, StoreVolume},
};
use crate::{
    desired_object::{DesiredObject, Owner},
    device_claims::give_gpus,
    digest::digest,
    model_download::{self, CACHE_VOLUME, Fetch, Pin, cache_volume, endpoint},
    names::{self, account, labels, role},
    pod_parts::{
        add_pull_secrets, api_server_access, claim_volume, container_security, environment, lay_over, model, mount,
        pod_security, resources, scratch_volume, secret_folder_volume, secret_volume, tokens, tokens_with,
    },
    settings::Settings,
};

const CONFIG_FOLDER: &str = "/etc/grpo";
/// Size of `/dev/shm`, for communication between the ranks of a node. It counts against the pod's memory.
const SHARED_MEMORY: &str = "16Gi";
/// Period of the probe that checks whether a rank has joined the rendezvous.
const START_PERIOD: u64 = 2;
/// The operator ends an attempt that does not start, and names the late ranks; without an operator the kubelet ends it,
/// this many seconds later.
const START_MARGIN: u64 = 600;

/// Services for which the driver has a token.
const CALLED_BY_THE_DRIVER: [Service; 3] = [Service::Gateway, Service::Trainer, Service::EngineAgent];

/// The driver of an attempt.
pub fn driver(seen: &RunObservation, settings: &Settings, attempts: &AttemptStatus) -> DesiredObject {
    let attempt = attempts.current;
    let config = RunConfig::of(&seen.run);
    let options = seen.run.spec.driver.clone().unwrap_or_default();
    let (mut volumes, mut mounts) = common_volumes(seen, settings, role::DRIVER);
    for (volume, at) in dataset_volumes(&config, &settings.image_pull_policy) {
        volumes.push(volume);
        mounts.push(at);
    }
    // The driver downloads a model itself, and reports the progress.
    let download = config.model_download.as_ref();
    if let Some((volume, at)) = download.and_then(|download| model_download::secret(&download.from)) {
        volumes.push(volume);
        mounts.push(at);
    }
    let rewards = seen.run.spec.reward.http.as_ref();
    if let Some(secret) = rewards.and_then(|http| http.token_secret_ref.as_ref()) {
        volumes.push(secret_volume("reward-token", secret, RunConfig::REWARD_TOKEN_FILE));
        mounts.push(mount("reward-token", RunConfig::REWARD_TOKEN_MOUNT, true));
    }
    let trackers = seen.run.spec.trackers.as_ref();
    let mlflow = trackers.and_then(|trackers| trackers.mlflow.as_ref());
    if let Some(secret) = mlflow.and_then(|mlflow| mlflow.token_secret_ref.as_ref()) {
        volumes.push(secret_volume("mlflow-token", secret, RunConfig::MLFLOW_TOKEN_FILE));
        mounts.push(mount("mlflow-token", RunConfig::MLFLOW_TOKEN_MOUNT, true));
    }
    let wandb = trackers.and_then(|trackers| trackers.wandb.as_ref());
    if let Some(upload) = wandb.and_then(|wandb| wandb.upload.as_ref()) {
        let secret = &upload.api_key_secret_ref;
        volumes.push(secret_volume("wandb-key", secret, RunConfig::WANDB_KEY_FILE));
        mounts.push(mount("wandb-key", RunConfig::WANDB_KEY_MOUNT, true));
    }
    let (volume, at) = tokens_with(&CALLED_BY_THE_DRIVER, |service| config.audience(service));
    volumes.push(volume);
    mounts.push(at);
    let mut spec = group_pod_spec(seen, settings, volumes);
    spec["serviceAccountName"] = json!(names::driver(&seen.owner.name));
    spec["automountServiceAccountToken"] = json!(true);
    spec["containers"] = json!([{
        "name": "driver",
        "image": settings.driver_image,
        "imagePullPolicy": settings.image_pull_policy,
        "args": ["--config", RunConfig::PATH],
        "env": environment(settings, attempt, &endpoint(settings, &options.env), &options.env),
        "ports": [{"name": "http", "containerPort": RunConfig::DRIVER_PORT, "protocol": "TCP"}],
        "resources": resources(options.resources.as_ref(), 0),
        "securityContext": container_security(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounts,
    }]);
    let mut pod = group_pod(seen, role::DRIVER, attempt, 0, spec);
    lay_over(&mut pod.object, options.pod_template.as_ref());
    add_pull_secrets(&mut pod.object["spec"], settings);
    avoid_nodes(&mut pod.object["spec"], &attempts.avoid_nodes);
    pod
}

/// One pod of an attempt of the trainer. The process starts the ranks of its GPUs itself.
pub fn trainer(
    seen: &RunObservation,
    trainer: &Trainer,
    settings: &Settings,
    attempts: &AttemptStatus,
    node: u32,
) -> DesiredObject {
    let attempt = attempts.current;
    let (mut volumes, mut mounts) = common_volumes(seen, settings, role::TRAINER);
    if trainer.gpus_per_node > 0 {
        volumes.push(json!({"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": SHARED_MEMORY}}));
        mounts.push(mount("shm", "/dev/shm", false));
    }
    let hosts = names::trainer_hosts(&seen.owner.name, attempt);
    // Access to the cluster's public keys, to verify the driver's token.
    let (volume, at) = api_server_access();
    volumes.push(volume);
    mounts.push(at);
    let config = RunConfig::of(&seen.run);
    let fetch = fetch_model(seen, &config, trainer);
    if let Some(fetch) = &fetch {
        volumes.push(tokens(&[Service::Driver]).0);
        volumes.extend(model_download::secret(&fetch.model).map(|(volume, _)| volume));
    }
    let mut spec = group_pod_spec(seen, settings, volumes);
    if let Some(fetch) = &fetch {
        spec["initContainers"] = json!([fetch.container(settings, attempt)]);
    }
    spec["serviceAccountName"] = json!(account::trainer(&seen.owner.name));
    spec["automountServiceAccountToken"] = json!(false);
    spec["hostname"] = json!(names::group_pod(&seen.owner.name, role::TRAINER, attempt, node));
    spec["subdomain"] = json!(hosts);
    let mut own = rendezvous(&seen.owner, trainer, attempt, node);
    own.extend(network(trainer));
    own.extend(rdma(trainer).map(|_| (grpo_contracts::names::RDMA_VARIABLE, "1".to_owned())));
    let deadline = trainer.deadlines.start().as_secs() + START_MARGIN;
    let shared = SharedGpus::of(&seen.run.spec).is_some();
    let mut container = json!({
        "name": "trainer",
        "image": trainer.image.as_ref().unwrap_or(own_image(trainer, settings)),
        "imagePullPolicy": settings.image_pull_policy,
        "args": ["serve", "--config", RunConfig::PATH],
        "env": environment(settings, attempt, &own, &trainer.env),
        "ports": [
            {"name": "http", "containerPort": RunConfig::TRAINER_PORT, "protocol": "TCP"},
            {"name": "rendezvous", "containerPort": MASTER_PORT, "protocol": "TCP"},
        ],
        // After its first success, the pod stays ready until it ends.
        "startupProbe": {
            "httpGet": {"path": "/readyz", "port": RunConfig::TRAINER_PORT},
            "periodSeconds": START_PERIOD,
            "timeoutSeconds": 5,
            "failureThreshold": deadline.div_ceil(START_PERIOD),
        },
        "resources": resources(trainer.resources.as_ref(), if shared { 0 } else { trainer.gpus_per_node }),
        "securityContext": container_security(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounts,
    });
    give_rdma(&mut container, trainer);
    spec["containers"] = json!([container]);
    if shared {
        give_gpus(&mut spec, &names::gpu_claim(&seen.owner.name, node), None);
    }
    let mut pod = group_pod(seen, role::TRAINER, attempt, node, spec);
    lay_over(&mut pod.object, trainer.pod_template.as_ref());
    add_pull_secrets(&mut pod.object["spec"], settings);
    avoid_nodes(&mut pod.object["spec"], &attempts.avoid_nodes);
    pod
}

/// The default image: only one of the two computes on GPUs.
fn own_image<'a>(trainer: &Trainer, settings: &'a Settings) -> &'a String {
    match trainer.gpus_per_node {
        0 => &settings.trainer_image,
        _ => &settings.trainer_cuda_image,
    }
}

/// The variables that torchrun would set for the first rank of a pod.
fn rendezvous(owner: &Owner, trainer: &Trainer, attempt: u32, node: u32) -> Vec<(&'static str, String)> {
    let local = trainer.gpus_per_node.max(1);
    let first = names::group_pod(&owner.name, role::TRAINER, attempt, 0);
    vec![
        (
            "MASTER_ADDR",
            format!("{first}.{}", names::trainer_hosts(&owner.name, attempt)),
        ),
        ("MASTER_PORT", MASTER_PORT.to_string()),
        ("RANK", (node * local).to_string()),
        ("WORLD_SIZE", (trainer.nodes * local).to_string()),
        ("LOCAL_RANK", "0".to_owned()),
        ("LOCAL_WORLD_SIZE", local.to_string()),
        ("GROUP_RANK", node.to_string()),
        ("GROUP_WORLD_SIZE", trainer.nodes.to_string()),
        ("NODE_RANK", node.to_string()),
    ]
}

/// The network interface for NCCL and Gloo, if the spec names one.
fn network(trainer: &Trainer) -> Vec<(&'static str, String)> {
    let interface = trainer.network.as_ref().and_then(|network| network.interface.clone());
    interface.map_or_else(Vec::new, |interface| {
        vec![
            ("NCCL_SOCKET_IFNAME", interface.clone()),
            ("GLOO_SOCKET_IFNAME", interface),
        ]
    })
}

fn rdma(trainer: &Trainer) -> Option<&Rdma> {
    trainer.network.as_ref()?.rdma.as_ref()
}

/// RDMA devices. `IPC_LOCK` is not added: a process that is not root would not have it, and the trainer checks the
/// limit on locked memory instead.
fn give_rdma(container: &mut Value, trainer: &Trainer) {
    if let Some(rdma) = rdma(trainer) {
        container["resources"]["limits"][&rdma.resource] = json!(rdma.count.to_string());
    }
}

/// Adds a preference against these nodes. The pod may still use them: a cluster of exactly the run's size has no
/// others.
fn avoid_nodes(spec: &mut Value, nodes: &[String]) {
    if nodes.is_empty() {
        return;
    }
    // A `metadata.name` requirement takes exactly one value.
    let not_these = nodes.iter().map(|node| {
        let field = json!({"key": "metadata.name", "operator": "NotIn", "values": [node]});
        json!({"weight": 100, "preference": {"matchFields": [field]}})
    });
    spec["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"] = not_these.collect();
}

/// Volumes of driver and trainer: configuration, store, model, and writable scratch space.
fn common_volumes(seen: &RunObservation, settings: &Settings, of: &str) -> (Vec<Value>, Vec<Value>) {
    let mut volumes = vec![
        json!({"name": "config", "configMap": {"name": names::config(&seen.owner.name)}}),
        store_volume(seen),
        scratch_volume("tmp"),
    ];
    let mut mounts = vec![
        mount("config", CONFIG_FOLDER, true),
        mount("store", RunConfig::STORE_MOUNT, false),
        mount("tmp", "/tmp", false),
    ];
    let spec = &seen.run.spec;
    let bucket = spec.store.object_store.as_ref();
    if let Some(secret) = bucket.and_then(|bucket| bucket.credentials_secret_ref.as_ref()) {
        volumes.push(secret_folder_volume("store-credentials", secret));
        mounts.push(mount("store-credentials", RunConfig::STORE_SECRET, true));
    }
    if let Some((volume, mut at)) = model(&spec.model.source(), settings) {
        if spec.model.source().is_downloaded() && of == role::DRIVER {
            at = mount("model", ModelSource::MOUNT, false);
        }
        volumes.push(volume);
        mounts.push(at);
    }
    if spec.model.source().is_downloaded()
        && let Some(cache) = pool_cache(spec)
    {
        volumes.push(cache_volume(Some(cache)));
        mounts.push(mount(CACHE_VOLUME, ModelDownload::CACHE_MOUNT, of != role::DRIVER));
    }
    (volumes, mounts)
}

/// How a trainer's pod gets a downloaded model.
fn fetch_model<'a>(seen: &'a RunObservation, config: &'a RunConfig, trainer: &'a Trainer) -> Option<Fetch<'a>> {
    let download = config.model_download.as_ref()?;
    Some(Fetch {
        model: download.from.clone(),
        cache: download.cache.clone(),
        cache_mount: match pool_cache(&seen.run.spec) {
            Some(_) => mount(CACHE_VOLUME, ModelDownload::CACHE_MOUNT, false),
            None => mount("store", RunConfig::STORE_MOUNT, false),
        },
        pin: Pin::Driver {
            run: seen.owner.name.clone(),
            namespace: seen.owner.namespace.clone(),
        },
        env: &trainer.env,
        resources: trainer.resources.as_ref(),
    })
}

/// The store's volume. With a bucket it is the pod's own scratch volume, for downloads.
fn store_volume(seen: &RunObservation) -> Value {
    match store_claim_of(&seen.run) {
        Some(claim) => claim_volume("store", &claim, false),
        None => scratch_volume("store"),
    }
}

/// The name of the volume claim as a label's value, which has a shorter limit than a name.
fn store_label(seen: &RunObservation) -> String {
    let claim = store_claim_of(&seen.run).unwrap_or_else(|| names::store_claim(&seen.owner.name));
    if claim.len() <= 63 {
        claim
    } else {
        digest(&json!(claim))
    }
}

fn group_pod_spec(seen: &RunObservation, settings: &Settings, volumes: Vec<Value>) -> Value {
    let mut spec = json!({
        "restartPolicy": "Never",
        "enableServiceLinks": false,
        "terminationGracePeriodSeconds": 30,
        "securityContext": pod_security(settings),
        "volumes": volumes,
    });
    let run = &seen.run.spec;
    if let Some(class) = &run.priority_class_name {
        spec["priorityClassName"] = json!(class);
    }
    if !run.image_pull_secrets.is_empty() {
        spec["imagePullSecrets"] = json!(run.image_pull_secrets);
    }
    if seen.store != StoreVolume::Shared {
        spec["affinity"] = json!({"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{
            "labelSelector": {"matchLabels": {names::STORE: store_label(seen)}},
            "topologyKey": "kubernetes.io/hostname",
        }]}});
    }
    spec
}

fn group_pod(seen: &RunObservation, role: &str, attempt: u32, rank: u32, spec: Value) -> DesiredObject {
    let owner = &seen.owner;
    let (attempt_text, rank_text, claim) = (attempt.to_string(), rank.to_string(), store_label(seen));
    let labels = labels([
        (names::RUN, owner.name.as_str()),
        (names::ROLE, role),
        (names::ATTEMPT, attempt_text.as_str()),
        (names::RANK, rank_text.as_str()),
        (names::STORE, claim.as_str()),
    ]);
    owner.object::<Pod>(
        names::group_pod(&owner.name, role, attempt, rank),
        &labels,
        json!({"spec": spec}),
    )
}
