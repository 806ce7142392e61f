//! Runs with `queueName` and the real Kueue, on a real control plane with its scheduler, whose nodes and running pods
//! are simulated (KWOK): quota for one run of two, preemption, suspension, a deactivated and a deleted Workload.
//!
//! Kueue is built from its Go module and runs as a process on this machine: `make test-kueue`.

use std::time::Duration;

use grpo_bench::operator_bench::fleet::{small, volume};
use grpo_bench::operator_bench::rig::{Operator, Rig, until};
use grpo_crds::GrpoRun;
use grpo_crds::grpo_run::Phase;
use grpo_operator_core::kueue::Workload;
use grpo_testing::cluster::manifest::{RunManifest, delete_run};
use grpo_testing::cluster::{ClusterError, api, cache};
use grpo_testing::control_plane::{ADMIN, Part, free_port};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};

use crate::support::Result;

const TEAM: &str = "team";
const SOON: Duration = Duration::from_secs(60);
const CONFIG: &str = include_str!("kueue/config.yaml");
const OBJECTS: &str = include_str!("kueue/objects.yaml");

/// A control plane with Kueue, the operator, a node of eight GPUs that the queue may use, and one that it may not.
struct Queue {
    rig: Rig,
    _operator: Operator,
    _kueue: Part,
}

async fn queue() -> Result<Queue> {
    let rig = Rig::start().await?;
    rig.namespace(TEAM).await?;
    volume(&rig.admin, TEAM).await?;
    for (name, labels) in [("any-0", json!({})), ("h200-0", json!({"gpu": "h200"}))] {
        rig.node(name, 8, &labels, &json!([])).await?;
    }
    let kueue = start_kueue(&rig).await?;
    let operator = rig.operator(0)?;
    Ok(Queue {
        rig,
        _operator: operator,
        _kueue: kueue,
    })
}

/// Installs Kueue's objects and starts its process. It reads the certificate of its metrics, which it does not serve
/// here, from a fixed folder below /etc, so it gets an /etc of its own.
async fn start_kueue(rig: &Rig) -> Result<Part> {
    let kubeconfig = rig.plane.user(ADMIN)?.kubeconfig.display().to_string();
    let kubectl = async |arguments: &[&str]| -> Result<()> {
        let done = tokio::process::Command::new(cache().join("bin/kubectl"))
            .args(["--kubeconfig", &kubeconfig])
            .args(arguments)
            .output()
            .await?;
        match done.status.success() {
            true => Ok(()),
            false => Err(format!("kubectl {arguments:?}: {}", String::from_utf8_lossy(&done.stderr)).into()),
        }
    };
    let crds = cache().join("kueue/crds");
    kubectl(&["create", "namespace", "kueue-system"]).await?;
    kubectl(&["apply", "--server-side", "-f", &crds.display().to_string()]).await?;
    kubectl(&["wait", "--for=condition=Established", "crd", "--all", "--timeout=60s"]).await?;

    let folder = rig.plane.folder().join("kueue");
    std::fs::create_dir(&folder)?;
    let at = |name: &str| folder.join(name).display().to_string();
    let certified = tokio::process::Command::new("openssl")
        .args([
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-days",
            "2",
            "-subj",
            "/CN=127.0.0.1",
        ])
        .args(["-addext", "subjectAltName=IP:127.0.0.1"])
        .args(["-keyout", &at("tls.key"), "-out", &at("tls.crt")])
        .output()
        .await?;
    assert!(certified.status.success(), "{certified:?}");
    let (port, health) = (free_port()?, free_port()?);
    let encoded = tokio::process::Command::new("openssl")
        .args(["base64", "-A", "-in", &at("tls.crt")])
        .output()
        .await?;
    let ca = String::from_utf8(encoded.stdout)?;
    let filled = |text: &str| {
        text.replace("@PORT@", &port.to_string())
            .replace("@HEALTH@", &health.to_string())
            .replace("@FOLDER@", &folder.display().to_string())
            .replace("@CA@", &ca)
    };
    std::fs::write(at("config.yaml"), filled(CONFIG))?;
    std::fs::write(at("objects.yaml"), filled(OBJECTS))?;

    let program = cache().join("bin/kueue");
    assert!(
        program.exists(),
        "there is no {}; make test-kueue builds it",
        program.display()
    );
    let own_etc = "mount -t tmpfs tmpfs /etc && mkdir -p /etc/kueue/metrics/certs && cp \"$1\"/tls.* /etc/kueue/metrics/certs && shift && exec \"$@\"";
    let arguments = ["-rm", "sh", "-c", own_etc, "sh"]
        .map(str::to_owned)
        .into_iter()
        .chain([
            folder.display().to_string(),
            program.display().to_string(),
            format!("--config={}", at("config.yaml")),
            format!("--kubeconfig={kubeconfig}"),
        ]);
    let mut kueue = Part::start(
        "kueue",
        "/usr/bin/unshare".as_ref(),
        arguments.collect(),
        rig.plane.folder(),
    )?;
    let ready = format!("http://127.0.0.1:{health}/readyz");
    until(SOON, "Kueue to be ready", async || {
        Ok(
            match reqwest::get(&ready).await.and_then(reqwest::Response::error_for_status) {
                Ok(_) => Ok(()),
                Err(error) => Err(error.to_string()),
            },
        )
    })
    .await?;
    kueue.runs()?;
    kubectl(&["apply", "-f", &at("objects.yaml")]).await?;
    Ok(kueue)
}

