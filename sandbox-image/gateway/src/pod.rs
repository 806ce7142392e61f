//! Builds sandbox pods: any image, unmodified, with sandboxd as process 1 and all other access removed.

use std::hash::{Hash, Hasher};

use grpo_contracts::image_name::rewritten;
use grpo_contracts::names::{AGENT_FOLDER, GRADER};
use grpo_crds::SandboxPoolSpec;
use grpo_crds::sandbox_pool::Reset;
use grpo_sandbox_protocol::{KEY_ENV, MOUNT, RESET_EXIT, SANDBOXD_PORT};
use k8s_openapi::api::core::v1::{
    Affinity, Container, ContainerRestartRule, ContainerRestartRuleOnExitCodes, HostAlias, NodeAffinity, Pod,
};
use kube::Resource;
use serde_json::json;

pub const POOL_LABEL: &str = "grpo.dev/sandbox-pool";
const ROLE_LABEL: &str = "grpo.dev/role";
const PREFETCH: &str = "image";
/// Selects the pool's sandboxes only: the gateway's own pod carries the pool's label too.
pub fn selector(pool: &str) -> String {
    format!("{POOL_LABEL}={pool},{ROLE_LABEL}=sandbox")
}
/// Selects the prefetch pods.
pub fn prefetch_selector(pool: &str) -> String {
    format!("{POOL_LABEL}={pool},{ROLE_LABEL}={PREFETCH}")
}
/// The slot of a sandbox on its node, if the pool bounds sandboxes per node.
pub const SLOT_LABEL: &str = "grpo.dev/sandbox-slot";
/// The image as in the lease, before rewriting.
pub const IMAGE_ANNOTATION: &str = "grpo.dev/image";
/// The gateway that made the pod: its term of the ledger.
pub const TERM_ANNOTATION: &str = "grpo.dev/gateway-term";
/// Digest of the pod's template, without image and slot. A later gateway takes over pods with its own digest.
pub const TEMPLATE_ANNOTATION: &str = "grpo.dev/sandbox-template";
/// The package index that a grader's pod reaches; set with the label.
pub const INDEX_ANNOTATION: &str = "grpo.dev/package-index";
/// The kubelet's name for the only container of a sandbox.
pub const CONTAINER: &str = "sandbox";

/// The common properties of all sandboxes of a pool.
#[derive(Clone, Debug)]
pub struct Template {
    pub pool: String,
    pub pool_uid: String,
    pub namespace: String,
    pub sandboxd_image: String,
    pub public_key: String,
    pub spec: SandboxPoolSpec,
    /// The term in which this gateway holds the ledger.
    pub term: u64,
}

/// Makes the container restart on sandboxd's reset exit code and on no other end. The rule removes all containers of
/// the pod first (it has only this one): a container that is merely started again would wait longer each time.
fn restarts_on_reset(container: &mut Container) {
    container.restart_policy = Some("Never".to_owned());
    container.restart_policy_rules = Some(vec![ContainerRestartRule {
        action: "RestartAllContainers".to_owned(),
        exit_codes: Some(ContainerRestartRuleOnExitCodes {
            operator: "In".to_owned(),
            values: Some(vec![RESET_EXIT.into()]),
        }),
    }]);
}

/// Whether the API server refused a pod because it does not know this rule.
pub fn is_refused_for_its_rule(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 422 && status.message.contains("restartPolicy"))
}

/// Keeps the pool's pods of one slot on different nodes, so that a node has at most as many of them as there are slots.
/// The node is not known when a pod is made, so the scheduler enforces this.
fn one_per_node(pool: &str, slot: &str) -> Result<Affinity, serde_json::Error> {
    serde_json::from_value(
        json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{
            "labelSelector": {"matchLabels": {POOL_LABEL: pool, SLOT_LABEL: slot}},
            "topologyKey": "kubernetes.io/hostname",
        }]}}),
    )
}

/// The slot of a pod, if it has one.
pub fn slot(pod: &impl Resource) -> Option<u32> {
    pod.meta().labels.as_ref()?.get(SLOT_LABEL)?.parse().ok()
}

fn annotation<'a>(pod: &'a impl Resource, key: &str) -> Option<&'a str> {
    pod.meta().annotations.as_ref()?.get(key).map(String::as_str)
}

