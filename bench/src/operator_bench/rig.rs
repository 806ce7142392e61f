//! A control plane with the chart's rights and CRDs installed, its nodes, and operators as processes on this machine.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use k8s_openapi::api::core::v1::{Namespace, Node};
use kube::{
    Client, Resource, ResourceExt,
    api::{Api, DynamicObject, ListParams, Patch, PatchParams, PostParams},
    core::{ApiResource, GroupVersionKind},
};
use serde_json::{Value, json};

use super::{RigError, agents};
use grpo_testing::cluster::{ClusterError, api, cache};
use grpo_testing::control_plane::{ControlPlane, OPERATORS, Options, Part};

pub const SYSTEM: &str = "grpo-system";
/// Name of the Lease that the reconciling operator holds.
pub const LEASE: &str = "grpo-operator";

/// The control plane and the objects installed into it.
pub struct Rig {
    pub plane: ControlPlane,
    pub admin: Client,
    _agents: agents::Agents,
}

/// An operator process.
pub struct Operator {
    pub part: Part,
    /// Which of the two accounts it uses: see [`grpo_testing::control_plane::OPERATORS`].
    pub account: &'static str,
    pub metrics: String,
}

impl Rig {
    /// Starts everything except an operator.
    pub async fn start() -> Result<Self, RigError> {
        let plane = ControlPlane::start(Options::FULL).await?;
        let admin = plane.admin().await?;
        let agents = agents::Agents::serve(plane.pod_ip()).await?;
        install_chart(&admin).await?;
        Ok(Self {
            plane,
            admin,
            _agents: agents,
        })
    }

    /// Starts an operator. Two concurrent operators need two accounts, which the audit log tells apart.
    pub fn operator(&self, account: usize) -> Result<Operator, RigError> {
        self.operator_with(account, &[])
    }

    /// The same with more flags.
    pub fn operator_with(&self, account: usize, more: &[&str]) -> Result<Operator, RigError> {
        let account = OPERATORS[account % OPERATORS.len()];
        let user = self.plane.user(account)?;
        let port = grpo_testing::control_plane::free_port()?;
        let mut flags = vec![
            format!("--listen=127.0.0.1:{port}"),
            format!("--lease-namespace={SYSTEM}"),
            format!("--lease-name={LEASE}"),
            format!("--identity={account}"),
            "--log=warn,grpo_operator=info".to_owned(),
            // The examples use fields of later versions; here nothing runs them.
            "--admit-unsupported".to_owned(),
        ];
        flags.extend(more.iter().map(|flag| (*flag).to_owned()));
        let environment = vec![("KUBECONFIG".to_owned(), user.kubeconfig.display().to_string())];
        let operator = grpo_testing::program("grpo-operator").ok_or(RigError::NoOperator)?;
        let part = Part::start_with(account, &operator, flags, environment, self.plane.folder())?;
        Ok(Operator {
            part,
            account,
            metrics: format!("http://127.0.0.1:{port}/metrics"),
        })
    }

    /// A namespace for pods.
    pub async fn namespace(&self, name: &str) -> Result<(), RigError> {
        let namespaces: Api<Namespace> = Api::all(self.admin.clone());
        let namespace = parsed(json!({"metadata": {"name": name}}));
        namespaces
            .create(&PostParams::default(), &namespace)
            .await
            .map_err(api("creating namespace", name))?;
        let accounts: Api<k8s_openapi::api::core::v1::ServiceAccount> = Api::namespaced(self.admin.clone(), name);
        until(
            Duration::from_secs(30),
            "the namespace's default service account",
            async || {
                let account = accounts
                    .get_opt("default")
                    .await
                    .map_err(api("reading", "a service account"))?;
                Ok(account.map_or_else(|| Err("not there".into()), |_| Ok(())))
            },
        )
        .await
    }

    /// A node with capacity for any number of ordinary pods, and this many GPUs.
    pub async fn node(&self, name: &str, gpus: u32, labels: &Value, taints: &Value) -> Result<(), RigError> {
        node(&self.admin, name, gpus, labels, taints).await
    }

    /// The value of one of the operator's metrics.
    pub async fn metric(&self, operator: &Operator, name: &str) -> Option<f64> {
        let text = agents::fetch(&operator.metrics).await?;
        let line = text.lines().find(|line| line.split([' ', '{']).next() == Some(name))?;
        line.rsplit(' ').next()?.parse().ok()
    }
}

impl Operator {
    /// Resident memory, in MiB.
    pub fn resident(&self) -> Option<f64> {
        self.part.memory("VmRSS:")
    }

    /// Peak resident memory, in MiB.
    pub fn most_resident(&self) -> Option<f64> {
        self.part.memory("VmHWM:")
    }

    /// Processor time used so far, in seconds.
    pub fn processor_seconds(&self) -> Option<f64> {
        self.part.processor_seconds()
    }
}

/// A node with capacity for any number of ordinary pods, and this many GPUs.
pub async fn node(client: &Client, name: &str, gpus: u32, labels: &Value, taints: &Value) -> Result<(), RigError> {
    let nodes: Api<Node> = Api::all(client.clone());
    let mut all = json!({"kubernetes.io/hostname": name});
    if let (Some(all), Some(labels)) = (all.as_object_mut(), labels.as_object()) {
        all.extend(labels.clone());
    }
    let node = parsed(json!({"metadata": {"name": name, "labels": all}, "spec": {"taints": taints}}));
    nodes
        .create(&PostParams::default(), &node)
        .await
        .map_err(api("creating node", name))?;
    let capacity = json!({
        "cpu": "1k",
        "memory": "16Ti",
        "ephemeral-storage": "100Ti",
        "pods": "100k",
        "nvidia.com/gpu": gpus.to_string(),
    });
    nodes
        .patch_status(
            name,
            &PatchParams::default(),
            &Patch::Merge(json!({"status": {"capacity": capacity, "allocatable": capacity}})),
        )
        .await
        .map_err(api("giving capacity to node", name))?;
    Ok(())
}

