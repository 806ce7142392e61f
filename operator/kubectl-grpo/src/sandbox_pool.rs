//! The SandboxPool of a run: inline, in the same file, or in the cluster. It rewrites image names and has the Secrets
//! with which nodes pull the images.

use crate::cluster::Cluster;
use crate::error::{Asking, Error, refused};
use grpo_contracts::image_name::rewritten;
use grpo_crds::common::OverlaySpec;
use grpo_crds::{GrpoRun, SandboxPool, SandboxPoolSpec};
use kube::ResourceExt;
use kube::api::Api;
use std::collections::HashSet;

const POOLS: &str = "sandboxpools.grpo.dev";

/// The pool's spec. `beside` has the pools of the run's own file. `None` for a run without sandboxes, and for a pool
/// that does not exist yet or that the user may not read, which `said` reports.
pub async fn of_run(
    cluster: &Cluster,
    run: &GrpoRun,
    beside: &[SandboxPool],
    said: impl FnOnce(String),
) -> Result<Option<SandboxPoolSpec>, Error> {
    let sandboxes = &run.spec.sandboxes;
    if let Some(pool) = &sandboxes.pool {
        return Ok(Some(pool.clone()));
    }
    let Some(named) = &sandboxes.pool_ref else {
        return Ok(None);
    };
    if let Some(pool) = beside.iter().find(|pool| pool.name_any() == named.name) {
        return Ok(Some(pool.spec.clone()));
    }
    let namespace = &namespace(cluster, run);
    let asking = Asking {
        verb: "get",
        resource: POOLS,
        namespace: Some(namespace),
        name: &named.name,
    };
    let pools: Api<SandboxPool> = Api::namespaced(cluster.client.clone(), namespace);
    match pools.get(&named.name).await {
        Ok(pool) => Ok(Some(pool.spec)),
        Err(error) if refused(&error, 404) => {
            let name = &named.name;
            said(format!(
                "there is no SandboxPool (grpo.dev) {name} in namespace {namespace}: images are named as tasks name them"
            ));
            Ok(None)
        }
        // A run may use another namespace's pool that its user may not read.
        Err(error) if refused(&error, 403) && *namespace != cluster.namespace => {
            let name = &named.name;
            said(format!(
                "you may not get SandboxPool (grpo.dev) {name} in namespace {namespace}: images are named as tasks name them, without the pool's imageRewrites"
            ));
            Ok(None)
        }
        Err(error) => Err(asking.failed(error)),
    }
}

/// The namespace of the run's sandboxes.
pub fn namespace(cluster: &Cluster, run: &GrpoRun) -> String {
    let named = run
        .spec
        .sandboxes
        .pool_ref
        .as_ref()
        .and_then(|pool| pool.namespace.clone());
    named.unwrap_or_else(|| cluster.namespace.clone())
}

/// Secrets with which nodes pull sandbox images: the pool's, or for the run's own pool the run's.
pub fn pull_secrets(run: &GrpoRun, pool: Option<&SandboxPoolSpec>) -> Vec<String> {
    let is_own = run.spec.sandboxes.pool.is_some();
    let of_run = run
        .spec
        .image_pull_secrets
        .iter()
        .filter(|_| is_own)
        .map(|secret| secret.name.clone());
    let of_pool = overlay(pool).image_pull_secrets.into_iter().map(|secret| secret.name);
    of_run.chain(of_pool).collect()
}

/// An image name as nodes pull it.
pub fn pulled_name(pool: Option<&SandboxPoolSpec>, image: &str) -> String {
    rewritten(pool.map_or(&[], |pool| &pool.image_rewrites), image)
}

/// Image names as nodes pull them, each once, in the order of their first mention.
pub fn pulled_names<'a>(pool: Option<&SandboxPoolSpec>, images: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let mut known = HashSet::new();
    let images = images.into_iter().map(|image| pulled_name(pool, image));
    images.filter(|image| known.insert(image.clone())).collect()
}

/// The pool's overlay for its sandboxes.
pub fn overlay(pool: Option<&SandboxPoolSpec>) -> OverlaySpec {
    let template = pool.and_then(|pool| pool.pod_template.as_ref());
    template.and_then(|template| template.spec.clone()).unwrap_or_default()
}
