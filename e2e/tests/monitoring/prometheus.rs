//! Prometheus with the configuration that Prometheus' operator makes of the chart's PodMonitors and PrometheusRule.

use crate::support::{Result, SOON, Scene, repository};
use grpo_monitoring::rules::RuleFile;
use grpo_testing::cluster::{cache, kubeconfig_path, wait};
use grpo_testing::control_plane::part::Part;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::{Api, DynamicObject, Patch, PatchParams};
use kube::core::{ApiResource, GroupVersionKind};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const NAME: &str = "monitoring";
/// The node's end of the wire: NODE_IP of e2e/cluster/lib.sh.
const ADDRESS: &str = "10.111.0.2:9190";
/// Of e2e/monitoring/check.sh (its module calls 3.16.0 v0.316.0); the operator writes the configuration for it.
const VERSION: &str = "v3.16.0";
const INTERVAL: &str = "2s";
/// Ranges of alerts for tests: long enough for two restarts of a gateway.
const WINDOW: &str = "40s";
const ASK_AGAIN: Duration = Duration::from_millis(500);

/// Names and values of labels that an alert must have.
pub type Labels<'a> = &'a [(&'a str, &'a str)];

pub struct Prometheus {
    server: Part,
    _operator: Part,
    folder: tempfile::TempDir,
    http: reqwest::Client,
}

fn done(what: &str, command: &mut Command) -> Result<Vec<u8>> {
    let out = command.output()?;
    match out.status.success() {
        true => Ok(out.stdout),
        false => Err(format!("{what}: {}", String::from_utf8_lossy(&out.stderr)).into()),
    }
}

/// Installs the chart with its monitoring, as the book says.
fn install_chart() -> Result<()> {
    let kubeconfig = kubeconfig_path();
    let crds = cache().join("prometheus/crds");
    done(
        "installing the CRDs of Prometheus' operator",
        Command::new(cache().join("bin/kubectl"))
            .arg("--kubeconfig")
            .arg(&kubeconfig)
            .args(["apply", "--server-side", "--force-conflicts", "-f"])
            .arg(crds),
    )?;
    let values = [
        "monitoring.podMonitors.enabled=true",
        &format!("monitoring.podMonitors.interval={INTERVAL}"),
        "monitoring.rules.enabled=true",
        "monitoring.rules.book=https://book.example.com",
        "monitoring.dashboards.enabled=true",
    ];
    let mut helm = Command::new(cache().join("bin/helm"));
    helm.arg("--kubeconfig").arg(&kubeconfig);
    helm.args(["upgrade", "--install", "grpo-operator"])
        .arg(repository().join("charts/grpo-operator"))
        .args(["--namespace", "grpo-system", "--wait", "--timeout", "120s"])
        .args(values.iter().flat_map(|value| ["--set", value]));
    done("installing the chart with its monitoring", &mut helm).map(drop)
}

/// A certificate or key of a kubeconfig, as a file: `KEY` names one, or `KEY-data` has it.
fn credential(folder: &Path, of: &Value, key: &str) -> Result<String> {
    if let Some(file) = of[key].as_str() {
        return Ok(file.to_owned());
    }
    let data = of[format!("{key}-data")].as_str();
    let data = data.ok_or_else(|| format!("the kubeconfig has no {key}"))?;
    let path = folder.join(key);
    std::fs::write(&path, through("base64", data.as_bytes())?)?;
    Ok(path.display().to_string())
}

/// The API server and the files with which it is reached from outside of a pod.
struct ApiServer {
    url: String,
    ca: String,
    certificate: String,
    key: String,
}

impl ApiServer {
    fn of_kubeconfig(folder: &Path) -> Result<Self> {
        let read: Value = serde_yaml_ng::from_str(&std::fs::read_to_string(kubeconfig_path())?)?;
        let (cluster, user) = (&read["clusters"][0]["cluster"], &read["users"][0]["user"]);
        Ok(Self {
            url: cluster["server"]
                .as_str()
                .ok_or("the kubeconfig names no server")?
                .to_owned(),
            ca: credential(folder, cluster, "certificate-authority")?,
            certificate: credential(folder, user, "client-certificate")?,
            key: credential(folder, user, "client-key")?,
        })
    }
}

/// What `gzip -d` or `base64 -d` makes of some bytes.
fn through(program: &str, bytes: &[u8]) -> Result<Vec<u8>> {
    let mut child = Command::new(program)
        .arg("-d")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    child.stdin.take().ok_or("no input")?.write_all(bytes)?;
    Ok(child.wait_with_output()?.stdout)
}

