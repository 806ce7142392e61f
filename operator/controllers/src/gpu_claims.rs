//! Deletes the ResourceClaims of a run, also those of an earlier spec, which are known to the API server alone.
//!
//! A claim that pods still use stays until they are gone: Kubernetes deletes it then.

use grpo_operator_core::{
    desired_object::{DesiredObject, Owner},
    names,
    ownership::is_owned_by,
};
use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::{
    Api, Resource,
    api::ListParams,
    core::{ObjectMeta, PartialObjectMeta},
};

use crate::{applied::Key, cluster::Cluster, error::Error};

impl Cluster {
    /// Deletes all ResourceClaims of a run. Makes no request once none was found, until one is created again.
    pub async fn delete_gpu_claims(&self, run: &Owner) -> Result<(), Error> {
        let all = all_of(run);
        if self.applied.is_absent(&all) {
            return Ok(());
        }
        let found = self.gpu_claims(run).await?;
        for claim in found.iter().filter(|claim| claim.deletion_timestamp.is_none()) {
            let name = claim.name.as_deref().unwrap_or_default();
            self.delete::<ResourceClaim>(&run.namespace, name, claim.uid.as_deref())
                .await?;
        }
        if found.is_empty() {
            self.applied.record_absent(all);
        }
        Ok(())
    }

    /// Records that a run has claims again, if this object is one.
    pub fn expect_gpu_claims(&self, run: &Owner, desired: &DesiredObject) {
        if desired.kind() == ResourceClaim::kind(&()) {
            self.applied.forget(&all_of(run));
        }
    }

    /// The run's claims. A cluster that does not serve the API has none.
    async fn gpu_claims(&self, run: &Owner) -> Result<Vec<ObjectMeta>, Error> {
        let claims: Api<ResourceClaim> = Api::namespaced(self.client.clone(), &run.namespace);
        let labels = format!("{},{}={}", names::MANAGED_SELECTOR, names::RUN, run.name);
        let listed = match claims.list_metadata(&ListParams::default().labels(&labels)).await {
            Ok(listed) => listed,
            Err(kube::Error::Api(status)) if status.is_not_found() => return Ok(Vec::new()),
            Err(source) => {
                return Err(Error::Read {
                    what: format!("the ResourceClaims of GrpoRun {}/{}", run.namespace, run.name),
                    source: Box::new(source),
                });
            }
        };
        let own = |claim: &PartialObjectMeta<ResourceClaim>| is_owned_by(claim.meta(), &run.uid);
        let own = listed.into_iter().filter(own);
        Ok(own.map(|claim| claim.metadata).collect())
    }
}

/// Stands for all claims of a run.
fn all_of(run: &Owner) -> Key {
    Key::of("ResourceClaims of a run", &run.namespace, &run.uid)
}
