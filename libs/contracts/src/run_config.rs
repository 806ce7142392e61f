//! `run.json`: the resolved [`GrpoRun`], written by the operator. It is the only configuration of driver and trainer.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use grpo_crds::{
    common::ConfigMapKeyRef,
    grpo_run::{Dataset, GrpoRun, GrpoRunSpec, PromptOverrides, Select},
    inference_pool::ModelCache,
    sources::{HubDataset, HubModel, ModelSource, ObjectStoreSource, joined},
};

use crate::access::{Service, gateway_audience};

/// A resolved run, mounted at [`RunConfig::PATH`] in driver and trainer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunConfig {
    pub name: String,
    pub namespace: String,
    /// The run's uid: the driver includes it in every write of progress.
    pub uid: String,
    pub spec: GrpoRunSpec,
    /// The run's root inside the store's volume or below the bucket's prefix, `<namespace>/<name>` unless given.
    pub store_path: String,
    /// The folder with the model's files.
    pub model_path: String,
    /// How the driver downloads the files, if they come from the Hugging Face Hub or an object store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_download: Option<ModelDownload>,
    /// Sources of datasets and their mount paths, without repetition.
    pub datasets: Vec<DatasetMount>,
    /// ConfigMap texts that task sets name, and their mount paths, without repetition.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub config_maps: Vec<ConfigMapMount>,
    pub endpoints: Endpoints,
}

/// A model that is downloaded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ModelDownload {
    /// `hub` or `objectStore`, as in the manifest.
    #[serde(flatten)]
    pub from: RemoteModel,
    /// The folder of the cache, as driver and trainer see it.
    pub cache: String,
    /// The driver also downloads the weights. False if neither trainer nor engines share its cache: the driver does not
    /// read weights.
    pub weights: bool,
}

/// A model that is on no volume: processes download it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum RemoteModel {
    Hub(HubModel),
    ObjectStore(ObjectStoreSource),
}

impl RemoteModel {
    /// `None` for a mounted model.
    pub fn of(source: &ModelSource) -> Option<Self> {
        let hub = source.hub.clone().map(Self::Hub);
        hub.or_else(|| source.object_store.clone().map(Self::ObjectStore))
    }

    /// The mounted Secret for the process that downloads: the file with the hub's token, or the folder with the object
    /// store's keys. `None` without a Secret.
    pub fn secret(&self) -> Option<String> {
        match self {
            Self::Hub(hub) => {
                let file = joined(ModelDownload::TOKEN_MOUNT, Some(ModelDownload::TOKEN_FILE));
                hub.token_secret_ref.as_ref().map(|_| file)
            }
            Self::ObjectStore(store) => {
                let folder = ModelDownload::CREDENTIALS_MOUNT.to_owned();
                store.credentials_secret_ref.as_ref().map(|_| folder)
            }
        }
    }
}

impl ModelDownload {
    /// The mount path of the pool's cache in each pod that shares it.
    pub const CACHE_MOUNT: &'static str = "/model-cache";
    /// The folder below a cache for downloads from the hub and from object stores.
    pub const HUB_FOLDER: &'static str = "hub";
    /// The mount path of the token, if there is one.
    pub const TOKEN_MOUNT: &'static str = "/model-token";
    pub const TOKEN_FILE: &'static str = "token";
    /// The mount path of the Secret with an object store's keys, if there is one: one file for each key.
    pub const CREDENTIALS_MOUNT: &'static str = "/model-credentials";
    /// The driver's HTTP path for the commit and files that the run's processes use.
    pub const PIN_ROUTE: &'static str = "/v1/model";

    fn of(spec: &GrpoRunSpec, store_path: &str) -> Option<Self> {
        let from = RemoteModel::of(&spec.model.source())?;
        let shared = pool_cache(spec);
        let claim = shared.is_some_and(|cache| cache.claim_name.is_some());
        Some(Self {
            cache: match shared {
                Some(_) => joined(Self::CACHE_MOUNT, Some(Self::HUB_FOLDER)),
                None => format!("{}/{store_path}/{}", RunConfig::STORE_MOUNT, Self::HUB_FOLDER),
            },
            // A node's folder is shared by the pods on that node, and it is not known whether others run on the
            // driver's node. If the run's store is a bucket, each pod has its own `/store`.
            weights: claim || (shared.is_none() && spec.mode.needs_trainer() && spec.store.object_store.is_none()),
            from,
        })
    }
}

