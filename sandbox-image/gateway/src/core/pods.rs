//! Creates, deletes and resets sandbox pods, as the index decides.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use grpo_crds::sandbox_pool::Reset;
use grpo_sandbox_protocol::SandboxCause;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, PostParams};
use tokio::sync::oneshot;

use super::{Core, now};
use crate::pod::{self, Placement, Template};
use crate::sandbox::Holder;

/// After a refused creation: a quota or an admission rule will refuse the next one too. It doubles while nothing else
/// is answered.
const REFUSED_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_REFUSED_PAUSE: Duration = Duration::from_secs(30);
/// Before a creation is tried again to which there was no answer; it doubles.
const UNANSWERED_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_UNANSWERED_PAUSE: Duration = Duration::from_secs(5);

impl Core {
    pub(super) async fn create(self: Arc<Self>, name: String, image: String, slot: Option<u32>) {
        if !self.may_make_pods().await {
            self.with(|index| index.refused(&name));
            return;
        }
        let aliases = self.package_aliases().await;
        let near = self
            .prefetcher
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .node_of(&image);
        let placement = Placement { slot, near, aliases };
        let made = match pod::sandbox(&self.template_now(), &name, &image, &placement) {
            Ok(pod) => self.ask_for(&pod, &name).await,
            Err(error) => Err(kube::Error::SerdeError(error)),
        };
        match made {
            Ok(uid) => {
                self.refusals.store(0, Ordering::Relaxed);
                self.apply(|index| index.answered(&name, &uid, now()));
            }
            Err(error) if pod::is_refused_for_its_rule(&error) && self.look(|index| index.resets) => {
                tracing::warn!(%error, "this cluster cannot restart containers as `reset` asks (Kubernetes 1.36 can): pods are deleted instead");
                self.with(|index| {
                    index.resets = false;
                    index.refused(&name);
                });
            }
            Err(error) => {
                tracing::warn!(%error, name, image, "creating a sandbox pod");
                self.metrics.api_refused();
                let before = self.refusals.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep((REFUSED_PAUSE * (1 << before.min(8))).min(LONGEST_REFUSED_PAUSE)).await;
                self.with(|index| index.refused(&name));
            }
        }
    }

    /// What pods are made from, without what this cluster was found not to know.
    fn template_now(&self) -> Template {
        let mut template = self.template.clone();
        if !self.look(|index| index.resets) {
            template.spec.reset = Reset::Never;
        }
        template
    }

    /// Asks until the API server says yes or no. What it did not answer it may have done all the same, so the same pod
    /// is asked for again: a second one would be one too many. Answers its uid, if that can be had.
    async fn ask_for(&self, pod: &Pod, name: &str) -> Result<String, kube::Error> {
        let mut pause = UNANSWERED_PAUSE;
        loop {
            let error = match self.pods.create(&PostParams::default(), pod).await {
                Ok(made) => {
                    self.metrics.wrote("create");
                    return Ok(made.metadata.uid.unwrap_or_default());
                }
                // An earlier try was heard.
                Err(kube::Error::Api(status)) if status.code == 409 && status.reason == "AlreadyExists" => {
                    let found = self.pods.get(name).await;
                    return Ok(found.ok().and_then(|pod| pod.metadata.uid).unwrap_or_default());
                }
                Err(error) => error,
            };
            let wait = match &error {
                kube::Error::Api(status) if status.code == 429 || status.code >= 500 => {
                    let asked = status.details.as_ref().map_or(0, |details| details.retry_after_seconds);
                    pause.max(Duration::from_secs(asked.into()))
                }
                kube::Error::Api(_) | kube::Error::SerdeError(_) => return Err(error),
                _ => pause,
            };
            tracing::debug!(%error, name, "creating a sandbox pod; it will be tried again");
            tokio::time::sleep(wait).await;
            pause = (pause * 2).min(LONGEST_UNANSWERED_PAUSE);
        }
    }

    /// Once: the index orders it again until the pod is seen to be gone. Answers whether the API server has taken the
    /// order.
    pub(super) async fn delete(self: Arc<Self>, name: String) -> bool {
        let deleting = || self.deleting.lock().unwrap_or_else(PoisonError::into_inner);
        if !deleting().insert(name.clone()) {
            return false;
        }
        let is_taken = self.delete_now(&name).await;
        deleting().remove(&name);
        is_taken
    }

    async fn delete_now(&self, name: &str) -> bool {
        let Ok(_permit) = self.deletions.acquire().await else {
            return false;
        };
        match self.pods.delete(name, &DeleteParams::default().grace_period(0)).await {
            Ok(_) => {
                self.metrics.wrote("delete");
                self.with(|index| index.deleting(name));
                true
            }
            Err(kube::Error::Api(status)) if status.code == 404 => {
                self.with(|index| index.absent(name));
                true
            }
            Err(error) => {
                tracing::warn!(%error, name, "deleting a sandbox pod; it will be tried again");
                false
            }
        }
    }

    /// Has a container restart; tells when sandboxd has ended what was there. A sandboxd that does not say that it
    /// will end is not waited for.
    pub(super) async fn reset(
        self: Arc<Self>,
        name: String,
        ip: &str,
        lease: &str,
        epoch: u64,
        ended: oneshot::Sender<()>,
    ) {
        match self.sandboxes.reset(Holder { ip, lease, epoch }).await {
            Ok(()) => {
                // A caller that has gone does not want to know.
                let _ = ended.send(());
                if let Some(ip) = self.look(|index| index.restarting(&name, epoch)) {
                    self.await_answer(name, ip).await;
                }
            }
            Err(error) => {
                tracing::warn!(%error, name, "resetting a sandbox; it is thrown away");
                let actions = self.with(|index| index.discard(&name, SandboxCause::Unknown, now()));
                if self.carry_out(actions).await.is_ok() {
                    let _ = ended.send(());
                }
            }
        }
    }
}