/// Repeats a question until it has an answer; the error contains the last observation.
pub async fn until<T>(
    limit: Duration,
    what: &str,
    mut ask: impl AsyncFnMut() -> Result<Result<T, String>, ClusterError>,
) -> Result<T, RigError> {
    let begun = Instant::now();
    loop {
        let there = match ask().await? {
            Ok(answer) => return Ok(answer),
            Err(there) => there,
        };
        if begun.elapsed() > limit {
            return Err(RigError::Never {
                what: what.to_owned(),
                limit,
                there,
            });
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Parses one of our JSON values as a Kubernetes object; all of them are written in this folder.
pub fn parsed<K: serde::de::DeserializeOwned + Default>(value: Value) -> K {
    serde_json::from_value(value).unwrap_or_default()
}

/// Uids of all objects of the kinds that the operator creates, by kind, namespace and name.
pub async fn uids(client: &Client, kinds: &[ApiResource]) -> Result<BTreeMap<String, String>, RigError> {
    let mut all = BTreeMap::new();
    for kind in kinds {
        let objects: Api<DynamicObject> = Api::all_with(client.clone(), kind);
        let listed = objects
            .list_metadata(&ListParams::default())
            .await
            .map_err(api("listing", kind.plural.clone()))?;
        for object in listed {
            let name = format!(
                "{} {}/{}",
                kind.kind,
                object.namespace().unwrap_or_default(),
                object.name_any()
            );
            all.insert(name, object.uid().unwrap_or_default());
        }
    }
    Ok(all)
}

/// The kinds that the operator creates.
pub fn kinds() -> Vec<ApiResource> {
    use grpo_crds::{GrpoRun, InferencePool, SandboxPool};
    use k8s_openapi::api::{apps, core, networking, rbac, resource};
    vec![
        ApiResource::erase::<GrpoRun>(&()),
        ApiResource::erase::<InferencePool>(&()),
        ApiResource::erase::<SandboxPool>(&()),
        ApiResource::erase::<core::v1::Pod>(&()),
        ApiResource::erase::<core::v1::Service>(&()),
        ApiResource::erase::<core::v1::ConfigMap>(&()),
        ApiResource::erase::<core::v1::Secret>(&()),
        ApiResource::erase::<core::v1::ServiceAccount>(&()),
        ApiResource::erase::<core::v1::PersistentVolumeClaim>(&()),
        ApiResource::erase::<apps::v1::Deployment>(&()),
        ApiResource::erase::<networking::v1::NetworkPolicy>(&()),
        ApiResource::erase::<rbac::v1::Role>(&()),
        ApiResource::erase::<rbac::v1::RoleBinding>(&()),
        ApiResource::erase::<resource::v1::ResourceClaim>(&()),
    ]
}

/// Installs the chart's CRDs and rights, without its Deployment.
async fn install_chart(client: &Client) -> Result<(), RigError> {
    let chart = grpo_testing::chart::folder();
    let rendered = tokio::process::Command::new(cache().join("bin/helm"))
        .args(["template", "grpo"])
        .arg(chart)
        .args(["--namespace", SYSTEM, "--include-crds"])
        .output()
        .await
        .map_err(|error| RigError::Chart(error.to_string()))?;
    if !rendered.status.success() {
        return Err(RigError::Chart(String::from_utf8_lossy(&rendered.stderr).into_owned()));
    }
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let system = parsed(json!({"metadata": {"name": SYSTEM}}));
    namespaces
        .create(&PostParams::default(), &system)
        .await
        .map_err(api("creating namespace", SYSTEM))?;
    let text = String::from_utf8_lossy(&rendered.stdout).into_owned();
    for document in serde_yaml_ng::Deserializer::from_str(&text) {
        let object: Value =
            serde::Deserialize::deserialize(document).map_err(|error| RigError::Chart(error.to_string()))?;
        if object["kind"] != "Deployment" && !object.is_null() {
            apply_any(client, &object).await?;
        }
    }
    for kind in ["grporuns", "inferencepools", "sandboxpools"] {
        established(client, kind).await?;
    }
    Ok(())
}

/// Applies an object of any kind.
async fn apply_any(client: &Client, object: &Value) -> Result<(), RigError> {
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let (group, version) = text("/apiVersion").split_once('/').unwrap_or(("", text("/apiVersion")));
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, text("/kind")));
    let objects: Api<DynamicObject> = match object.pointer("/metadata/namespace").and_then(Value::as_str) {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    };
    let name = text("/metadata/name");
    objects
        .patch(name, &PatchParams::apply("chart").force(), &Patch::Apply(object))
        .await
        .map_err(api("applying", format!("{} {name}", resource.kind)))?;
    Ok(())
}

async fn established(client: &Client, plural: &str) -> Result<(), RigError> {
    use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
    let name = format!("{plural}.{}", grpo_crds::GROUP);
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    until(Duration::from_secs(30), "the CRDs to be served", async || {
        let crd = crds.get(&name).await.map_err(api("reading CRD", name.clone()))?;
        let conditions = crd.status.and_then(|status| status.conditions).unwrap_or_default();
        let served = conditions
            .iter()
            .any(|c| c.type_ == "Established" && c.status == "True");
        Ok(if served { Ok(()) } else { Err(format!("{conditions:?}")) })
    })
    .await
}

/// Uid of an object, for owner references.
pub fn owner<K: Resource<DynamicType = ()>>(object: &K) -> Value {
    json!([object.controller_owner_ref(&())])
}