/// The cache of the run's own pool, if other pods can share it.
pub fn pool_cache(spec: &GrpoRunSpec) -> Option<&ModelCache> {
    let cache = spec.inference.pool.as_ref()?.model_cache.as_ref();
    cache.filter(|cache| cache.claim_name.is_some() || cache.host_path.is_some())
}

/// A ConfigMap text, mounted in the driver: a list of instances, or statements of prompts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ConfigMapMount {
    /// `/config-maps/<n>`; the text is in it as the file [`ConfigMapMount::FILE`].
    pub path: String,
    pub config_map_ref: ConfigMapKeyRef,
}

impl ConfigMapMount {
    /// The file with the text, below the mount.
    pub const FILE: &'static str = "text";
}

/// One source of datasets, as the driver receives it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DatasetMount {
    /// `/datasets/<n>`
    pub path: String,
    /// The reference, if it is an image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// The volume claim's name, if it is a volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim_name: Option<String>,
    /// The split, if the driver downloads it from the Hugging Face Hub. Then only the token is mounted, if there is
    /// one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hub: Option<HubDataset>,
    /// The file, if the driver downloads it from an object store. Then only the keys are mounted, if there are any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object_store: Option<ObjectStoreSource>,
}

impl DatasetMount {
    /// The file with the token, below the mount.
    pub const TOKEN: &'static str = "token";

    fn is_same_source(&self, other: &Self) -> bool {
        let unmounted = |mount: &Self| Self {
            path: String::new(),
            ..mount.clone()
        };
        unmounted(self) == unmounted(other)
    }
}

/// The location of a dataset's rows for the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DatasetLocation {
    /// A mounted file.
    File(PathBuf),
    /// A split that the driver downloads.
    Hub {
        dataset: HubDataset,
        /// The file with the token.
        token: Option<PathBuf>,
    },
    /// A file in a bucket that the driver downloads.
    ObjectStore {
        file: ObjectStoreSource,
        /// The folder with the keys.
        credentials: Option<PathBuf>,
    },
}

/// The addresses by which a run's processes reach each other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Endpoints {
    /// Base URL of the sandbox gateway.
    pub gateway: String,
    /// A host name that resolves to every engine pod, ready or not.
    pub engines_host: String,
    pub engines_port: u16,
    /// The same for the pool of the judge, if the run has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub judge_host: Option<String>,
    /// Base URL of the trainer's rank 0.
    pub trainer: String,
    /// Base URL of the driver, as agents see it.
    pub driver: String,
}

impl RunConfig {
    /// The key in the ConfigMap `<run>-config`.
    pub const KEY: &'static str = "run.json";
    /// Its path in driver and trainer.
    pub const PATH: &'static str = "/etc/grpo/run.json";
    /// The mount path of the store's volume in driver and trainer.
    pub const STORE_MOUNT: &'static str = "/store";
    /// The mount path of the Secret with a bucket's credentials in driver and trainer, one file for each key.
    pub const STORE_SECRET: &'static str = "/store-credentials";
    /// The mount path of `reward.http`'s token in the driver; the token is the file [`RunConfig::REWARD_TOKEN_FILE`].
    pub const REWARD_TOKEN_MOUNT: &'static str = "/reward-token";
    pub const REWARD_TOKEN_FILE: &'static str = "token";
    /// The mount path of `trackers.mlflow`'s token in the driver, the file [`RunConfig::MLFLOW_TOKEN_FILE`].
    pub const MLFLOW_TOKEN_MOUNT: &'static str = "/mlflow-token";
    pub const MLFLOW_TOKEN_FILE: &'static str = "token";
    /// The mount path of `trackers.wandb.upload`'s API key in the driver, the file [`RunConfig::WANDB_KEY_FILE`].
    pub const WANDB_KEY_MOUNT: &'static str = "/wandb-key";
    pub const WANDB_KEY_FILE: &'static str = "key";
    /// The mount path of datasets in the driver.
    pub const DATASETS_MOUNT: &'static str = "/datasets";
    /// The mount path of ConfigMap texts in the driver.
    pub const CONFIG_MAPS_MOUNT: &'static str = "/config-maps";

