//! One container of a plan: image, command line, environment, resources, mounts and probes.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{Container, EnvVar, Probe, ResourceRequirements, Volume, VolumeMount, VolumeProjection},
    apimachinery::pkg::{api::resource::Quantity, util::intstr::IntOrString},
};
use serde::Serialize;

/// Volumes added by Kubernetes: the token of a service account.
const ADDED_BY_KUBERNETES: &str = "kube-api-access-";

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerPlan {
    name: String,
    image: String,
    /// Command and arguments, one line for each flag with its value.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    command: Vec<String>,
    env: BTreeMap<String, String>,
    resources: BTreeMap<String, String>,
    /// Requests of ResourceClaims, by the claim's name within the pod.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    devices: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    ports: Vec<String>,
    mounts: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    probes: BTreeMap<&'static str, String>,
    /// Set if it differs from the restricted Pod Security level.
    #[serde(skip_serializing_if = "Option::is_none")]
    security: Option<String>,
}

impl ContainerPlan {
    /// `sidecar`: the container starts before the others and ends after them.
    pub fn of(container: &Container, volumes: &[Volume], sidecar: bool) -> Self {
        let words = container
            .command
            .iter()
            .flatten()
            .chain(container.args.iter().flatten());
        let ports = container.ports.iter().flatten();
        Self {
            name: if sidecar {
                format!("{} (sidecar)", container.name)
            } else {
                container.name.clone()
            },
            image: container.image.clone().unwrap_or_default(),
            command: lines(words.map(String::as_str)),
            env: container.env.iter().flatten().map(variable).collect(),
            resources: resources(container.resources.as_ref()),
            devices: devices(container.resources.as_ref()),
            ports: ports
                .map(|port| format!("{} {}", port.name.as_deref().unwrap_or("unnamed"), port.container_port))
                .collect(),
            mounts: container
                .volume_mounts
                .iter()
                .flatten()
                .filter(|mount| !mount.name.starts_with(ADDED_BY_KUBERNETES))
                .map(|mount| (mount.mount_path.clone(), mounted(mount, volumes)))
                .collect(),
            probes: probes(container),
            security: unrestricted(container),
        }
    }

    pub fn gpus(container: &Container) -> i64 {
        let limits = container
            .resources
            .as_ref()
            .and_then(|resources| resources.limits.as_ref());
        let gpus = limits.and_then(|limits| limits.get("nvidia.com/gpu"));
        gpus.and_then(|gpus| gpus.0.parse().ok()).unwrap_or(0)
    }
}

/// A flag and the value that follows it share a line.
fn lines<'a>(words: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    let mut takes_value = false;
    for word in words {
        let quoted = if word.is_empty() || word.contains([' ', '\n', '"']) {
            format!("{word:?}")
        } else {
            word.to_owned()
        };
        match lines.last_mut().filter(|_| takes_value && !word.starts_with('-')) {
            Some(line) => {
                line.push(' ');
                line.push_str(&quoted);
                takes_value = false;
            }
            None => {
                takes_value = word.starts_with('-') && !word.contains('=');
                lines.push(quoted);
            }
        }
    }
    lines
}

fn variable(variable: &EnvVar) -> (String, String) {
    let from = || {
        let source = variable.value_from.as_ref()?;
        let field = source.field_ref.as_ref().map(|field| format!("<{}>", field.field_path));
        let secret = source
            .secret_key_ref
            .as_ref()
            .map(|secret| format!("<{} of Secret {}>", secret.key, secret.name));
        let config = source
            .config_map_key_ref
            .as_ref()
            .map(|config| format!("<{} of ConfigMap {}>", config.key, config.name));
        field.or(secret).or(config)
    };
    let value = variable.value.clone().or_else(from).unwrap_or_default();
    (variable.name.clone(), value)
}

/// Requests and limits by resource. Without a request, the limit is the request: Kubernetes' rule.
pub fn resources(given: Option<&ResourceRequirements>) -> BTreeMap<String, String> {
    let empty = BTreeMap::new();
    let requests = given.and_then(|given| given.requests.as_ref()).unwrap_or(&empty);
    let limits = given.and_then(|given| given.limits.as_ref()).unwrap_or(&empty);
    let words = |name: &String| {
        let promised: Option<&Quantity> = requests.get(name).or_else(|| limits.get(name));
        match (promised, limits.get(name)) {
            (Some(promised), Some(limit)) if promised == limit => limit.0.clone(),
            (Some(promised), Some(limit)) => format!("{} to {}", promised.0, limit.0),
            (Some(promised), None) => format!("at least {}", promised.0),
            (None, _) => String::new(),
        }
    };
    requests
        .keys()
        .chain(limits.keys())
        .map(|name| (name.clone(), words(name)))
        .collect()
}

fn devices(given: Option<&ResourceRequirements>) -> BTreeMap<String, String> {
    let claims = given.and_then(|given| given.claims.as_ref()).into_iter().flatten();
    let request = |request: &Option<String>| request.clone().unwrap_or_else(|| "all requests".to_owned());
    claims
        .map(|claim| (claim.name.clone(), request(&claim.request)))
        .collect()
}

