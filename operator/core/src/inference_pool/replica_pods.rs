//! The pods of one replica: the engine on loopback with the agent, its only client, or the agent alone.
//!
//! | engine | pods | containers of the first |
//! |---|---|---|
//! | embedded | 1 | engine, agent |
//! | vllm, sglang | `nodes` | engine; the agent as a sidecar that ends after it |
//! | external | 1 | agent |
//!
//! An init container downloads a model from the hub or a bucket before the other containers start
//! ([`crate::model_download`]).
//!
//! The kubelet cannot reach an engine that listens on loopback, so its probes ask the agent, which asks the engine. An
//! engine of one pod is restarted in place. With several pods, none can continue without the others: none is restarted,
//! and the replica is created again.

use grpo_contracts::{ModelDownload, RemoteModel, RunConfig, access::Service};
use grpo_crds::InferencePoolSpec;
use grpo_crds::inference_pool::{CacheMedium, Device, ExternalApi, ExternalEngine, ExternalWeights};
use grpo_crds::sources::joined;
use k8s_openapi::api::core::v1::{Pod, ResourceRequirements};
use serde_json::{Value, json};

use super::{
    clients, disk,
    labels::pool_labels,
    launch::{AGENT, ENGINE, ENGINE_PORT, Launch, WEIGHTS_VOLUME},
    observation::InferencePoolObservation,
    sglang, shared_gpus, vllm,
};
use crate::{
    admission::Gate,
    desired_object::DesiredObject,
    model_download::{self, CACHE_VOLUME, Fetch, Pin, cache_volume},
    names::{self, PodKey, account},
    pod_parts::{
        add_pull_secrets, allow, api_server_access, container_security, environment, lay_over, model, mount,
        pod_security, resources, scratch_volume, tokens,
    },
    quantity::thousandths,
    settings::Settings,
};

/// Folder with the pulled versions: the agent writes it, the engine reads it.
const CACHE: &str = "/cache";
/// Folder for the engines' downloads and compiled files.
const MODEL_CACHE: &str = ModelDownload::CACHE_MOUNT;
/// Time for an idle engine to end.
const ENDING_SECONDS: u64 = 30;
/// The agent's variable for [`drain_key`].
const DRAIN_KEY: &str = "GRPO_DRAIN_KEY";
/// Probe period while an engine starts, and afterwards.
const STARTUP_PERIOD: u64 = 10;
const LIVENESS_PERIOD: u64 = 10;
/// An engine without an answer for two minutes is restarted.
const LIVENESS_FAILURES: u64 = 12;

/// A pod of a replica, annotated with the current template. The first pod has the agent.
pub fn member(seen: &InferencePoolObservation, settings: &Settings, key: PodKey, template: &str) -> DesiredObject {
    pod(seen, settings, key).annotated(names::TEMPLATE, template)
}

