//! Creates, reads and deletes the ResourceClaims of a run. Claims of an earlier spec are known to the API server alone,
//! so they are listed: once for each spec of a run that shares GPUs, and not again at rest.
//!
//! A claim that pods still use stays until they are gone: Kubernetes deletes it then.

use grpo_operator_core::{
    desired_object::{DesiredObject, Owner},
    names,
    ownership::is_owned_by,
};
use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::{Api, Resource, api::ListParams};

use crate::{
    applied::Key,
    cluster::Cluster,
    error::{Error, is_missing},
};

/// Whether this object is a claim, which [`Cluster::create_gpu_claim`] creates.
pub fn is_gpu_claim(desired: &DesiredObject) -> bool {
    desired.kind() == ResourceClaim::kind(&())
}

impl Cluster {
    /// Creates a claim if it is missing. `shape`: what the run's spec asks for; see
    /// [`grpo_operator_core::grpo_run::gpu_claims::shape`].
    pub async fn create_gpu_claim(
        &self,
        run: &Owner,
        desired: &DesiredObject,
        shape: Option<u64>,
    ) -> Result<(), Error> {
        let all = all_of(run);
        match shape {
            Some(shape) => self.applied.record(all, shape, None, None),
            None => self.applied.forget(&all),
        }
        // A ResourceQuota counts the claim's devices, and its refusal is waited for as that of a pod.
        let created = self.apply(&run.namespace, desired).await;
        created.map_err(Error::of_creation)
    }

    /// The run's claims, if they may be of another spec than the one with this shape.
    pub async fn earlier_gpu_claims(&self, run: &Owner, shape: u64) -> Result<Vec<ResourceClaim>, Error> {
        let all = all_of(run);
        if self.applied.is_current(&all, shape) || self.applied.is_absent(&all) {
            return Ok(Vec::new());
        }
        self.gpu_claims(run).await
    }

    /// Deletes all ResourceClaims of a run. Makes no request once none was found, until one is created again.
    pub async fn delete_gpu_claims(&self, run: &Owner) -> Result<(), Error> {
        let all = all_of(run);
        if self.applied.is_absent(&all) {
            return Ok(());
        }
        let found = self.gpu_claims(run).await?;
        for claim in &found {
            let metadata = &claim.metadata;
            if metadata.deletion_timestamp.is_none() {
                let name = metadata.name.as_deref().unwrap_or_default();
                self.delete::<ResourceClaim>(&run.namespace, name, metadata.uid.as_deref())
                    .await?;
            }
        }
        match found.is_empty() {
            true => self.applied.record_absent(all),
            false => self.applied.forget(&all),
        }
        Ok(())
    }

    /// The run's claims. A cluster that does not serve the API has none.
    async fn gpu_claims(&self, run: &Owner) -> Result<Vec<ResourceClaim>, Error> {
        let claims: Api<ResourceClaim> = Api::namespaced(self.client.clone(), &run.namespace);
        let labels = format!("{},{}={}", names::MANAGED_SELECTOR, names::RUN, run.name);
        let mut listed = match claims.list(&ListParams::default().labels(&labels)).await {
            Ok(listed) => listed.items,
            Err(kube::Error::Api(status)) if is_missing(&status) => return Ok(Vec::new()),
            Err(source) => {
                return Err(Error::Read {
                    what: format!("the ResourceClaims of GrpoRun {}/{}", run.namespace, run.name),
                    source: Box::new(source),
                });
            }
        };
        listed.retain(|claim| is_owned_by(&claim.metadata, &run.uid));
        Ok(listed)
    }
}

/// Stands for all claims of a run: its content is the shape that they have.
fn all_of(run: &Owner) -> Key {
    Key::of("ResourceClaims of a run", &run.namespace, &run.uid)
}