impl Prometheus {
    /// Installs the chart, lets Prometheus' operator make the configuration, and starts Prometheus with it.
    pub async fn start(scene: &Scene) -> Result<Self> {
        install_chart()?;
        let folder = tempfile::tempdir()?;
        let api = ApiServer::of_kubeconfig(folder.path())?;
        let operator = Part::start(
            "prometheus-operator",
            &cache().join("bin/prometheus-operator"),
            vec![
                format!("-apiserver={}", api.url),
                format!("-ca-file={}", api.ca),
                format!("-cert-file={}", api.certificate),
                format!("-key-file={}", api.key),
                "-web.listen-address=127.0.0.1:9191".to_owned(),
                "-kubelet-endpoints=false".to_owned(),
            ],
            folder.path(),
        )?;
        let made = Self::configuration(scene, &api, folder.path())
            .await
            .map_err(|error| format!("{error}; Prometheus' operator said:\n{}", operator.log()))?;
        scene.say(&format!("Prometheus' operator made {made}"));
        let holder = std::fs::read_to_string(cache().join("run/holder"))?;
        let holder = holder
            .split_whitespace()
            .next()
            .ok_or("the cluster is not up (make cluster)")?;
        let server = Part::start(
            "prometheus",
            &PathBuf::from("/usr/bin/nsenter"),
            vec![
                "--target".to_owned(),
                holder.to_owned(),
                "--net".to_owned(),
                cache().join("bin/prometheus").display().to_string(),
                format!("--config.file={}", folder.path().join("prometheus.yaml").display()),
                format!("--storage.tsdb.path={}", folder.path().join("data").display()),
                format!("--web.listen-address={ADDRESS}"),
            ],
            folder.path(),
        )?;
        let http = reqwest::Client::builder()
            .no_proxy()
            .timeout(Duration::from_secs(10))
            .build()?;
        let prometheus = Self {
            server,
            _operator: operator,
            folder,
            http,
        };
        prometheus
            .until("Prometheus to read the operator's metrics", SOON, async || {
                prometheus.has_data("grpo_operator_leader == 1").await
            })
            .await?;
        Ok(prometheus)
    }

    /// Waits for the configuration and the rules, and writes them into the folder.
    async fn configuration(scene: &Scene, api: &ApiServer, folder: &Path) -> Result<String> {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("monitoring.coreos.com", "v1", "Prometheus"));
        let object = json!({
            "apiVersion": "monitoring.coreos.com/v1", "kind": "Prometheus", "metadata": {"name": NAME},
            "spec": {
                "replicas": 0, "version": VERSION, "evaluationInterval": INTERVAL, "scrapeInterval": INTERVAL,
                "podMonitorSelector": {}, "podMonitorNamespaceSelector": {}, "ruleSelector": {},
                "ruleNamespaceSelector": {},
                "apiserverConfig": {
                    "host": api.url, "tlsConfig": {"caFile": api.ca, "certFile": api.certificate, "keyFile": api.key},
                },
            },
        });
        let all: Api<DynamicObject> = Api::namespaced_with(scene.client.clone(), &scene.namespace, &resource);
        all.patch(NAME, &PatchParams::apply("e2e"), &Patch::Apply(object))
            .await?;

        let secrets: Api<Secret> = Api::namespaced(scene.client.clone(), &scene.namespace);
        let jobs = ["grpo-operator/0", "grpo/0", "grpo-engines/0"];
        let of_jobs = |there: &wait::Objects<Secret>| {
            let packed = there.values().next()?.data.as_ref()?.get("prometheus.yaml.gz")?;
            let text = String::from_utf8(through("gzip", &packed.0).ok()?).ok()?;
            jobs.iter().all(|job| text.contains(job)).then_some(text)
        };
        let name = format!("prometheus-{NAME}");
        let what = "the configuration with the chart's PodMonitors";
        let text = wait::until(secrets, wait::named(&name), SOON, what, of_jobs).await?;

        let maps: Api<ConfigMap> = Api::namespaced(scene.client.clone(), &scene.namespace);
        let name = format!("prometheus-{NAME}-rulefiles-0");
        let of_rules = |there: &wait::Objects<ConfigMap>| {
            let data = there.values().next()?.data.clone()?;
            data.values()
                .any(|text| text.contains("GrpoOperatorAbsent"))
                .then_some(data)
        };
        let rules = wait::until(maps, wait::named(&name), SOON, "the chart's rules", of_rules).await?;