/// The pod without the annotation.
pub(super) fn pod(seen: &InferencePoolObservation, settings: &Settings, key: PodKey) -> DesiredObject {
    let engine = &seen.pool.spec.engine;
    let name = names::engine_pod(&seen.owner.name, key);
    let attempt = key.attempt;
    let mut spec = json!({
        "restartPolicy": if engine.nodes() > 1 { "Never" } else { "Always" },
        "enableServiceLinks": false,
        "serviceAccountName": account::engines(&seen.owner.name),
        "automountServiceAccountToken": false,
        "terminationGracePeriodSeconds": grace_seconds(seen),
        "hostname": name,
        "subdomain": names::engines(&seen.owner.name),
        "securityContext": pod_security(settings),
    });
    match (&engine.external, &engine.embedded) {
        (Some(external), _) => {
            spec["volumes"] = json!([scratch_volume(WEIGHTS_VOLUME), scratch_volume("tmp")]);
            spec["containers"] = json!([external_agent(seen, external, settings, attempt)]);
        }
        (None, Some(_)) => {
            let (container, volumes) = embedded_engine(seen, settings, attempt);
            let flags = ["--engine".to_owned(), format!("http://127.0.0.1:{ENGINE_PORT}")];
            spec["volumes"] = json!(volumes);
            spec["containers"] = json!([container, agent(seen, settings, attempt, &flags, Vec::new())]);
        }
        (None, None) => {
            let leader = format!(
                "{}.{}",
                names::engine_pod(&seen.owner.name, PodKey { rank: 0, ..key }),
                names::engines(&seen.owner.name)
            );
            let launch = Launch::of(&seen.pool.spec, key.rank, leader);
            let (container, volumes) = served_engine(seen, settings, &launch, attempt);
            spec["volumes"] = json!(volumes);
            spec["containers"] = json!([container]);
            if key.rank == 0 {
                let drain = json!({"name": DRAIN_KEY, "value": drain_key(seen)});
                let mut agent = agent(seen, settings, attempt, &flags_of_served(seen), vec![drain]);
                // A sidecar starts before the engine and ends after it, so it can answer the engine's probes and drain
                // it.
                agent["restartPolicy"] = json!("Always");
                spec["initContainers"] = json!([agent]);
            }
        }
    }
    let fetch = fetch_model(seen);
    let secret = fetch.as_ref().and_then(|fetch| model_download::secret(&fetch.model));
    let (tokens, access) = agent_access();
    if let Some(volumes) = spec["volumes"].as_array_mut() {
        volumes.extend(secret.map(|(volume, _)| volume));
        if key.rank == 0 {
            volumes.extend([tokens.0, access.0]);
        } else if fetch.is_some() {
            volumes.push(tokens.0);
        }
    }
    if let Some(fetch) = fetch {
        let mut first = vec![fetch.container(settings, attempt)];
        first.extend(
            spec["initContainers"]
                .as_array_mut()
                .into_iter()
                .flat_map(std::mem::take),
        );
        spec["initContainers"] = json!(first);
    }
    disk::request(&mut spec);
    shared_gpus::give(&seen.pool.spec, key.group, &mut spec);
    let mut labels = pool_labels(seen);
    for (label, number) in [
        (names::GROUP, key.group),
        (names::ATTEMPT, attempt),
        (names::RANK, key.rank),
    ] {
        labels.insert(label.to_owned(), number.to_string());
    }
    let mut pod = seen.owner.object::<Pod>(name, &labels, json!({"spec": spec}));
    lay_over(&mut pod.object, seen.pool.spec.pod_template.as_ref());
    add_pull_secrets(&mut pod.object["spec"], settings);
    if let Some(gate) = Gate::of_pool(&seen.pool) {
        gate.put_on(&mut pod.object);
    }
    pod
}

/// How a pod gets a downloaded model. An external engine brings its own.
fn fetch_model(seen: &InferencePoolObservation) -> Option<Fetch<'_>> {
    let spec = &seen.pool.spec;
    let model = RemoteModel::of(&spec.model).filter(|_| spec.engine.external.is_none())?;
    let (owner, cache) = (&seen.owner, MODEL_CACHE);
    Some(Fetch {
        model,
        cache: joined(cache, Some(ModelDownload::HUB_FOLDER)),
        cache_mount: mount(CACHE_VOLUME, cache, false),
        pin: match &seen.run {
            Some(run) => Pin::Driver {
                run: run.clone(),
                namespace: owner.namespace.clone(),
            },
            None => Pin::Cache {
                name: owner.uid.clone(),
            },
        },
        env: &spec.env,
        resources: spec.resources.as_ref(),
    })
}

/// Time to drain plus time to end.
fn grace_seconds(seen: &InferencePoolObservation) -> u64 {
    let spec = &seen.pool.spec;
    match (spec.update.drain_timeout, &spec.engine.embedded) {
        (Some(drain), _) => drain.as_secs() + ENDING_SECONDS,
        (None, Some(_)) => 10,
        (None, None) => 120 + ENDING_SECONDS,
    }
}

fn flags_of_served(seen: &InferencePoolObservation) -> Vec<String> {
    let engine = &seen.pool.spec.engine;
    let mut flags = vec![
        "--engine".to_owned(),
        format!("http://127.0.0.1:{ENGINE_PORT}"),
        "--kind".to_owned(),
        engine.name().to_owned(),
    ];
    if engine.nodes() > 1 {
        flags.extend(["--nodes".to_owned(), engine.nodes().to_string()]);
    }
    if engine.vllm.as_ref().is_some_and(|vllm| vllm.device == Device::Cpu) {
        flags.push("--cpu".to_owned());
    }
    flags
}