/// The term of the gateway that made the pod.
pub fn term(pod: &impl Resource) -> Option<u64> {
    annotation(pod, TERM_ANNOTATION)?.parse().ok()
}

/// Whether the pod has, or ever had, access to a package index: no agent may get such a pod.
pub fn is_graders(pod: &impl Resource) -> bool {
    let labels = pod.meta().labels.as_ref();
    labels.is_some_and(|labels| labels.contains_key(GRADER))
}

/// The package index that a grader's pod reaches.
pub fn index_of(pod: &impl Resource) -> Option<&str> {
    annotation(pod, INDEX_ANNOTATION).filter(|_| is_graders(pod))
}

/// The pod's image, if it was made from this `template`.
pub fn image_if_made_from<'a>(pod: &'a impl Resource, template: &str) -> Option<&'a str> {
    annotation(pod, TEMPLATE_ANNOTATION).filter(|made_from| *made_from == template)?;
    annotation(pod, IMAGE_ANNOTATION)
}

/// Digest of the template, to tell apart pods from different specs. Another build of the gateway may produce another
/// digest; it then takes over no pods.
pub fn template_digest(template: &Template) -> Result<String, serde_json::Error> {
    let text = serde_json::to_string(&bare(template, "", "", None)?)?;
    let mut hasher = std::hash::DefaultHasher::new();
    text.hash(&mut hasher);
    if let Some(index) = &template.spec.package_index {
        // The index's addresses are in the pods' hosts file.
        index.url.hash(&mut hasher);
    }
    Ok(format!("{:016x}", hasher.finish()))
}

/// The individual properties of a sandbox pod.
#[derive(Clone, Debug, Default)]
pub struct Placement {
    pub slot: Option<u32>,
    /// A preferred node, because it has the image.
    pub near: Option<String>,
    /// The package index's addresses for its hosts file.
    pub aliases: Vec<HostAlias>,
}

/// A sandbox pod.
pub fn sandbox(template: &Template, name: &str, image: &str, placement: &Placement) -> Result<Pod, serde_json::Error> {
    let mut pod = bare(template, name, image, placement.slot)?;
    let annotations = pod.metadata.annotations.get_or_insert_default();
    annotations.insert(TERM_ANNOTATION.to_owned(), template.term.to_string());
    annotations.insert(TEMPLATE_ANNOTATION.to_owned(), template_digest(template)?);
    if let Some(spec) = &mut pod.spec {
        if let Some(node) = &placement.near {
            spec.affinity.get_or_insert_default().node_affinity = Some(rather_on(node)?);
        }
        spec.host_aliases = (!placement.aliases.is_empty()).then(|| placement.aliases.clone());
    }
    Ok(pod)
}

/// A prefetch pod: it makes a node pull and keep the image, and does nothing else. Its name follows from the image and
/// the template, so repeated requests create it only once. It is isolated like a sandbox.
pub fn prefetch(template: &Template, image: &str) -> Result<Pod, serde_json::Error> {
    let made_from = template_digest(template)?;
    let mut hasher = std::hash::DefaultHasher::new();
    (image, &made_from).hash(&mut hasher);
    let name = format!("{}-img-{:010x}", template.pool, hasher.finish() >> 24);
    let mut pod = bare(template, &name, image, None)?;
    let labels = pod.metadata.labels.get_or_insert_default();
    labels.insert(ROLE_LABEL.to_owned(), PREFETCH.to_owned());
    let annotations = pod.metadata.annotations.get_or_insert_default();
    annotations.insert(TEMPLATE_ANNOTATION.to_owned(), made_from);
    if let Some(spec) = &mut pod.spec {
        // Spread over nodes, because one node can hold only a part of the pool's images.
        spec.topology_spread_constraints = serde_json::from_value(json!([{
            "maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": {POOL_LABEL: template.pool, ROLE_LABEL: PREFETCH}},
        }]))?;
        for container in &mut spec.containers {
            container.command = Some(vec![format!("{MOUNT}/sandboxd"), "hold".to_owned()]);
            container.name = PREFETCH.to_owned();
            (container.env, container.ports) = (None, None);
            (container.restart_policy, container.restart_policy_rules) = (None, None);
            container.resources = serde_json::from_value(json!({
                "requests": {"cpu": "1m", "memory": "32Mi"}, "limits": {"cpu": "100m", "memory": "32Mi"},
            }))?;
        }
    }
    Ok(pod)
}

