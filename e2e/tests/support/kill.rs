//! `kill -9` of a process in a pod, as a crash or the kernel would do it, without warning.
//!
//! The first process of a container cannot be killed that way from inside the container, so the test calls the node's
//! container runtime.

use super::{Result, SOON, Scene, nodes};
use grpo_testing::cluster::wait;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::Api;
use kube::runtime::watcher;

/// A running container.
#[derive(Clone, Debug)]
pub struct Victim {
    pub pod: String,
    pub uid: String,
    node: String,
    container: String,
    id: String,
}

impl Victim {
    /// The container with that name in a pod, if it runs; without a name the first one.
    fn of(pod: &Pod, container: Option<&str>) -> Option<Self> {
        let mut statuses = pod.status.as_ref()?.container_statuses.as_ref()?.iter();
        let status = statuses.find(|c| container.is_none_or(|name| c.name == name))?;
        status.state.as_ref()?.running.as_ref()?;
        Some(Self {
            pod: pod.name_any(),
            uid: pod.uid()?,
            node: pod.spec.as_ref()?.node_name.clone()?,
            container: status.name.clone(),
            id: status.container_id.as_ref()?.rsplit('/').next()?.to_owned(),
        })
    }

    fn kill(&self) -> Result<()> {
        let ctr = [
            "ctr",
            "--namespace",
            "k8s.io",
            "task",
            "kill",
            "--signal",
            "SIGKILL",
            &self.id,
        ];
        let ran = nodes::on(&self.node, &ctr);
        ran.map(drop)
            .map_err(|error| format!("killing {} of pod {}: {error}", self.container, self.pod).into())
    }
}

impl Scene {
    /// Kills a container of the first of these pods that runs it, and waits until that process is certainly gone: its
    /// pod is deleted or has ended, or the container was replaced.
    pub async fn kill(
        &self,
        what: &str,
        pods: Api<Pod>,
        which: watcher::Config,
        container: Option<&str>,
    ) -> Result<Victim> {
        let running = |there: &wait::Objects<Pod>| {
            let alive = |pod: &&Pod| pod.metadata.deletion_timestamp.is_none();
            there.values().filter(alive).find_map(|pod| Victim::of(pod, container))
        };
        let victim = wait::until(pods.clone(), which, SOON, &format!("a running {what}"), running).await?;
        victim.kill()?;
        self.say(&format!("killed {what}: {} of pod {}", victim.container, victim.pod));
        let gone = |there: &wait::Objects<Pod>| {
            let same = there
                .get(&victim.pod)
                .filter(|pod| pod.uid().as_deref() == Some(&victim.uid));
            let still = same.and_then(|pod| Victim::of(pod, Some(&victim.container)));
            still.is_none_or(|now| now.id != victim.id).then_some(())
        };
        let wanted = format!("{what} in pod {} to be gone", victim.pod);
        wait::until(pods, wait::named(&victim.pod), SOON, &wanted, gone).await?;
        Ok(victim)
    }
}
