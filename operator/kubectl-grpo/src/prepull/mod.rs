//! Makes nodes pull images before a run needs them: one short-lived pod for each image on each node.
//!
//! ```text
//! nodes × images ──► pulls ──► [`pulls::decide`] ◄── what the pods show ([`pod::seen`])
//!                                   │
//!            pods made and deleted ◄┘      lines of progress, a table of failures ([`report`])
//! ```
//!
//! The pods of a call carry its name as a label and as the prefix of their names. The call deletes all of them at its
//! end, also after Ctrl-C; if this program dies, their deadline ends them.

pub mod pod;
pub mod pulls;
pub mod report;

use self::pod::{CALL, Template};
use self::pulls::{Action, Limits, Pull};
use crate::cluster::Cluster;
use crate::error::{Asking, Error, refused};
use grpo_crds::common::OverlaySpec;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::time::{Duration, Instant};

/// Interval between looks at the pods.
pub const LOOK: Duration = Duration::from_secs(2);
/// Interval between lines of progress.
const SAY: Duration = Duration::from_secs(10);
/// The pause after the API server temporarily refused a pod.
const REFUSED_PAUSE: Duration = Duration::from_secs(10);
/// Tries to delete the remaining pods at the end, and the pause after the first; each pause is twice the last.
const CLEARINGS: u32 = 5;
const CLEARING_PAUSE: Duration = Duration::from_millis(500);
/// Pods outlive the deadline by this time, so that their failure can still be read.
const DEADLINE_MARGIN: Duration = Duration::from_secs(60);

/// The request of a call.
#[derive(Clone, Debug)]
pub struct PrepullRequest {
    pub images: Vec<String>,
    /// Labels of nodes; `None` for those of the overlay, or all nodes.
    pub selector: Option<String>,
    pub limits: Limits,
    pub pull_secrets: Vec<String>,
    /// The pool's overlay for its sandboxes.
    pub overlay: OverlaySpec,
    /// Interval between looks at the pods.
    pub look: Duration,
}

/// The result of a call.
#[derive(Debug)]
pub struct Prepulled {
    /// How far the pulls came, also if the call was interrupted.
    pub pulls: Vec<Pull>,
    pub ended: Result<(), Error>,
}

/// The images of a file: one per line, `#` begins a comment.
pub fn read_images(file: &Path) -> Result<Vec<String>, Error> {
    let text = match file == Path::new("-") {
        true => std::io::read_to_string(std::io::stdin()),
        false => std::fs::read_to_string(file),
    };
    let text = text.map_err(|source| Error::ImagesFile {
        file: file.to_owned(),
        source,
    })?;
    let mut known = HashSet::new();
    let names = text
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with('#'));
    Ok(names.filter(|name| known.insert(*name)).map(str::to_owned).collect())
}

/// Pulls until every image is pulled or has failed. `name` is the call's name. An error means that nothing was pulled.
pub async fn prepull(cluster: &Cluster, name: &str, order: &PrepullRequest) -> Result<Prepulled, Error> {
    if order.images.is_empty() {
        return Err(Error::Usage("there is no image to pull: the list is empty".into()));
    }
    let selector = order.selector.clone().unwrap_or_else(|| labels(&order.overlay));
    let nodes = nodes(cluster, &selector).await?;
    let call = Call {
        cluster,
        pods: Api::namespaced(cluster.client.clone(), &cluster.namespace),
        template: Template {
            call: name.to_owned(),
            pull_secrets: order.pull_secrets.clone(),
            runtime_class: order.overlay.runtime_class_name.clone(),
            deadline_seconds: (order.limits.deadline + DEADLINE_MARGIN).as_secs(),
        },
        began: Instant::now(),
    };
    let mut pulls = pulls::wanted(&nodes, &order.images);
    eprintln!("{} images on {} nodes", order.images.len(), nodes.len());
    let worked = tokio::select! {
        worked = call.work(&mut pulls, order) => worked,
        _ = tokio::signal::ctrl_c() => Err(Error::Interrupted),
    };
    let cleared = call.clear().await;
    Ok(Prepulled {
        pulls,
        ended: worked.and(cleared),
    })
}

fn labels(overlay: &OverlaySpec) -> String {
    let labels = overlay
        .node_selector
        .iter()
        .map(|(key, value)| format!("{key}={value}"));
    labels.collect::<Vec<_>>().join(",")
}

/// Names of Linux nodes with these labels, without those that are not ready: their pulls would wait for the deadline.
async fn nodes(cluster: &Cluster, selector: &str) -> Result<Vec<String>, Error> {
    let asking = Asking {
        verb: "list",
        resource: "nodes",
        namespace: None,
        name: "",
    };
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    let found = nodes.list(&ListParams::default().labels(selector)).await;
    let found = found.map_err(|error| asking.failed(error))?;
    let is_linux = |node: &&Node| node.labels().get("kubernetes.io/os").is_none_or(|os| os == "linux");
    let (ready, others): (Vec<&Node>, Vec<&Node>) =
        found.items.iter().filter(is_linux).partition(|node| is_ready(node));
    if !others.is_empty() {
        let others: Vec<String> = others.into_iter().map(ResourceExt::name_any).collect();
        eprintln!("nodes that are not ready are left out: {}", others.join(", "));
    }
    let names: Vec<String> = ready.into_iter().map(ResourceExt::name_any).collect();
    match names.is_empty() {
        false => Ok(names),
        true => Err(Error::NoNodes {
            selector: selector.to_owned(),
        }),
    }
}