/// A run of eight GPUs: all that the queue has.
fn run(name: &str) -> RunManifest {
    small(name)
        .with("/queueName", json!("gpus"))
        .with("/trainer", json!({"nodes": 2, "gpusPerNode": 2}))
        .with(
            "/inference/pool",
            json!({"engine": {"vllm": {"tensorParallel": 2}}, "replicas": 2}),
        )
}

impl Queue {
    fn client(&self) -> Client {
        self.rig.admin.clone()
    }

    async fn apply(&self, run: RunManifest) -> Result<GrpoRun> {
        Ok(run.apply(&self.rig.admin, TEAM).await?)
    }

    async fn patch(&self, run: &str, spec: Value) -> Result<()> {
        let runs: Api<GrpoRun> = Api::namespaced(self.client(), TEAM);
        let patch = Patch::Merge(json!({"spec": spec}));
        runs.patch(run, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// Pods of driver, trainer and engines.
    async fn pods(&self, run: &str) -> std::result::Result<Vec<Pod>, ClusterError> {
        let labels =
            ListParams::default().labels(&format!("grpo.dev/run={run},grpo.dev/role in (driver,trainer,engine)"));
        let pods: Api<Pod> = Api::namespaced(self.client(), TEAM);
        Ok(pods.list(&labels).await.map_err(api("listing the pods of", run))?.items)
    }

    async fn workload(&self, run: &str) -> std::result::Result<Option<Workload>, ClusterError> {
        let workloads: Api<Workload> = Api::namespaced(self.client(), TEAM);
        let name = format!("grporun-{run}");
        workloads.get_opt(&name).await.map_err(api("reading Workload", name))
    }

    async fn change_workload(&self, run: &str, spec: Value) -> Result<()> {
        let workloads: Api<Workload> = Api::namespaced(self.client(), TEAM);
        let patch = Patch::Merge(json!({"spec": spec}));
        workloads
            .patch(&format!("grporun-{run}"), &PatchParams::default(), &patch)
            .await?;
        Ok(())
    }

    /// Waits until the run is in this phase, with these words in its message.
    async fn is(&self, run: &str, phase: Phase, words: &str) -> Result<GrpoRun> {
        let runs: Api<GrpoRun> = Api::namespaced(self.client(), TEAM);
        let what = format!("GrpoRun {run} to be {phase:?} ({words})");
        let there = until(SOON, &what, async || {
            let there = runs.get(run).await.map_err(api("reading GrpoRun", run))?;
            let status = there.status.clone().unwrap_or_default();
            let message = status.message.unwrap_or_default();
            Ok(match status.phase == Some(phase) && message.contains(words) {
                true => Ok(there),
                false => Err(format!("{:?}: {message}", status.phase)),
            })
        });
        Ok(there.await?)
    }

    /// Waits until all of the run works on the queue's node, with Kueue's quota, and Kueue knows it.
    async fn works(&self, run: &str) -> Result<GrpoRun> {
        let there = self.is(run, Phase::Running, "").await?;
        let what = format!("the five pods of GrpoRun {run} on the queue's node");
        until(SOON, &what, async || {
            let pods = self.pods(run).await?;
            let live: Vec<&Pod> = pods.iter().filter(|pod| !is_over(pod)).collect();
            let is_placed = |pod: &&Pod| pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) == Some("h200-0");
            let names: Vec<String> = live.iter().map(|pod| pod.name_any()).collect();
            let held = live.iter().find(|pod| !pod.finalizers().is_empty());
            assert!(held.is_none(), "Kueue holds a pod: {held:?}");
            Ok(match live.len() == 5 && live.iter().all(is_placed) {
                true => Ok(()),
                false => Err(format!("{names:?}")),
            })
        })
        .await?;
        until(SOON, "Kueue to know that the pods are ready", async || {
            let there = self.workload(run).await?;
            Ok(match there {
                Some(workload) if workload.is_admitted() && workload.has_pods_ready() => Ok(()),
                other => Err(format!("{other:?}")),
            })
        })
        .await?;
        Ok(there)
    }

    /// Waits until the run holds nothing: no pod, no pool of engines, no quota.
    async fn holds_nothing(&self, run: &str) -> Result<()> {
        let what = format!("GrpoRun {run} to hold nothing");
        let held = until(SOON, &what, async || {
            let pods = self.pods(run).await?;
            let live: Vec<String> = pods
                .iter()
                .filter(|pod| !is_over(pod))
                .map(ResourceExt::name_any)
                .collect();
            let quota = self.workload(run).await?.is_some_and(|workload| workload.holds_quota());
            Ok(match live.is_empty() && !quota {
                true => Ok(()),
                false => Err(format!("pods {live:?}, quota: {quota}")),
            })
        });
        Ok(held.await?)
    }

    /// The state of one pod's process, as its kubelet would report it.
    async fn ends(&self, pod: &str, exit_code: i32) -> Result<()> {
        let pods: Api<Pod> = Api::namespaced(self.client(), TEAM);
        let known = pods.get(pod).await?;
        let container = known
            .spec
            .iter()
            .flat_map(|spec| &spec.containers)
            .map(|one| one.name.clone());
        let ended: Vec<Value> = container
            .map(|name| {
                json!({
                    "name": name, "image": "", "imageID": "", "ready": false, "restartCount": 0,
                    "state": {"terminated": {"exitCode": exit_code, "finishedAt": "2026-01-01T00:00:00Z"}},
                })
            })
            .collect();
        let phase = if exit_code == 0 { "Succeeded" } else { "Failed" };
        let patch = Patch::Merge(json!({"status": {"phase": phase, "containerStatuses": ended}}));
        pods.patch_status(pod, &PatchParams::default(), &patch).await?;
        Ok(())
    }
}

fn is_over(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

fn attempts(run: &GrpoRun) -> (u32, u32, u32) {
    let attempts = run.status.clone().unwrap_or_default().attempts.unwrap_or_default();
    (
        attempts.driver.current,
        attempts.trainer.current,
        attempts.driver.consecutive_failures + attempts.trainer.consecutive_failures,
    )
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Kueue: make test-kueue"]
async fn kueue_gives_runs_their_quota_whole_and_gets_it_back() -> Result<()> {
    let queue = queue().await?;
    let begun = std::time::Instant::now();
    let say = |what: &str| println!("{:6.1}s  {what}", begun.elapsed().as_secs_f64());

    queue.apply(run("first")).await?;
    queue.works("first").await?;
    say("the first run works where Kueue placed it");

    // A second run has no pod and no pool while there is no quota, and says what Kueue says.
    queue.apply(run("second")).await?;
    queue.is("second", Phase::Queued, "insufficient unused quota").await?;
    assert!(queue.pods("second").await?.is_empty());
    say("the second run waits for quota");

    // A failed rank is replaced within the quota that the run has.
    let quota = queue.workload("first").await?.unwrap_or_default();
    queue.ends("first-trainer-1-1", 9).await?;
    until(SOON, "the trainer's next attempt", async || {
        let runs: Api<GrpoRun> = Api::namespaced(queue.client(), TEAM);
        let there = runs.get("first").await.map_err(api("reading GrpoRun", "first"))?;
        Ok(match attempts(&there) {
            // The driver's attempt is still the first.
            (1, 2, _) => Ok(()),
            other => Err(format!("{other:?}")),
        })
    })
    .await?;
    queue.works("first").await?;
    let kept = queue.workload("first").await?.unwrap_or_default();
    assert_eq!(
        (kept.metadata.uid, kept.status.admission),
        (quota.metadata.uid, quota.status.admission)
    );
    say("a failed rank was replaced within the quota");

    // Suspending makes room, and the run that resumes waits for its turn.
    queue.patch("first", json!({"suspend": true})).await?;
    queue.holds_nothing("first").await?;
    queue.works("second").await?;
    queue.patch("first", json!({"suspend": false})).await?;
    queue.is("first", Phase::Queued, "insufficient unused quota").await?;
    say("the suspended run made room, and waits for its turn");

    // A run of a higher class takes the quota. The other gives all back first, without a failure of its own. A pod
    // whose kubelet is slow still uses the quota.
    let pods: Api<Pod> = Api::namespaced(queue.client(), TEAM);
    let silent = |value: Value| Patch::Merge(json!({"metadata": {"annotations": {"grpo.dev/silent": value}}}));
    let slow = queue
        .pods("second")
        .await?
        .iter()
        .map(ResourceExt::name_any)
        .find(|name| name.contains("-engine-"));
    let slow = slow.unwrap_or_default();
    pods.patch(&slow, &PatchParams::default(), &silent(json!("yes")))
        .await?;
    queue
        .apply(run("urgent").with("/priorityClassName", json!("urgent")))
        .await?;
    queue
        .is("second", Phase::Queued, "Kueue evicted it (Preempted)")
        .await?;
    until(SOON, "the slow engine to be alone", async || {
        let left: Vec<String> = queue.pods("second").await?.iter().map(ResourceExt::name_any).collect();
        Ok(if left == [slow.clone()] {
            Ok(())
        } else {
            Err(format!("{left:?}"))
        })
    })
    .await?;
    let held = queue.workload("second").await?.unwrap_or_default();
    assert!(held.holds_quota(), "the quota is returned with the last pod: {held:?}");
    assert!(queue.pods("urgent").await?.is_empty());
    pods.patch(&slow, &PatchParams::default(), &silent(Value::Null)).await?;
    queue.works("urgent").await?;
    queue.holds_nothing("second").await?;
    let evicted = queue.is("second", Phase::Queued, "").await?;
    assert_eq!(attempts(&evicted).2, 0, "an eviction is no failure");
    say("a run of a higher class took the quota");

    // Its end returns the quota: one of the two that wait begins, with its next attempt.
    queue.ends("urgent-driver-1-0", 0).await?;
    queue.is("urgent", Phase::Succeeded, "").await?;
    queue.holds_nothing("urgent").await?;
    assert_eq!(queue.workload("urgent").await?, None);
    let next = until(SOON, "one of the waiting runs", async || {
        let runs: Api<GrpoRun> = Api::namespaced(queue.client(), TEAM);
        let all = runs
            .list(&ListParams::default())
            .await
            .map_err(api("listing", "GrpoRuns"))?;
        let works = |run: &&GrpoRun| run.status.as_ref().and_then(|status| status.phase) == Some(Phase::Running);
        Ok(all
            .iter()
            .find(works)
            .map(ResourceExt::name_any)
            .ok_or_else(|| "none works".to_owned()))
    })
    .await?;
    queue.works(&next).await?;
    say(&format!("{next} continues after the end of the other"));

    // An administrator stops it by its Workload, and lets it in again.
    queue.change_workload(&next, json!({"active": false})).await?;
    queue.holds_nothing(&next).await?;
    queue.is(&next, Phase::Queued, "spec.active is false").await?;
    let other = if next == "first" { "second" } else { "first" };
    queue.works(other).await?;
    queue.change_workload(&next, json!({"active": true})).await?;
    queue.is(&next, Phase::Queued, "insufficient unused quota").await?;
    say("a deactivated Workload stopped its run, and another one began");

    // A deleted run leaves nothing.
    let runs: Api<GrpoRun> = Api::namespaced(queue.client(), TEAM);
    delete_run(&queue.rig.admin, &runs.get(other).await?, SOON).await?;
    queue.works(&next).await?;
    assert_eq!(queue.workload(other).await?, None);
    say("a deleted run made room");

    // Without its Workload a run has no quota: it gives all back, and asks again.
    let before = queue.workload(&next).await?.unwrap_or_default().metadata.uid;
    let workloads: Api<Workload> = Api::namespaced(queue.client(), TEAM);
    workloads
        .delete(&format!("grporun-{next}"), &DeleteParams::default())
        .await?;
    until(SOON, "another Workload that is admitted", async || {
        let there = queue.workload(&next).await?.unwrap_or_default();
        Ok(match there.metadata.uid != before && there.is_admitted() {
            true => Ok(()),
            false => Err(format!("{there:?}")),
        })
    })
    .await?;
    queue.works(&next).await?;
    say("a run asked for quota again after its Workload was deleted");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Kueue: make test-kueue"]
async fn a_run_says_which_queue_or_class_is_missing_and_begins_when_it_is_there() -> Result<()> {
    let queue = queue().await?;
    queue.apply(run("lost").with("/queueName", json!("later"))).await?;
    queue
        .is("lost", Phase::Queued, "LocalQueue later doesn't exist")
        .await?;
    let later = json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "LocalQueue", "metadata": {"name": "later", "namespace": TEAM}, "spec": {"clusterQueue": "gpus"}});
    grpo_testing::ask::ask(&queue.rig.admin, grpo_testing::ask::Verb::Create, &later, false).await?;
    queue.works("lost").await?;

    // Of two that wait, the one with a class of Kueue's goes first, although it is younger.
    queue.apply(run("plain")).await?;
    queue.is("plain", Phase::Queued, "insufficient unused quota").await?;
    let mut ranked = run("ranked");
    ranked.0["metadata"]["labels"] = json!({"kueue.x-k8s.io/priority-class": "none-yet"});
    queue.apply(ranked.clone()).await?;
    queue
        .is("ranked", Phase::Queued, "there is no WorkloadPriorityClass none-yet")
        .await?;
    ranked.0["metadata"]["labels"] = json!({"kueue.x-k8s.io/priority-class": "research"});
    queue.apply(ranked).await?;
    queue.works("ranked").await?;
    queue.holds_nothing("lost").await?;
    queue.is("plain", Phase::Queued, "").await?;
    Ok(())
}