/// Prefers a node if it has room. The weight exceeds the scheduler's other preferences.
fn rather_on(node: &str) -> Result<NodeAffinity, serde_json::Error> {
    serde_json::from_value(json!({"preferredDuringSchedulingIgnoredDuringExecution": [{
        "weight": 100,
        "preference": {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]},
    }]}))
}

fn image_volume(name: &str, image: &str) -> serde_json::Value {
    json!({"name": name, "image": {"reference": image, "pullPolicy": "IfNotPresent"}})
}

fn bare(template: &Template, name: &str, image: &str, slot: Option<u32>) -> Result<Pod, serde_json::Error> {
    let overlay = template.spec.pod_template.clone().unwrap_or_default();
    let metadata = overlay.metadata.unwrap_or_default();
    let spec = overlay.spec.unwrap_or_default();
    let mut labels = metadata.labels;
    // An overlay must not open a network to agents.
    labels.remove(GRADER);
    for (key, value) in [
        ("app.kubernetes.io/managed-by", "grpo-operator"),
        (ROLE_LABEL, "sandbox"),
        (POOL_LABEL, template.pool.as_str()),
    ] {
        labels.insert(key.to_owned(), value.to_owned());
    }
    let slot = slot.map(|slot| slot.to_string());
    if let Some(slot) = &slot {
        labels.insert(SLOT_LABEL.to_owned(), slot.clone());
    }
    let mut volumes = vec![image_volume("sandboxd", &template.sandboxd_image)];
    let mut mounts = vec![json!({"name": "sandboxd", "mountPath": MOUNT, "readOnly": true})];
    if let Some(image) = &template.spec.agent_image {
        volumes.push(image_volume("agent", image));
        mounts.push(json!({"name": "agent", "mountPath": AGENT_FOLDER, "readOnly": true}));
    }
    let mut annotations = metadata.annotations;
    annotations.insert(IMAGE_ANNOTATION.to_owned(), image.to_owned());
    let mut pod: Pod = serde_json::from_value(json!({
        "metadata": {
            "name": name,
            "namespace": template.namespace,
            "labels": labels,
            "annotations": annotations,
            "ownerReferences": [{
                "apiVersion": "grpo.dev/v1alpha1", "kind": "SandboxPool", "name": template.pool, "uid": template.pool_uid,
                "controller": true, "blockOwnerDeletion": false,
            }],
        },
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            // The policy gets no access to the API server.
            "automountServiceAccountToken": false,
            "enableServiceLinks": false,
            // Root inside is an unprivileged user outside: SWE-bench images run as root.
            "hostUsers": !template.spec.user_namespaces,
            "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
            "volumes": volumes,
            "containers": [{
                "name": CONTAINER,
                "image": rewritten(&template.spec.image_rewrites, image),
                "imagePullPolicy": "IfNotPresent",
                "command": [format!("{MOUNT}/sandboxd")],
                "env": [{"name": KEY_ENV, "value": template.public_key}],
                "ports": [{"name": "sandboxd", "containerPort": SANDBOXD_PORT, "protocol": "TCP"}],
                "resources": template.spec.bounded_resources(),
                "securityContext": {
                    "allowPrivilegeEscalation": false,
                    // What root in such an image needs to own files and change users; the user namespace confines it.
                    "capabilities": {"drop": ["ALL"], "add": ["CHOWN", "DAC_OVERRIDE", "FOWNER", "SETUID", "SETGID", "KILL"]},
                },
                "volumeMounts": mounts,
            }],
        },
    }))?;
    if let Some(pod) = &mut pod.spec {
        if template.spec.reset == Reset::ContainerRestart {
            pod.containers.iter_mut().for_each(restarts_on_reset);
        }
        pod.node_selector = (!spec.node_selector.is_empty()).then_some(spec.node_selector);
        pod.tolerations = (!spec.tolerations.is_empty()).then_some(spec.tolerations);
        pod.image_pull_secrets = (!spec.image_pull_secrets.is_empty()).then_some(spec.image_pull_secrets);
        pod.runtime_class_name = spec.runtime_class_name;
        pod.priority_class_name = spec.priority_class_name;
        pod.scheduler_name = spec.scheduler_name;
        pod.affinity = slot.map(|slot| one_per_node(&template.pool, &slot)).transpose()?;
    }
    Ok(pod)
}

#[cfg(test)]
mod tests;
