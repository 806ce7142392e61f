//! Creates, deletes and resets sandbox pods, by the decisions of the index.

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

/// First pause after a refused creation: a quota or an admission rule will refuse the next one too. It doubles until a
/// creation succeeds.
const REFUSED_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_REFUSED_PAUSE: Duration = Duration::from_secs(30);
/// First pause before an unanswered creation is retried; it doubles.
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

    /// The template for pods, without features that this cluster does not know.
    fn template_now(&self) -> Template {
        let mut template = self.template.clone();
        if !self.look(|index| index.resets) {
            template.spec.reset = Reset::Never;
        }
        template
    }

    /// Retries until the API server accepts or refuses. An unanswered request may have succeeded, so each retry asks
    /// for the same pod: another name could make one pod too many. Returns the pod's uid, if it is available.
    async fn ask_for(&self, pod: &Pod, name: &str) -> Result<String, kube::Error> {
        let mut pause = UNANSWERED_PAUSE;
        let mut may_exist = false;
        loop {
            let error = match self.pods.create(&PostParams::default(), pod).await {
                Ok(made) => {
                    self.metrics.wrote("create");
                    return Ok(made.metadata.uid.unwrap_or_default());
                }
                // An earlier try succeeded.
                Err(kube::Error::Api(status)) if status.code == 409 && status.reason == "AlreadyExists" => {
                    let found = self.pods.get(name).await;
                    return Ok(found.ok().and_then(|pod| pod.metadata.uid).unwrap_or_default());
                }
                Err(error) => error,
            };
            let wait = match &error {
                kube::Error::Api(status) if status.code == 429 || status.code >= 500 => {
                    may_exist |= status.code >= 500;
                    let asked = status.details.as_ref().map_or(0, |details| details.retry_after_seconds);
                    pause.max(Duration::from_secs(asked.into()))
                }
                // A quota is checked before the name: this refusal says nothing about the pod of an earlier try, which
                // may have taken the last of the quota and be leased by now.
                kube::Error::Api(_) | kube::Error::SerdeError(_) if may_exist => match self.pods.get_opt(name).await {
                    Ok(Some(pod)) => return Ok(pod.metadata.uid.unwrap_or_default()),
                    Ok(None) => return Err(error),
                    Err(_) => pause,
                },
                kube::Error::Api(_) | kube::Error::SerdeError(_) => return Err(error),
                _ => {
                    may_exist = true;
                    pause
                }
            };
            tracing::debug!(%error, name, "creating a sandbox pod; it will be tried again");
            tokio::time::sleep(wait).await;
            pause = (pause * 2).min(LONGEST_UNANSWERED_PAUSE);
        }
    }

    /// Orders a deletion once; the index repeats it until the pod is seen to be gone. Returns whether the API server
    /// has accepted the order.
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

    /// Restarts a container; signals `ended` when sandboxd has ended the processes in it. If sandboxd does not confirm
    /// that it will end, the gateway does not wait for it.
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
                // The caller may have gone away.
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
