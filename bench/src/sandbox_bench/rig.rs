//! A control plane with simulated nodes and sandboxds, and a real gateway.

use grpo_auth::{LocalIssuer, ServiceAccount as Account};
use grpo_contracts::access::{Service, account};
use grpo_contracts::names::LEASES_PER_SHARD;
use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use futures::{StreamExt, TryStreamExt, stream};
use grpo_sandbox_protocol::{EgressReport, KEY_ENV, PoolReport, REPORT_ANNOTATION, SANDBOXD_PORT, Signer};
use jiff::Timestamp;
use k8s_openapi::api::{
    core::v1::{ConfigMap, Namespace, Node, Pod, ServiceAccount},
    rbac::v1::{ClusterRole, ClusterRoleBinding},
};
use kube::{
    Client,
    api::{Api, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use super::{SandboxBenchError, caller::Caller, played::Played};
use crate::operator_bench::rig::{node, parsed};
use grpo_testing::cluster::api;
use grpo_testing::control_plane::{BARE, ControlPlane, GATEWAY, Options, Part, free_port};

pub const NAMESPACE: &str = "sandboxes";
const POOL: &str = "pool";
const ISSUER: &str = "issuer.json";
const SEED: [u8; 32] = [7; 32];
/// Clears the path of the tests' own libraries, where every process started here would look for its own. A sandbox has
/// no such variable.
pub const OURS: (&str, &str) = ("LD_LIBRARY_PATH", "");

/// The control plane and its simulated sandboxes.
pub struct Rig {
    // Dropped first: it listens at the control plane's addresses.
    sandboxes: Sandboxes,
    pub plane: ControlPlane,
    pub admin: Client,
    /// The client that the gateway is compared with; the API server tells the two apart.
    pub bare: Client,
    max: usize,
    /// A token of the pool's client account; the gateway checks it with the keys in `issuer.json`.
    token: String,
}

/// The servers at the pods' addresses.
enum Sandboxes {
    Played(Played),
    /// One sandboxd, at the address that all pods have.
    Real {
        _part: Box<Part>,
    },
}

/// The gateway's process.
pub struct Gateway {
    pub part: Part,
    pub caller: Caller,
}

impl Rig {
    /// Starts everything except a gateway, for a pool of this many simulated sandboxes.
    pub async fn start(max: usize) -> Result<Self, SandboxBenchError> {
        let plane = ControlPlane::start(options(true)).await?;
        let played = Played::serve(&plane.pod_ips(), &signer().public_key()).await?;
        Self::of(plane, Sandboxes::Played(played), max).await
    }

    /// Starts everything except a gateway, for a pool of one sandbox with a real sandboxd.
    pub async fn with_a_sandboxd() -> Result<Self, SandboxBenchError> {
        let plane = ControlPlane::start(options(false)).await?;
        let address = SocketAddr::from((plane.pod_ip(), SANDBOXD_PORT));
        let part = sandboxd(address, plane.folder())?;
        let rig = Self::of(plane, Sandboxes::Real { _part: Box::new(part) }, 1).await?;
        rig.say_probed().await?;
        Ok(rig)
    }

    async fn of(plane: ControlPlane, sandboxes: Sandboxes, max: usize) -> Result<Self, SandboxBenchError> {
        let admin = plane.admin().await?;
        let bare = plane.user(BARE)?.client().await?;
        prepare(&admin).await?;
        for number in 0..max.div_ceil(1000).max(2) {
            let name = format!("node-{number}");
            node(&admin, &name, 0, &json!({}), &json!([])).await?;
            // Without this the scheduler ignores pods whose containers may restart.
            let features = json!({"status": {"declaredFeatures": ["RestartAllContainersOnContainerExits"]}});
            Api::<Node>::all(admin.clone())
                .patch_status(&name, &PatchParams::default(), &Patch::Merge(features))
                .await
                .map_err(api("declaring features of node", name))?;
        }
        let issuer = LocalIssuer::new().map_err(wrong)?;
        let client = Account::new(NAMESPACE, account::sandbox_client(POOL));
        let end = SystemTime::now() + Duration::from_secs(24 * 3600);
        let token = issuer
            .token_until(&client, Service::Gateway.audience(), end)
            .map_err(wrong)?;
        let rig = Self {
            sandboxes,
            plane,
            admin,
            bare,
            max,
            token,
        };
        std::fs::write(rig.file(ISSUER), issuer.file())?;
        rig.make_maps(&shards("ledger", max)).await?;
        rig.write_spec(&json!({}))?;
        std::fs::write(rig.file("seed"), SEED)?;
        Ok(rig)
    }

    /// Writes a report as an earlier gateway would. A probe would use up the only sandboxd, which obeys its first lease
    /// only.
    async fn say_probed(&self) -> Result<(), SandboxBenchError> {
        let report = PoolReport {
            egress: Some(EgressReport {
                at: Timestamp::now().as_millisecond(),
                tried: vec!["nothing: this is a bench".to_owned()],
                reached: Vec::new(),
                blocked_after_seconds: None,
                failed: None,
            }),
            ..PoolReport::default()
        };
        let report = serde_json::to_string(&report).map_err(|error| SandboxBenchError::Wrong(error.to_string()))?;
        let patch = Patch::Merge(json!({"metadata": {"annotations": {REPORT_ANNOTATION: report}}}));
        let [first] = &shards("ledger", 1)[..] else {
            return Ok(());
        };
        self.maps(&self.admin)
            .patch(first, &PatchParams::default(), &patch)
            .await
            .map_err(api("writing a report to ConfigMap", first))?;
        Ok(())
    }

    /// Writes the pool's spec for the next gateway: minimal, plus `more`.
    pub fn write_spec(&self, more: &Value) -> Result<(), SandboxBenchError> {
        let mut spec = json!({"max": self.max, "allowUnenforced": true});
        if let (Some(spec), Some(more)) = (spec.as_object_mut(), more.as_object()) {
            spec.extend(more.clone());
        }
        Ok(std::fs::write(self.file("pool.json"), spec.to_string())?)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.plane.folder().join(name)
    }

    /// The numbers of accepted and of rejected binds.
    pub fn binds(&self) -> (u64, u64) {
        match &self.sandboxes {
            Sandboxes::Played(played) => played.binds(),
            Sandboxes::Real { .. } => (0, 0),
        }
    }

    pub fn maps(&self, client: &Client) -> Api<ConfigMap> {
        Api::namespaced(client.clone(), NAMESPACE)
    }

    pub fn pods(&self, client: &Client) -> Api<Pod> {
        Api::namespaced(client.clone(), NAMESPACE)
    }

    /// Creates empty ConfigMaps.
    pub async fn make_maps(&self, names: &[String]) -> Result<(), SandboxBenchError> {
        let maps = self.maps(&self.admin);
        stream::iter(names)
            .map(|name| {
                let maps = &maps;
                async move {
                    let map = parsed(json!({"metadata": {"name": name}}));
                    maps.create(&PostParams::default(), &map)
                        .await
                        .map_err(api("creating ConfigMap", name))
                }
            })
            .buffer_unordered(8)
            .try_for_each(async |_| Ok(()))
            .await?;
        Ok(())
    }

    /// Starts the gateway. [`Gateway::serves`] waits until it listens.
    pub fn gateway(&self) -> Result<Gateway, SandboxBenchError> {
        self.gateway_with(&self.plane.user(GATEWAY)?.kubeconfig, free_port()?)
    }

    /// The same, with its own access to the API server.
    pub fn gateway_with(&self, kubeconfig: &Path, port: u16) -> Result<Gateway, SandboxBenchError> {
        let mut flags = vec![
            format!("--pool-file={}", self.file("pool.json").display()),
            format!("--pool={POOL}"),
            format!("--namespace={NAMESPACE}"),
            "--pool-uid=00000000-0000-4000-8000-000000000000".to_owned(),
            format!("--key-file={}", self.file("seed").display()),
            "--sandboxd-image=example.com/sandboxd:1".to_owned(),
            format!("--listen=127.0.0.1:{port}"),
            format!("--issuer-file={}", self.file(ISSUER).display()),
            format!("--kubeconfig={}", kubeconfig.display()),
            format!("--allow={NAMESPACE}/{}", account::sandbox_client(POOL)),
        ];
        flags.extend(shards("ledger", self.max).iter().map(|name| format!("--ledger={name}")));
        let environment = vec![
            ("RUST_LOG".to_owned(), "warn".to_owned()),
            // As in its image.
            ("MALLOC_ARENA_MAX".to_owned(), "1".to_owned()),
        ];
        let part = Part::start_with(
            "grpo-gateway",
            &built("grpo-gateway")?,
            flags,
            environment,
            self.plane.folder(),
        )?;
        let caller = Caller::new(format!("http://127.0.0.1:{port}")).with_token(&self.token);
        Ok(Gateway { part, caller })
    }
}

impl Gateway {
    /// Waits until it accepts calls.
    pub async fn serves(&mut self) -> Result<(), SandboxBenchError> {
        loop {
            if let Ok((status, _)) = self
                .caller
                .send(hyper::Method::GET, "/readyz", Default::default())
                .await
                && status.is_success()
            {
                return Ok(());
            }
            self.part.runs()?;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Waits until `count` sandboxes are ready and not leased.
    pub async fn until_ready(&mut self, count: usize) -> Result<(), SandboxBenchError> {
        while (self.caller.pool().await?.ready as usize) < count {
            self.part.runs()?;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }
}

fn wrong(error: impl std::fmt::Display) -> SandboxBenchError {
    SandboxBenchError::Wrong(error.to_string())
}

fn options(many_addresses: bool) -> Options {
    Options {
        scheduler: true,
        kwok: true,
        audit: true,
        many_addresses,
        controller_manager: false,
    }
}

/// The signer of requests to sandboxds.
pub fn signer() -> Signer {
    Signer::from_seed(&SEED)
}

/// A sandboxd process on this machine.
pub fn sandboxd(at: SocketAddr, folder: &Path) -> Result<Part, SandboxBenchError> {
    let environment = vec![
        (KEY_ENV.to_owned(), signer().public_key()),
        ("GRPO_SANDBOXD_LISTEN".to_owned(), at.to_string()),
        (OURS.0.to_owned(), OURS.1.to_owned()),
    ];
    let flags = vec!["--allow-local".to_owned()];
    Ok(Part::start_with(
        "sandboxd",
        &built("sandboxd")?,
        flags,
        environment,
        folder,
    )?)
}

/// The path of a program of this workspace that was built beside this one.
fn built(name: &str) -> Result<PathBuf, SandboxBenchError> {
    grpo_testing::program(name).ok_or_else(|| SandboxBenchError::NoProgram { name: name.to_owned() })
}

/// Names of the shards of a pool's ledger.
pub fn shards(prefix: &str, max: usize) -> Vec<String> {
    (0..max.div_ceil(LEASES_PER_SHARD))
        .map(|number| format!("{prefix}-{number}"))
        .collect()
}

/// Creates the namespace, and the rights that the operator gives a gateway.
async fn prepare(admin: &Client) -> Result<(), SandboxBenchError> {
    let namespaces: Api<Namespace> = Api::all(admin.clone());
    let namespace = parsed(json!({"metadata": {"name": NAMESPACE}}));
    namespaces
        .create(&PostParams::default(), &namespace)
        .await
        .map_err(api("creating namespace", NAMESPACE))?;
    let accounts: Api<ServiceAccount> = Api::namespaced(admin.clone(), NAMESPACE);
    // No controller runs here that would create it.
    let account = parsed(json!({"metadata": {"name": "default"}}));
    accounts
        .create(&PostParams::default(), &account)
        .await
        .map_err(api("creating service account", "default"))?;
    let roles: Api<ClusterRole> = Api::all(admin.clone());
    let role = parsed(json!({"metadata": {"name": "gateway"}, "rules": [
        {"apiGroups": [""], "resources": ["pods", "configmaps"], "verbs": ["*"]},
    ]}));
    roles
        .create(&PostParams::default(), &role)
        .await
        .map_err(api("creating ClusterRole", "gateway"))?;
    let bindings: Api<ClusterRoleBinding> = Api::all(admin.clone());
    let binding = parsed(json!({
        "metadata": {"name": "gateway"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "gateway"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:serviceaccounts:sandboxes"}],
    }));
    bindings
        .create(&PostParams::default(), &binding)
        .await
        .map_err(api("creating ClusterRoleBinding", "gateway"))?;
    Ok(())
}