/// The key in the kubelet's drain request: the pool's uid. Users with read access to the pool can read it; callers with
/// network access to the agents alone cannot.
fn drain_key(seen: &InferencePoolObservation) -> &str {
    &seen.owner.uid
}

/// Volumes and mounts of the agent alone: its tokens, and access to the cluster's public keys.
fn agent_access() -> ((Value, Value), (Value, Value)) {
    (tokens(&[Service::Driver, Service::EngineAgent]), api_server_access())
}

/// Accounts that may call the agents without limits. A pool made for a run serves that run; any other pool serves the
/// runs of its namespace and the agents of other pools.
fn callers(seen: &InferencePoolObservation) -> Vec<String> {
    match &seen.run {
        Some(run) => vec![account::driver(run)],
        None => vec![account::driver("*"), account::engines("*")],
    }
}

/// The agent's container; `flags` describe its engine.
fn agent(
    seen: &InferencePoolObservation,
    settings: &Settings,
    attempt: u32,
    flags: &[String],
    secrets: Vec<Value>,
) -> Value {
    let mut args = flags.to_vec();
    args.extend(["--cache-dir".to_owned(), CACHE.to_owned()]);
    args.extend(allow(&seen.owner.namespace, callers(seen)));
    if seen.run.is_some() && seen.pool.spec.engine.external.is_none() {
        // The agents of the pool pass weights on to each other.
        let own = account::engines(&seen.owner.name);
        args.extend(["--allow-chunks".to_owned(), format!("{}/{own}", seen.owner.namespace)]);
    }
    args.extend(clients::flags(seen));
    // Its token reaches the pods of all namespaces, so it allows nothing but what the operator reads.
    if let Some(operator) = &settings.account {
        args.extend(["--allow-status".to_owned(), operator.clone()]);
    }
    let (tokens, access) = agent_access();
    // An external engine has no container: the pool's variables, proxies among them, are its agent's.
    let given: &[_] = match &seen.pool.spec.engine.external {
        Some(_) => seen.pool.spec.env.as_slice(),
        None => &[],
    };
    let given_resources = seen.pool.spec.agent_resources.as_ref();
    let mut resources = resources(given_resources, 0);
    let in_memory = in_memory(&seen.pool.spec).filter(|_| !names_memory(given_resources));
    if let Some(bytes) = in_memory {
        // The kubelet charges files in memory to the container that writes them.
        resources["requests"]["memory"] = json!(format!("{}Mi", 64 + bytes.div_ceil(1 << 20)));
    }
    json!({
        "name": AGENT,
        "image": settings.agent_image,
        "imagePullPolicy": settings.image_pull_policy,
        "args": args,
        "env": with_secrets(environment(settings, attempt, &[], given), secrets),
        "ports": [{"name": "http", "containerPort": RunConfig::AGENT_PORT, "protocol": "TCP"}],
        "readinessProbe": {
            "httpGet": {"path": "/readyz", "port": RunConfig::AGENT_PORT},
            "periodSeconds": 1,
        },
        "resources": resources,
        "securityContext": container_security(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [mount(WEIGHTS_VOLUME, CACHE, false), mount("tmp", "/tmp", false), tokens.1, access.1],
    })
}

fn external_agent(
    seen: &InferencePoolObservation,
    external: &ExternalEngine,
    settings: &Settings,
    attempt: u32,
) -> Value {
    // The agent adds the paths itself.
    let server = external.url.trim_end_matches('/').trim_end_matches("/v1");
    let kind = match (external.weights, external.api) {
        (ExternalWeights::Agent, _) => "agent",
        (ExternalWeights::Frozen, ExternalApi::Tokens) => "openai",
        (ExternalWeights::Frozen, ExternalApi::Chat) => "chat",
    };
    let tokens: Vec<String> = external.probe.tokens.iter().map(u32::to_string).collect();
    let mut flags: Vec<String> = ["--engine", server, "--kind", kind, "--probe-tokens", &tokens.join(",")]
        .map(str::to_owned)
        .into();
    flags.extend([
        "--probe-seconds".to_owned(),
        external.probe.period.as_secs().max(1).to_string(),
    ]);
    flags.extend([
        "--probe-timeout-seconds".to_owned(),
        external.probe.timeout.as_secs().max(1).to_string(),
    ]);
    if let Some(model) = &external.model {
        flags.extend(["--model".to_owned(), model.clone()]);
    }
    if external.weights == ExternalWeights::Agent && external.api_key_secret_ref.is_none() && is_service(server) {
        flags.push("--own-token".to_owned());
    }
    let key = external.api_key_secret_ref.as_ref().map(
        |key| json!({"name": "ENGINE_API_KEY", "valueFrom": {"secretKeyRef": {"name": key.name, "key": key.key}}}),
    );
    agent(seen, settings, attempt, &flags, key.into_iter().collect())
}

/// Whether a URL names a service of this cluster explicitly: the pod's token is sent to no other host.
fn is_service(url: &str) -> bool {
    let rest = url.strip_prefix("http://").unwrap_or_default();
    let host = rest.split([':', '/']).next().unwrap_or_default();
    host.ends_with(".svc") || host.ends_with(".svc.cluster.local")
}

/// Whether resources have an amount of memory.
fn names_memory(resources: Option<&ResourceRequirements>) -> bool {
    resources.is_some_and(|resources| {
        let mut sections = [&resources.requests, &resources.limits].into_iter().flatten();
        sections.any(|amounts| amounts.contains_key("memory"))
    })
}

/// Bytes of the weights cache, if it is in the node's memory.
fn in_memory(spec: &InferencePoolSpec) -> Option<u64> {
    let cache = spec.weights_cache.as_ref()?;
    let bytes = thousandths(&cache.size_limit)? / 1000;
    (cache.medium == Some(CacheMedium::Memory)).then_some(u64::try_from(bytes).ok()?)
}

/// The volume to which the agent pulls versions of the weights.
fn weights_volume(spec: &InferencePoolSpec) -> Value {
    let Some(cache) = &spec.weights_cache else {
        return scratch_volume(WEIGHTS_VOLUME);
    };
    let mut volume = json!({"name": WEIGHTS_VOLUME, "emptyDir": {"sizeLimit": cache.size_limit.0}});
    if cache.medium == Some(CacheMedium::Memory) {
        volume["emptyDir"]["medium"] = json!("Memory");
    }
    volume
}

fn embedded_engine(seen: &InferencePoolObservation, settings: &Settings, attempt: u32) -> (Value, Vec<Value>) {
    let spec = &seen.pool.spec;
    let mut volumes = vec![weights_volume(spec), scratch_volume("tmp")];
    let mut mounts = vec![mount(WEIGHTS_VOLUME, CACHE, true), mount("tmp", "/tmp", false)];
    if let Some((volume, at)) = model(&spec.model, settings) {
        volumes.push(volume);
        mounts.push(at);
    }
    if spec.model.is_downloaded() {
        volumes.push(cache_volume(spec.model_cache.as_ref()));
        mounts.push(mount(CACHE_VOLUME, MODEL_CACHE, true));
    }
    let container = json!({
        "name": ENGINE,
        "image": settings.engine_image,
        "imagePullPolicy": settings.image_pull_policy,
        "args": ["--model-dir", spec.model.directory(), "--listen", format!("127.0.0.1:{ENGINE_PORT}")],
        "env": environment(settings, attempt, &[], &spec.env),
        "resources": resources(spec.resources.as_ref(), 0),
        "securityContext": container_security(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounts,
    });
    (container, volumes)
}

/// The container of vLLM or SGLang, and the volumes of its pod.
fn served_engine(
    seen: &InferencePoolObservation,
    settings: &Settings,
    launch: &Launch<'_>,
    attempt: u32,
) -> (Value, Vec<Value>) {
    let spec = &seen.pool.spec;
    let shared_memory = spec.shared_memory.as_ref().map_or("16Gi", |size| size.0.as_str());
    let mut volumes = vec![
        weights_volume(spec),
        scratch_volume("tmp"),
        json!({"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": shared_memory}}),
        cache_volume(spec.model_cache.as_ref()),
    ];
    let mut mounts = vec![
        mount(WEIGHTS_VOLUME, CACHE, true),
        mount("tmp", "/tmp", false),
        mount("shm", "/dev/shm", false),
        mount(CACHE_VOLUME, MODEL_CACHE, false),
    ];
    if let Some((volume, at)) = model(&spec.model, settings) {
        volumes.push(volume);
        mounts.push(at);
    }
    let (image, command, args, mut own) = command_line(seen, settings, launch);
    own.extend(shared_environment());
    let mut container = json!({
        "name": ENGINE,
        "image": image,
        "imagePullPolicy": settings.image_pull_policy,
        "command": command,
        "args": args,
        "env": environment(settings, attempt, &own, &spec.env),
        "resources": resources(spec.resources.as_ref(), own_gpus(spec)),
        "securityContext": container_security(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounts,
    });
    if launch.node == 0 {
        let answers = json!({"path": "/engine/healthz", "port": RunConfig::AGENT_PORT});
        let startup = spec.startup_timeout.map_or(3600, |timeout| timeout.as_secs());
        container["startupProbe"] = json!({
            "httpGet": answers,
            "periodSeconds": STARTUP_PERIOD,
            "timeoutSeconds": 5,
            "failureThreshold": startup.div_ceil(STARTUP_PERIOD).max(1),
            "terminationGracePeriodSeconds": 10,
        });
        container["livenessProbe"] = json!({
            "httpGet": answers,
            "periodSeconds": LIVENESS_PERIOD,
            "timeoutSeconds": 5,
            "failureThreshold": LIVENESS_FAILURES,
            "terminationGracePeriodSeconds": 10,
        });
        // Answers when the engine is idle.
        container["lifecycle"] = json!({"preStop": {"httpGet": {
            "path": "/agent/v1/drain",
            "port": RunConfig::AGENT_PORT,
            "httpHeaders": [{"name": "Grpo-Drain-Key", "value": drain_key(seen)}],
        }}});
    }
    (container, volumes)
}

/// GPUs that the container asks for by itself.
fn own_gpus(spec: &InferencePoolSpec) -> u32 {
    match shared_gpus::are_shared(spec) {
        true => 0,
        false => spec.engine.gpus_per_node(),
    }
}

type CommandLine = (String, Value, Vec<String>, Vec<(&'static str, String)>);

/// Image, command, arguments and the engine's own environment variables.
fn command_line(seen: &InferencePoolObservation, settings: &Settings, launch: &Launch<'_>) -> CommandLine {
    let image = |given: &Option<String>, repository: &str, version: Option<&str>, usual: &str| {
        given
            .clone()
            .unwrap_or_else(|| format!("{repository}:v{}", version.unwrap_or(usual)))
    };
    let engine = &seen.pool.spec.engine;
    match (&engine.vllm, &engine.sglang) {
        (Some(vllm), _) => (
            image(
                &vllm.image,
                &settings.vllm_repository,
                vllm.version.as_deref(),
                vllm::VERSION,
            ),
            json!(vllm::COMMAND),
            vllm::arguments(vllm, launch),
            vllm::environment(launch, MODEL_CACHE),
        ),
        (None, sglang) => {
            let sglang = sglang.clone().unwrap_or_default();
            (
                image(
                    &sglang.image,
                    &settings.sglang_repository,
                    sglang.version.as_deref(),
                    sglang::VERSION,
                ),
                json!(sglang::COMMAND),
                sglang::arguments(&sglang, launch),
                sglang::environment(),
            )
        }
    }
}

/// Variables for Python engines that run as a user unknown to their image, on a read-only file system.
fn shared_environment() -> Vec<(&'static str, String)> {
    vec![
        ("USER", "grpo".to_owned()),
        ("HF_HOME", format!("{MODEL_CACHE}/huggingface")),
        ("TORCHINDUCTOR_CACHE_DIR", format!("{MODEL_CACHE}/torchinductor")),
        ("TRITON_CACHE_DIR", format!("{MODEL_CACHE}/triton")),
        ("PYTHONDONTWRITEBYTECODE", "1".to_owned()),
        // The model is already local: no request to the hub.
        ("HF_HUB_OFFLINE", "1".to_owned()),
    ]
}

/// An environment in which values from Secrets replace equal names.
fn with_secrets(environment: Value, secrets: Vec<Value>) -> Value {
    let mut environment = environment.as_array().cloned().unwrap_or_default();
    environment.retain(|variable| !secrets.iter().any(|secret| secret["name"] == variable["name"]));
    environment.extend(secrets);
    Value::Array(environment)
}