    pub const DRIVER_PORT: u16 = 8070;
    /// The port of the run's records in the driver. On loopback only: clients reach it through the API server.
    pub const RECORDS_PORT: u16 = 8071;
    pub const TRAINER_PORT: u16 = 8090;
    pub const AGENT_PORT: u16 = 8000;
    pub const GATEWAY_PORT: u16 = 8080;

    /// The audience of the driver's token for a service. The gateway of another namespace's pool has its own, because
    /// the pool's owners see the token. In the run's namespace, users who may replace the gateway may also create such
    /// tokens. There, the service's audience lets drivers work with gateways of earlier versions, as after a rollback.
    pub fn audience(&self, service: Service) -> String {
        let pool = self.spec.sandboxes.pool_ref.as_ref();
        let elsewhere = pool.and_then(|pool| Some((pool.namespace.as_ref()?, &pool.name)));
        match elsewhere.filter(|(namespace, _)| service == Service::Gateway && **namespace != self.namespace) {
            Some((namespace, pool)) => gateway_audience(namespace, pool),
            None => service.audience().to_owned(),
        }
    }

    /// Host and port of the driver of a run. The gateway relays agents' requests only there, if a driver asks.
    pub fn driver_service(namespace: &str, run: &str) -> String {
        format!("{run}-driver.{namespace}.svc:{}", Self::DRIVER_PORT)
    }

    /// Resolves a run that the API server has accepted.
    pub fn of(run: &GrpoRun) -> Self {
        let name = run.metadata.name.clone().unwrap_or_default();
        let namespace = run.metadata.namespace.clone().unwrap_or_default();
        let engines = run.spec.inference.pool_ref.as_ref().map_or(&name, |pool| &pool.name);
        let sandboxes = run.spec.sandboxes.pool_ref.as_ref();
        let sandboxes_namespace = sandboxes.and_then(|pool| pool.namespace.as_ref()).unwrap_or(&namespace);
        let sandboxes = sandboxes.map_or(&name, |pool| &pool.name);
        let store_path = run.spec.store.path.clone();
        let store_path = store_path.unwrap_or_else(|| format!("{namespace}/{name}"));
        Self {
            uid: run.metadata.uid.clone().unwrap_or_default(),
            model_download: ModelDownload::of(&run.spec, &store_path),
            store_path,
            model_path: run.spec.model.source().directory(),
            datasets: mounts(&run.spec),
            config_maps: config_maps(&run.spec),
            endpoints: Endpoints {
                gateway: format!(
                    "http://{sandboxes}-gateway.{sandboxes_namespace}.svc:{}",
                    Self::GATEWAY_PORT
                ),
                engines_host: format!("{engines}-engines.{namespace}.svc"),
                engines_port: Self::AGENT_PORT,
                judge_host: (run.spec.reward.process.as_ref())
                    .map(|judge| format!("{}-engines.{namespace}.svc", judge.pool_ref.name)),
                trainer: format!("http://{name}-trainer.{namespace}.svc:{}", Self::TRAINER_PORT),
                driver: format!("http://{}", Self::driver_service(&namespace, &name)),
            },
            spec: run.spec.clone(),
            name,
            namespace,
        }
    }

    /// The folder of the run's store in driver and trainer, if the store is on a volume.
    pub fn store_root(&self) -> PathBuf {
        Path::new(Self::STORE_MOUNT).join(&self.store_path)
    }