/// Whether nothing says that the node is not ready.
fn is_ready(node: &Node) -> bool {
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let mut ready = conditions.filter(|condition| condition.type_ == "Ready");
    ready.all(|condition| condition.status == "True")
}

/// The I/O of one call.
struct Call<'a> {
    cluster: &'a Cluster,
    pods: Api<Pod>,
    template: Template,
    began: Instant,
}

impl Call<'_> {
    async fn work(&self, pulls: &mut [Pull], order: &PrepullRequest) -> Result<(), Error> {
        let mut said = Duration::ZERO;
        loop {
            match self.list().await {
                Ok(pods) => {
                    let seen = pods.iter().map(|pod| (pod.name_any(), pod::seen(pod)));
                    let seen: BTreeMap<_, _> = seen.collect();
                    for action in pulls::decide(pulls, &seen, &order.limits, self.began.elapsed()) {
                        self.act(pulls, action).await?;
                    }
                }
                Err(error) if is_passing(&error) => eprintln!("The API server does not list pods for now: {error}"),
                Err(error) => return Err(self.asking("list", "").failed(error)),
            }
            if pulls::is_over(pulls) {
                return Ok(());
            }
            if self.began.elapsed() >= said + SAY {
                said = self.began.elapsed();
                eprintln!("{}", report::progress(pulls, said));
            }
            tokio::time::sleep(order.look).await;
        }
    }

    /// The pods of this call.
    async fn list(&self) -> Result<Vec<Pod>, kube::Error> {
        let of_call = ListParams::default().labels(&format!("{CALL}={}", self.template.call));
        Ok(self.pods.list(&of_call).await?.items)
    }

    async fn act(&self, pulls: &mut [Pull], action: Action) -> Result<(), Error> {
        let mut action = action;
        let mut name = String::new();
        if let Action::Create { pull, attempt } = action {
            name = self.template.name(pull, attempt);
            if !self.create(&name, &pulls[pull]).await? {
                // A refused creation does not count as an attempt.
                let not_before = self.began.elapsed() + REFUSED_PAUSE;
                action = Action::Again {
                    pull,
                    attempt,
                    not_before,
                };
            }
        }
        match pulls::take(pulls, &action, &name, self.began.elapsed()) {
            Some(pod) => self.delete(&pod).await,
            None => Ok(()),
        }
    }

    /// False if the API server temporarily refuses the pod: a quota is full, or the server is overloaded or failing.
    async fn create(&self, name: &str, pull: &Pull) -> Result<bool, Error> {
        let wanted = self.template.pod(name, &pull.node, &pull.image);
        let wanted = serde_json::from_value(wanted).map_err(|error| Error::Usage(error.to_string()))?;
        match self.pods.create(&PostParams::default(), &wanted).await {
            Ok(_) => Ok(true),
            // The pod exists: an earlier answer was lost.
            Err(error) if refused(&error, 409) => Ok(true),
            Err(error) if is_passing(&error) => {
                eprintln!("The API server refuses pod {name} for now: {error}");
                Ok(false)
            }
            Err(error) => Err(self.asking("create", name).failed(error)),
        }
    }

    /// A pod that the API server does not delete for now is deleted at the end of the call.
    async fn delete(&self, name: &str) -> Result<(), Error> {
        match self.pods.delete(name, &DeleteParams::default().grace_period(0)).await {
            Ok(_) => Ok(()),
            Err(error) if refused(&error, 404) => Ok(()),
            Err(error) if is_passing(&error) => {
                eprintln!("The API server does not delete pod {name} for now: {error}");
                Ok(())
            }
            Err(error) => Err(self.asking("delete", name).failed(error)),
        }
    }

    /// Deletes every pod of this call, also one that was being created when the call was interrupted.
    async fn clear(&self) -> Result<(), Error> {
        for attempt in 0..CLEARINGS {
            match self.list().await {
                Ok(pods) if pods.is_empty() => return Ok(()),
                Ok(pods) => {
                    for pod in pods {
                        self.delete(&pod.name_any()).await?;
                    }
                }
                Err(error) if is_passing(&error) => eprintln!("The API server does not list pods for now: {error}"),
                Err(error) => return Err(self.asking("list", "").failed(error)),
            }
            tokio::time::sleep(CLEARING_PAUSE * 2_u32.pow(attempt)).await;
        }
        eprintln!(
            "Pods with the label {CALL}={} may be left in namespace {}; they end by themselves after the deadline",
            self.template.call, self.cluster.namespace
        );
        Ok(())
    }

    fn asking<'a>(&'a self, verb: &'static str, name: &'a str) -> Asking<'a> {
        Asking {
            verb,
            resource: "pods",
            namespace: Some(&self.cluster.namespace),
            name,
        }
    }
}

/// A quota may have room later, and a failing API server may recover.
fn is_passing(error: &kube::Error) -> bool {
    match error {
        kube::Error::Api(status) => {
            status.code == 429
                || status.code >= 500
                || (status.code == 403 && status.message.contains("exceeded quota"))
        }
        kube::Error::HyperError(_) | kube::Error::Service(_) => true,
        _ => false,
    }
}

/// A unique name for a call.
pub fn call_name() -> String {
    let now = jiff::Timestamp::now().as_nanosecond() as u64;
    format!(
        "prepull-{:08x}",
        (now ^ u64::from(std::process::id()).rotate_left(32)) & 0xffff_ffff
    )
}

#[cfg(test)]
mod tests;
