//! A Kubernetes control plane without kubelets: etcd and the API server, and optionally scheduler, controllers, and
//! KWOK in place of nodes.
//!
//! ```text
//! etcd ◄── kube-apiserver ◄── kube-controller-manager, kube-scheduler, kwok, users ([`ControlPlane::user`])
//!               └──► audit log ──► [`audit`]
//! ```
//!
//! Everything listens on loopback on ports of its own and uses a temporary folder; all of it ends with the value, or
//! with the process. `make setup` builds the binaries. Nothing runs in such a cluster: KWOK *reports* that pods run.

pub mod audit;
pub mod part;

use std::{
    net::{Ipv4Addr, TcpListener},
    ops::Range,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use grpo_sandbox_protocol::SANDBOXD_PORT;
use kube::{
    Client,
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::json;
use tempfile::TempDir;

use crate::cluster::cache;
pub use part::{Part, PartError};

const STAGES: &str = include_str!("config/stages.yaml");
const AUDIT_POLICY: &str = include_str!("config/audit.yaml");
/// The first start reads binaries of 100 MB from disk.
const BOOT: Duration = Duration::from_secs(120);
/// Second bytes of the addresses that pods may report.
const SECOND_BYTES: Range<u8> = 64..128;
/// The controllers that our objects depend on.
const CONTROLLERS: &str = "deployment-controller,replicaset-controller,garbage-collector-controller,serviceaccount-controller,\
     namespace-controller,persistentvolume-binder-controller,root-ca-certificate-publisher-controller,pod-garbage-collector-controller,\
     resourcequota-controller,persistentvolumeclaim-protection-controller,resourceclaim-controller";

#[derive(Debug, thiserror::Error)]
pub enum ControlPlaneError {
    #[error("failed to prepare the control plane ({doing}): {what}")]
    Prepare { doing: &'static str, what: String },
    #[error(transparent)]
    Part(#[from] PartError),
}

fn unprepared<E: std::fmt::Display>(doing: &'static str) -> impl FnOnce(E) -> ControlPlaneError {
    move |error| ControlPlaneError::Prepare {
        doing,
        what: error.to_string(),
    }
}

/// The programs and settings beyond etcd and the API server.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    pub controller_manager: bool,
    pub scheduler: bool,
    /// KWOK reports nodes as ready and pods as running.
    pub kwok: bool,
    /// The audit log records the requests of all clients except Kubernetes' own controllers: see [`audit`].
    pub audit: bool,
    /// Pods have different addresses ([`ControlPlane::pod_ips`]) instead of one.
    pub many_addresses: bool,
}

impl Options {
    /// Everything.
    pub const FULL: Self = Self {
        controller_manager: true,
        scheduler: true,
        kwok: true,
        audit: true,
        many_addresses: false,
    };
}

/// A user of the API server.
#[derive(Clone, Debug)]
pub struct User {
    pub name: String,
    pub kubeconfig: PathBuf,
}

impl User {
    pub async fn client(&self) -> Result<Client, ControlPlaneError> {
        let read = Kubeconfig::read_from(&self.kubeconfig).map_err(unprepared("reading a kubeconfig"))?;
        let config = kube::Config::from_custom_kubeconfig(read, &KubeConfigOptions::default())
            .await
            .map_err(unprepared("reading a kubeconfig"))?;
        Client::try_from(config).map_err(unprepared("making a client"))
    }
}

/// A running control plane.
pub struct ControlPlane {
    // Parts first: processes end before their folder is deleted.
    parts: Vec<Part>,
    apiserver: Part,
    etcd: Part,
    folder: TempDir,
    options: Options,
    port: u16,
    pod_ip: Ipv4Addr,
    /// Held while this control plane owns its addresses.
    _claim: TcpListener,
    http: Client,
}

/// The users: uid, name, groups. Simple tokens are enough inside a temporary folder of this process.
const USERS: [(&str, &str, &str); 8] = [
    (ADMIN, ADMIN, "system:masters"),
    (UNRECORDED_ADMIN, UNRECORDED_ADMIN, "system:masters,grpo.dev:unrecorded"),
    // As in a cluster: subject to the API server's fairness, and with its bound rights.
    (
        OPERATORS[0],
        SERVICE_ACCOUNT,
        "system:serviceaccounts,system:serviceaccounts:grpo-system",
    ),
    (
        OPERATORS[1],
        SERVICE_ACCOUNT,
        "system:serviceaccounts,system:serviceaccounts:grpo-system",
    ),
    (GATEWAY, "system:serviceaccount:sandboxes:gateway", SANDBOX_ACCOUNTS),
    (BARE, "system:serviceaccount:sandboxes:bare", SANDBOX_ACCOUNTS),
    ("alice", "alice", "grpo.dev:people"),
    ("bob", "bob", "grpo.dev:people"),
];
/// May do everything, and is recorded.
pub const ADMIN: &str = "admin";
/// Two replicas of the operator: one service account, whose uid in the audit log tells them apart.
pub const OPERATORS: [&str; 2] = ["operator-a", "operator-b"];
const SERVICE_ACCOUNT: &str = "system:serviceaccount:grpo-system:grpo-operator";
/// A sandbox gateway, and a client that it is compared with, both service accounts too.
pub const GATEWAY: &str = "gateway";
pub const BARE: &str = "bare";
const SANDBOX_ACCOUNTS: &str = "system:serviceaccounts,system:serviceaccounts:sandboxes";
/// The audit log leaves out its group.
const UNRECORDED_ADMIN: &str = "unrecorded-admin";

impl ControlPlane {
    /// Starts the requested parts, and returns when they serve.
    pub async fn start(options: Options) -> Result<Self, ControlPlaneError> {
        let folder = tempfile::Builder::new()
            .prefix("grpo-control-plane-")
            .tempdir()
            .map_err(unprepared("making a folder"))?;
        let at = folder.path();
        write_files(at)?;
        let [client_port, peer_port, port] = free_ports()?;
        let etcd = Part::start("etcd", &program("etcd")?, etcd_flags(at, client_port, peer_port), at)?;
        let apiserver = Part::start(
            "kube-apiserver",
            &program("kube-apiserver")?,
            apiserver_flags(at, client_port, port, options.audit),
            at,
        )?;
        let (pod_ip, claim) = claim_addresses()?;
        let http = user(at, port, ADMIN)?;
        let mut started = Self {
            parts: Vec::new(),
            apiserver,
            etcd,
            options,
            port,
            pod_ip,
            _claim: claim,
            http: http.client().await?,
            folder,
        };
        started.serves().await?;
        started.start_others()?;
        Ok(started)
    }

    /// The address that pods report.
    pub fn pod_ip(&self) -> Ipv4Addr {
        self.pod_ip
    }

    /// All addresses that pods may report, if there are many.
    pub fn pod_ips(&self) -> Vec<Ipv4Addr> {
        let digits = || (b'0'..=b'9').chain(b'a'..=b'f');
        let second = self.pod_ip.octets()[1];
        let pairs = digits().flat_map(|first| digits().map(move |last| (first, last)));
        pairs.map(|(a, b)| Ipv4Addr::new(127, second, a, b)).collect()
    }

    /// KWOK's template for addresses. With many addresses, the first two hex digits of a pod's uid select one.
    fn address(&self) -> String {
        match self.options.many_addresses {
            true => {
                let second = self.pod_ip.octets()[1];
                format!("127.{second}.{{{{ index .metadata.uid 0 }}}}.{{{{ index .metadata.uid 1 }}}}")
            }
            false => self.pod_ip.to_string(),
        }
    }

    /// A kubeconfig for one of the users: [`ADMIN`], [`OPERATORS`], [`GATEWAY`], [`BARE`], or alice or bob, who have
    /// only the rights that a test gives them.
    pub fn user(&self, name: &str) -> Result<User, ControlPlaneError> {
        user(self.folder.path(), self.port, name)
    }

    /// A client that may do everything.
    pub async fn admin(&self) -> Result<Client, ControlPlaneError> {
        self.user(ADMIN)?.client().await
    }

    /// A folder that is deleted with the control plane.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The audit log of the API server.
    pub fn audit(&self) -> audit::Audit {
        audit::Audit::new(self.folder.path().join(AUDIT_LOG))
    }

    pub async fn stop_apiserver(&mut self) -> Result<(), ControlPlaneError> {
        Ok(self.apiserver.stop().await?)
    }

    /// Restarts the API server on its old port, and waits until it serves.
    pub async fn start_apiserver(&mut self) -> Result<(), ControlPlaneError> {
        self.apiserver.again()?;
        self.serves().await
    }

    async fn serves(&mut self) -> Result<(), ControlPlaneError> {
        let begun = std::time::Instant::now();
        loop {
            let request = http::Request::get("/readyz")
                .body(Vec::new())
                .map_err(unprepared("asking"))?;
            let failure = match self.http.request_text(request).await {
                Ok(_) => return Ok(()),
                Err(error) => error.to_string(),
            };
            self.etcd.runs()?;
            self.apiserver.runs()?;
            if begun.elapsed() > BOOT {
                return Err(self.apiserver.useless(failure).into());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    fn start_others(&mut self) -> Result<(), ControlPlaneError> {
        let at = self.folder.path().to_owned();
        let kubeconfig = user(&at, self.port, UNRECORDED_ADMIN)?.kubeconfig.display().to_string();
        let wanted = [
            (
                self.options.controller_manager,
                "kube-controller-manager",
                controller_manager_flags(&at, &kubeconfig),
            ),
            (self.options.scheduler, "kube-scheduler", scheduler_flags(&kubeconfig)),
            (self.options.kwok, "kwok", kwok_flags(&at, &kubeconfig)),
        ];
        let stages = STAGES.replace("@POD_IP@", &self.address());
        std::fs::write(at.join("stages.yaml"), stages).map_err(unprepared("writing stages.yaml"))?;
        for (_, name, flags) in wanted.into_iter().filter(|(wanted, ..)| *wanted) {
            self.parts.push(Part::start(name, &program(name)?, flags, &at)?);
        }
        Ok(())
    }
}

const AUDIT_LOG: &str = "audit.log";

/// Tokens, the key of service accounts, the audit policy.
fn write_files(at: &Path) -> Result<(), ControlPlaneError> {
    let tokens: String = USERS
        .iter()
        .map(|(uid, name, groups)| format!("{},{name},{uid},\"{groups}\"\n", token(uid)))
        .collect();
    std::fs::write(at.join("tokens.csv"), tokens).map_err(unprepared("writing tokens"))?;
    std::fs::write(at.join("audit.yaml"), AUDIT_POLICY).map_err(unprepared("writing the audit policy"))?;
    let key = Command::new("openssl")
        .args(["genrsa", "-out"])
        .arg(at.join("service-accounts.key"))
        .arg("2048")
        .output()
        .map_err(unprepared("making a key with openssl"))?;
    if key.status.success() {
        Ok(())
    } else {
        Err(unprepared("making a key with openssl")(String::from_utf8_lossy(
            &key.stderr,
        )))
    }
}

fn token(name: &str) -> String {
    format!("token-of-{name}")
}

fn user(at: &Path, port: u16, name: &str) -> Result<User, ControlPlaneError> {
    let kubeconfig = at.join(format!("{}.kubeconfig", name.replace(':', "-")));
    // At start the API server signs its certificate itself, on this machine's loopback.
    let content = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "it",
        "contexts": [{"name": "it", "context": {"cluster": "it", "user": name}}],
        "clusters": [{"name": "it", "cluster": {"server": format!("https://127.0.0.1:{port}"), "insecure-skip-tls-verify": true}}],
        "users": [{"name": name, "user": {"token": token(name)}}],
    });
    std::fs::write(&kubeconfig, content.to_string()).map_err(unprepared("writing a kubeconfig"))?;
    Ok(User {
        name: name.to_owned(),
        kubeconfig,
    })
}

fn program(name: &str) -> Result<PathBuf, ControlPlaneError> {
    let path = cache().join("bin").join(name);
    if path.exists() {
        Ok(path)
    } else {
        Err(ControlPlaneError::Prepare {
            doing: "looking for programs",
            what: format!("there is no {}; run `make setup`", path.display()),
        })
    }
}

/// All addresses of 127/8 belong to this machine. Each control plane has a second byte of its own, so that several
/// programs can answer for pods at a time. A listener at the first address of a byte claims the byte. Without claims,
/// two control planes chose the same byte in one of twenty test runs.
fn claim_addresses() -> Result<(Ipv4Addr, TcpListener), ControlPlaneError> {
    let first = rand::random_range(0..SECOND_BYTES.len());
    let mut last = None;
    for turn in 0..SECOND_BYTES.len() {
        let second = SECOND_BYTES.start + ((first + turn) % SECOND_BYTES.len()) as u8;
        match TcpListener::bind((Ipv4Addr::new(127, second, 0, 1), SANDBOXD_PORT)) {
            Ok(claim) => {
                let pod_ip = Ipv4Addr::new(127, second, rand::random_range(1..255), rand::random_range(1..255));
                return Ok((pod_ip, claim));
            }
            Err(error) => last = Some(error),
        }
    }
    let what = last.map_or_else(String::new, |error| error.to_string());
    Err(ControlPlaneError::Prepare {
        doing: "looking for addresses that no other control plane has",
        what,
    })
}

/// A port without a listener.
pub fn free_port() -> Result<u16, ControlPlaneError> {
    free_ports().map(|[port]| port)
}

fn free_ports<const N: usize>() -> Result<[u16; N], ControlPlaneError> {
    let mut ports = [0; N];
    for port in &mut ports {
        *port = grpo_free_port::free_port().ok_or_else(|| ControlPlaneError::Prepare {
            doing: "looking for a free port",
            what: "all are taken".to_owned(),
        })?;
    }
    Ok(ports)
}

fn path(at: &Path, file: &str) -> String {
    at.join(file).display().to_string()
}

fn flags<const N: usize>(pairs: [(&str, String); N]) -> Vec<String> {
    pairs
        .into_iter()
        .map(|(name, value)| format!("--{name}={value}"))
        .collect()
}

fn etcd_flags(at: &Path, client: u16, peer: u16) -> Vec<String> {
    let (client, peer) = (format!("http://127.0.0.1:{client}"), format!("http://127.0.0.1:{peer}"));
    flags([
        ("data-dir", path(at, "etcd")),
        ("listen-client-urls", client.clone()),
        ("advertise-client-urls", client),
        ("listen-peer-urls", peer.clone()),
        ("initial-advertise-peer-urls", peer.clone()),
        ("initial-cluster", format!("default={peer}")),
        ("quota-backend-bytes", (4u64 << 30).to_string()),
        ("unsafe-no-fsync", "true".into()),
        ("log-level", "warn".into()),
    ])
}

fn apiserver_flags(at: &Path, etcd: u16, port: u16, audit: bool) -> Vec<String> {
    let key = path(at, "service-accounts.key");
    let mut all = flags([
        ("etcd-servers", format!("http://127.0.0.1:{etcd}")),
        ("bind-address", "127.0.0.1".into()),
        ("advertise-address", "127.0.0.1".into()),
        ("endpoint-reconciler-type", "none".into()),
        ("secure-port", port.to_string()),
        ("cert-dir", path(at, "certificates")),
        ("token-auth-file", path(at, "tokens.csv")),
        ("authorization-mode", "RBAC".into()),
        ("service-cluster-ip-range", "10.96.0.0/12".into()),
        ("service-account-issuer", "https://kubernetes.default.svc".into()),
        ("service-account-key-file", key.clone()),
        ("service-account-signing-key-file", key),
        ("max-requests-inflight", "2000".into()),
        ("max-mutating-requests-inflight", "1000".into()),
        ("profiling", "false".into()),
        // Disabled: it taints new nodes, and no controller runs here that removes the taint. That controller would also
        // treat silent nodes as dead.
        ("disable-admission-plugins", "TaintNodesByCondition".into()),
        // The shutdown does not wait for watches, which never end by themselves.
        ("shutdown-watch-termination-grace-period", "0s".into()),
    ]);
    if audit {
        all.extend(flags([
            ("audit-policy-file", path(at, "audit.yaml")),
            ("audit-log-path", path(at, AUDIT_LOG)),
            ("audit-log-maxsize", "4096".into()),
        ]));
    }
    all
}

fn controller_manager_flags(at: &Path, kubeconfig: &str) -> Vec<String> {
    let key = path(at, "service-accounts.key");
    flags([
        ("kubeconfig", kubeconfig.into()),
        ("service-account-private-key-file", key),
        ("controllers", CONTROLLERS.into()),
        ("leader-elect", "false".into()),
        ("secure-port", "0".into()),
        ("kube-api-qps", "2000".into()),
        ("kube-api-burst", "4000".into()),
        ("pvclaimbinder-sync-period", "5s".into()),
        ("concurrent-gc-syncs", "4".into()),
    ])
}

fn scheduler_flags(kubeconfig: &str) -> Vec<String> {
    flags([
        ("kubeconfig", kubeconfig.into()),
        ("leader-elect", "false".into()),
        ("secure-port", "0".into()),
        ("kube-api-qps", "2000".into()),
        ("kube-api-burst", "4000".into()),
    ])
}

fn kwok_flags(at: &Path, kubeconfig: &str) -> Vec<String> {
    flags([
        ("kubeconfig", kubeconfig.into()),
        ("config", path(at, "stages.yaml")),
        ("manage-all-nodes", "true".into()),
        ("node-lease-duration-seconds", "0".into()),
    ])
}