        let own = folder.join("rules");
        std::fs::create_dir_all(&own)?;
        for (file, rules) in &rules {
            std::fs::write(own.join(file), rules)?;
        }
        // In a pod the configuration's reloader puts these in.
        let text = text
            .replace(&format!("/etc/prometheus/rules/{name}"), &own.display().to_string())
            .replace("$(SHARD)", "0")
            .replace("$(POD_NAME)", NAME);
        std::fs::write(folder.join("prometheus.yaml"), &text)?;
        Ok(format!(
            "{} bytes of configuration and {} files of rules",
            text.len(),
            rules.len()
        ))
    }

    async fn get(&self, path: &str, query: &[(&str, &str)]) -> Result<Value> {
        let answer = self
            .http
            .get(format!("http://{ADDRESS}/api/v1/{path}"))
            .query(query)
            .send()
            .await?;
        let body: Value = answer.json().await?;
        match body["status"].as_str() {
            Some("success") => Ok(body["data"].clone()),
            _ => Err(format!("Prometheus refuses {path} {query:?}: {body}").into()),
        }
    }

    /// Whether a query has a value that is a number.
    pub async fn has_data(&self, query: &str) -> Result<bool> {
        let plain = grpo_monitoring::promql::without_grafana(query);
        let found = match self.get("query", &[("query", &plain)]).await {
            // It has just been started.
            Err(error)
                if error
                    .downcast_ref::<reqwest::Error>()
                    .is_some_and(reqwest::Error::is_connect) =>
            {
                return Ok(false);
            }
            found => found?,
        };
        let values = found["result"].as_array().into_iter().flatten();
        let is_number = |one: &Value| one["value"][1].as_str().is_some_and(|value| value != "NaN");
        Ok(values.into_iter().any(is_number))
    }

    /// The labels of each alert that fires; `alertname` is one of them.
    async fn firing_with_labels(&self) -> Result<Vec<BTreeMap<String, String>>> {
        let found = self.get("alerts", &[]).await?;
        let alerts = found["alerts"].as_array().into_iter().flatten();
        let firing = alerts.filter(|alert| alert["state"] == "firing");
        Ok(firing
            .map(|alert| serde_json::from_value(alert["labels"].clone()))
            .collect::<std::result::Result<_, _>>()?)
    }

    /// Names of the alerts that fire.
    pub async fn firing(&self) -> Result<BTreeSet<String>> {
        let firing = self.firing_with_labels().await?;
        Ok(firing
            .into_iter()
            .filter_map(|mut labels| labels.remove("alertname"))
            .collect())
    }

    /// Targets that answer, by job.
    pub async fn targets(&self) -> Result<BTreeMap<String, usize>> {
        let found = self.get("targets", &[("state", "active")]).await?;
        let mut targets = BTreeMap::new();
        for target in found["activeTargets"].as_array().into_iter().flatten() {
            let (job, health) = (&target["labels"]["job"], &target["health"]);
            let of = format!(
                "{} {}",
                job.as_str().unwrap_or_default(),
                health.as_str().unwrap_or_default()
            );
            *targets.entry(of).or_default() += 1;
        }
        Ok(targets)
    }

    /// From now on the rules have short windows, and no time to hold.
    pub async fn hurry(&mut self) -> Result<()> {
        let rules = self.folder.path().join("rules");
        for file in std::fs::read_dir(&rules)? {
            let path = file?.path();
            let read: RuleFile = serde_yaml_ng::from_str(&std::fs::read_to_string(&path)?)?;
            std::fs::write(&path, serde_yaml_ng::to_string(&read.hurried(WINDOW, INTERVAL))?)?;
        }
        self.server.send(Signal::SIGHUP)?;
        self.until("Prometheus to read the changed rules", SOON, async || {
            let rules = self.get("rules", &[]).await?.to_string();
            Ok(rules.contains(&format!("[{WINDOW}]")))
        })
        .await
    }

    async fn fires(&self, alert: &str, labels: Labels<'_>) -> Result<bool> {
        let firing = self.firing_with_labels().await?;
        let has = |one: &BTreeMap<String, String>, key: &str, value: &str| one.get(key).is_some_and(|is| is == value);
        Ok(firing
            .iter()
            .any(|one| has(one, "alertname", alert) && labels.iter().all(|(key, value)| has(one, key, value))))
    }

    /// Waits until an alert fires for these labels.
    pub async fn until_fires(&self, alert: &str, labels: Labels<'_>, limit: Duration) -> Result<()> {
        let what = format!("the alert {alert} with {labels:?}");
        self.until(&what, limit, async || self.fires(alert, labels).await).await
    }

    /// Waits until an alert does not fire for these labels: otherwise an earlier cause would do for the next one.
    pub async fn until_quiet(&self, alert: &str, labels: Labels<'_>, limit: Duration) -> Result<()> {
        let what = format!("the end of the alert {alert} with {labels:?}");
        let quiet = async || Ok(!self.fires(alert, labels).await?);
        self.until(&what, limit, quiet).await
    }

    async fn until(&self, what: &str, limit: Duration, is_so: impl AsyncFn() -> Result<bool>) -> Result<()> {
        let began = Instant::now();
        let mut again = tokio::time::interval(ASK_AGAIN);
        loop {
            again.tick().await;
            if is_so().await? {
                return Ok(());
            }
            if began.elapsed() > limit {
                let log = self.server.log();
                let targets = self.targets().await;
                return Err(
                    format!("waited {limit:?} for {what}; targets: {targets:?}; Prometheus said:\n{log}").into(),
                );
            }
        }
    }
}