    /// The folder with the credentials of the store's bucket, as driver and trainer see it.
    pub fn store_secret(store: &ObjectStoreSource) -> Option<&'static Path> {
        store
            .credentials_secret_ref
            .as_ref()
            .map(|_| Path::new(Self::STORE_SECRET))
    }

    /// The location of a dataset's rows, as the driver sees it. `None` if the operator that wrote this file does not
    /// know its source.
    pub fn dataset(&self, dataset: &Dataset) -> Option<DatasetLocation> {
        let (wanted, path) = source(dataset)?;
        let mount = self.datasets.iter().find(|mount| mount.is_same_source(&wanted))?;
        Some(match (wanted.hub, wanted.object_store) {
            (Some(dataset), _) => DatasetLocation::Hub {
                token: (dataset.token_secret_ref.as_ref())
                    .map(|_| PathBuf::from(joined(&mount.path, Some(DatasetMount::TOKEN)))),
                dataset,
            },
            (None, Some(file)) => DatasetLocation::ObjectStore {
                credentials: (file.credentials_secret_ref.as_ref()).map(|_| PathBuf::from(&mount.path)),
                file,
            },
            (None, None) => DatasetLocation::File(PathBuf::from(joined(&mount.path, path))),
        })
    }

    /// The file with a ConfigMap text, as the driver sees it.
    pub fn config_map(&self, text: &ConfigMapKeyRef) -> Option<PathBuf> {
        let mount = self.config_maps.iter().find(|mount| mount.config_map_ref == *text)?;
        Some(PathBuf::from(joined(&mount.path, Some(ConfigMapMount::FILE))))
    }
}

/// The common parts of a run's task sets, the training set first.
fn sets(spec: &GrpoRunSpec) -> impl Iterator<Item = (&Dataset, &Select, Option<&PromptOverrides>)> {
    let train = spec.tasks.train.iter();
    let train = train.map(|set| (&set.dataset, &set.select, set.prompt_overrides.as_ref()));
    let evaluate = spec.tasks.evaluate.iter();
    train.chain(evaluate.map(|set| (&set.dataset, &set.select, set.prompt_overrides.as_ref())))
}

/// Every ConfigMap text that a run's task sets name, without repetition, in order of first mention.
fn config_maps(spec: &GrpoRunSpec) -> Vec<ConfigMapMount> {
    let texts = sets(spec).flat_map(|(_, select, overrides)| {
        let lists = [&select.instance_ids, &select.exclude].into_iter().flatten();
        let lists = lists.filter_map(|ids| ids.config_map_ref.as_ref());
        lists.chain(overrides.and_then(|overrides| overrides.config_map_ref.as_ref()))
    });
    let mut mounts: Vec<ConfigMapMount> = Vec::new();
    for text in texts {
        if !mounts.iter().any(|mount| mount.config_map_ref == *text) {
            mounts.push(ConfigMapMount {
                path: format!("{}/{}", RunConfig::CONFIG_MAPS_MOUNT, mounts.len()),
                config_map_ref: text.clone(),
            });
        }
    }
    mounts
}

/// Every dataset source that a run names, without repetition: rows of task sets in order of first mention, files of
/// statements, conversations.
fn mounts(spec: &GrpoRunSpec) -> Vec<DatasetMount> {
    let rows = sets(spec).map(|(rows, ..)| rows);
    let statements = sets(spec).filter_map(|(.., overrides)| overrides?.dataset.as_ref());
    let conversations = spec.finetune.iter().flat_map(|finetune| {
        let held_out = finetune.validation.as_ref().map(|validation| &validation.dataset);
        std::iter::once(&finetune.dataset).chain(held_out)
    });
    let mut mounts: Vec<DatasetMount> = Vec::new();
    for (mut mount, _) in rows.chain(statements).chain(conversations).filter_map(source) {
        if !mounts.iter().any(|other| other.is_same_source(&mount)) {
            mount.path = format!("{}/{}", RunConfig::DATASETS_MOUNT, mounts.len());
            mounts.push(mount);
        }
    }
    mounts
}

/// The source of a dataset, not yet mounted, and the file in it.
fn source(dataset: &Dataset) -> Option<(DatasetMount, Option<&str>)> {
    let mut unmounted = DatasetMount::default();
    let path = if let Some(image) = &dataset.image {
        unmounted.image = Some(image.reference.clone());
        image.path.as_deref()
    } else if let Some(claim) = &dataset.persistent_volume_claim {
        unmounted.claim_name = Some(claim.claim_name.clone());
        claim.path.as_deref()
    } else if dataset.hub.is_some() || dataset.object_store.is_some() {
        unmounted.hub.clone_from(&dataset.hub);
        unmounted.object_store.clone_from(&dataset.object_store);
        None
    } else {
        return None;
    };
    Some((unmounted, path))
}
