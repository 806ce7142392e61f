//! `run.json`: what the operator resolves a [`GrpoRun`] to. Driver and trainer are started with it and look at nothing
//! else.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use grpo_crds::{
    grpo_run::{Dataset, GrpoRun, GrpoRunSpec},
    sources::joined,
};

/// A resolved run, mounted at [`RunConfig::PATH`] in driver and trainer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunConfig {
    pub name: String,
    pub namespace: String,
    /// The run's uid: the driver names it in every write of progress.
    pub uid: String,
    pub spec: GrpoRunSpec,
    /// The run's root inside the store's volume, `<namespace>/<name>` unless given.
    pub store_path: String,
    /// The folder with the model's files.
    pub model_path: String,
    /// Sources of datasets and where they are mounted, without repetition.
    pub datasets: Vec<DatasetMount>,
    pub endpoints: Endpoints,
}

/// One source of datasets, mounted in the driver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DatasetMount {
    /// `/datasets/<n>`
    pub path: String,
    /// The reference, when it is an image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// The claim's name, when it is a volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim_name: Option<String>,
}

/// Where the processes of a run find each other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Endpoints {
    /// Base URL of the sandbox gateway.
    pub gateway: String,
    /// A name that resolves to every engine pod, ready or not.
    pub engines_host: String,
    pub engines_port: u16,
    /// Base URL of the trainer's rank 0.
    pub trainer: String,
    /// Base URL of the driver, as the agents see it.
    pub driver: String,
}

impl RunConfig {
    /// The key in the ConfigMap `<run>-config`.
    pub const KEY: &'static str = "run.json";
    /// Where driver and trainer find it.
    pub const PATH: &'static str = "/etc/grpo/run.json";
    /// Where the store's volume is mounted in driver and trainer.
    pub const STORE_MOUNT: &'static str = "/store";
    /// Where datasets are mounted in the driver.
    pub const DATASETS_MOUNT: &'static str = "/datasets";

    pub const DRIVER_PORT: u16 = 8070;
    /// Where the driver shows the run's records. On loopback only: whoever gets there came through the API server.
    pub const RECORDS_PORT: u16 = 8071;
    pub const TRAINER_PORT: u16 = 8090;
    pub const AGENT_PORT: u16 = 8000;
    pub const GATEWAY_PORT: u16 = 8080;

    /// Resolves a run that the API server has accepted.
    pub fn of(run: &GrpoRun) -> Self {
        let name = run.metadata.name.clone().unwrap_or_default();
        let namespace = run.metadata.namespace.clone().unwrap_or_default();
        let engines = run.spec.inference.pool_ref.as_ref().map_or(&name, |pool| &pool.name);
        let sandboxes = run.spec.sandboxes.pool_ref.as_ref();
        let sandboxes_namespace = sandboxes.and_then(|pool| pool.namespace.as_ref()).unwrap_or(&namespace);
        let sandboxes = sandboxes.map_or(&name, |pool| &pool.name);
        Self {
            uid: run.metadata.uid.clone().unwrap_or_default(),
            store_path: run
                .spec
                .store
                .path
                .clone()
                .unwrap_or_else(|| format!("{namespace}/{name}")),
            model_path: run.spec.model.source().directory(),
            datasets: mounts(&run.spec),
            endpoints: Endpoints {
                gateway: format!(
                    "http://{sandboxes}-gateway.{sandboxes_namespace}.svc:{}",
                    Self::GATEWAY_PORT
                ),
                engines_host: format!("{engines}-engines.{namespace}.svc"),
                engines_port: Self::AGENT_PORT,
                trainer: format!("http://{name}-trainer.{namespace}.svc:{}", Self::TRAINER_PORT),
                driver: format!("http://{name}-driver.{namespace}.svc:{}", Self::DRIVER_PORT),
            },
            spec: run.spec.clone(),
            name,
            namespace,
        }
    }

    /// The folder on the driver's and trainer's file system that is the run's store.
    pub fn store_root(&self) -> PathBuf {
        Path::new(Self::STORE_MOUNT).join(&self.store_path)
    }

    /// The file with a dataset's rows, as the driver sees it.
    pub fn dataset_file(&self, dataset: &Dataset) -> Option<PathBuf> {
        let (wanted, path) = source(dataset)?;
        self.datasets
            .iter()
            .find(|mount| mount.image == wanted.image && mount.claim_name == wanted.claim_name)
            .map(|mount| PathBuf::from(joined(&mount.path, path)))
    }
}

/// Every source that a run's task sets name, once, in the order of their first mention.
fn mounts(spec: &GrpoRunSpec) -> Vec<DatasetMount> {
    let train = spec.tasks.train.iter().map(|set| &set.dataset);
    let evaluate = spec.tasks.evaluate.iter().map(|set| &set.dataset);
    let mut mounts: Vec<DatasetMount> = Vec::new();
    for (mut mount, _) in train.chain(evaluate).filter_map(source) {
        let known = mounts
            .iter()
            .any(|other| other.image == mount.image && other.claim_name == mount.claim_name);
        if !known {
            mount.path = format!("{}/{}", RunConfig::DATASETS_MOUNT, mounts.len());
            mounts.push(mount);
        }
    }
    mounts
}

/// The source of a dataset, not yet mounted, and the file in it.
fn source(dataset: &Dataset) -> Option<(DatasetMount, Option<&str>)> {
    let unmounted = |image: Option<String>, claim_name: Option<String>| DatasetMount {
        path: String::new(),
        image,
        claim_name,
    };
    match (&dataset.image, &dataset.persistent_volume_claim) {
        (Some(image), _) => Some((unmounted(Some(image.reference.clone()), None), image.path.as_deref())),
        (None, Some(claim)) => Some((unmounted(None, Some(claim.claim_name.clone())), claim.path.as_deref())),
        (None, None) => None,
    }
}