fn mounted(mount: &VolumeMount, volumes: &[Volume]) -> String {
    let volume = volumes.iter().find(|volume| volume.name == mount.name);
    let what = volume.map_or_else(|| format!("volume {}, which is not there", mount.name), volume_in_words);
    let within = mount
        .sub_path
        .as_ref()
        .map(|path| format!(", folder {path}"))
        .unwrap_or_default();
    let how = if mount.read_only == Some(true) {
        ", read-only"
    } else {
        ""
    };
    format!("{what}{within}{how}")
}

fn volume_in_words(volume: &Volume) -> String {
    if let Some(claim) = &volume.persistent_volume_claim {
        return format!("claim {}", claim.claim_name);
    }
    if let Some(image) = &volume.image {
        return format!("image {}", image.reference.as_deref().unwrap_or_default());
    }
    if let Some(config) = &volume.config_map {
        return format!("ConfigMap {}", config.name);
    }
    if let Some(secret) = &volume.secret {
        return format!("Secret {}", secret.secret_name.as_deref().unwrap_or_default());
    }
    if let Some(path) = &volume.host_path {
        return format!("the node's {}", path.path);
    }
    if let Some(scratch) = &volume.empty_dir {
        let medium = match scratch.medium.as_deref() {
            Some("Memory") => "memory",
            _ => "scratch",
        };
        let size = scratch.size_limit.as_ref().map(|size| format!(" of {}", size.0));
        return format!("{medium}{}", size.unwrap_or_default());
    }
    if let Some(projected) = &volume.projected {
        let sources = projected.sources.iter().flatten();
        return sources.map(source_in_words).collect::<Vec<_>>().join(", ");
    }
    format!("volume {} of a kind that is not described", volume.name)
}

fn source_in_words(source: &VolumeProjection) -> String {
    if let Some(token) = &source.service_account_token {
        return format!("token for {}", token.audience.as_deref().unwrap_or("the API server"));
    }
    if let Some(config) = &source.config_map {
        return format!("ConfigMap {}", config.name);
    }
    "a source of a kind that is not described".to_owned()
}

fn probes(container: &Container) -> BTreeMap<&'static str, String> {
    let probes = [
        ("startup", &container.startup_probe),
        ("liveness", &container.liveness_probe),
        ("readiness", &container.readiness_probe),
    ];
    let mut words: BTreeMap<&str, String> = probes
        .into_iter()
        .filter_map(|(name, probe)| Some((name, probe_in_words(probe.as_ref()?))))
        .collect();
    let before_stop = container
        .lifecycle
        .as_ref()
        .and_then(|lifecycle| lifecycle.pre_stop.as_ref());
    if let Some(get) = before_stop.and_then(|hook| hook.http_get.as_ref()) {
        words.insert(
            "before stop",
            format!("GET :{}{}", port(&get.port), get.path.as_deref().unwrap_or("/")),
        );
    }
    words
}

fn probe_in_words(probe: &Probe) -> String {
    let what = match (&probe.http_get, &probe.exec) {
        (Some(get), _) => format!("GET :{}{}", port(&get.port), get.path.as_deref().unwrap_or("/")),
        (None, Some(exec)) => exec.command.iter().flatten().cloned().collect::<Vec<_>>().join(" "),
        (None, None) => "a probe of a kind that is not described".into(),
    };
    let (period, failures) = (probe.period_seconds.unwrap_or(10), probe.failure_threshold.unwrap_or(3));
    format!("{what} every {period} s, given up after {failures} failures")
}

fn port(port: &IntOrString) -> String {
    match port {
        IntOrString::Int(number) => number.to_string(),
        IntOrString::String(name) => name.clone(),
    }
}

/// Returns `None` for a container that the restricted Pod Security level accepts, with a read-only root file system.
fn unrestricted(container: &Container) -> Option<String> {
    let context = container.security_context.clone().unwrap_or_default();
    let capabilities = context.capabilities.unwrap_or_default();
    let added = capabilities.add.unwrap_or_default();
    let drops_all = capabilities.drop.iter().flatten().any(|name| name == "ALL");
    let mut besides = Vec::new();
    if context.run_as_non_root != Some(true) {
        besides.push("may be root".to_owned());
    }
    if context.allow_privilege_escalation != Some(false) {
        besides.push("may gain privileges".to_owned());
    }
    if context.privileged == Some(true) {
        besides.push("privileged".to_owned());
    }
    if context.read_only_root_filesystem != Some(true) {
        besides.push("writes its root file system".to_owned());
    }
    if !drops_all {
        besides.push("keeps the runtime's capabilities".to_owned());
    }
    besides.extend(added.iter().map(|name| format!("has the capability {name}")));
    (!besides.is_empty()).then(|| besides.join(", "))
}

#[cfg(test)]
mod tests;
