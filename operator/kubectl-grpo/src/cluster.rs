//! The selected cluster, namespace and run.

use crate::arguments::ClusterOptions;
use crate::error::{Asking, Error, refused};
use grpo_crds::GrpoRun;
use kube::api::{Api, ListParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config, ResourceExt};

const RUNS: &str = "grporuns.grpo.dev";
/// The number of names shown if the requested one does not exist.
const NAMES_SHOWN: u32 = 10;

/// A cluster, and the selected namespace.
#[derive(Clone)]
pub struct Cluster {
    pub client: Client,
    pub namespace: String,
    /// The namespace of the command line, if it has one.
    pub given: Option<String>,
}

impl Cluster {
    pub async fn connect(options: &ClusterOptions) -> Result<Self, Error> {
        let mut config = config(options).await?;
        // A log may be silent for hours.
        config.read_timeout = None;
        let namespace = options
            .namespace
            .clone()
            .unwrap_or_else(|| config.default_namespace.clone());
        let client = Client::try_from(config).map_err(|error| Error::Kubeconfig(error.to_string()))?;
        let given = options.namespace.clone();
        Ok(Self {
            client,
            namespace,
            given,
        })
    }

    pub fn runs(&self) -> Api<GrpoRun> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    pub async fn run(&self, name: &str) -> Result<GrpoRun, Error> {
        let asking = Asking {
            verb: "get",
            resource: RUNS,
            namespace: Some(&self.namespace),
            name,
        };
        match self.runs().get(name).await {
            Ok(run) => Ok(run),
            Err(error) if refused(&error, 404) => Err(self.no_run(name).await),
            Err(error) => Err(asking.failed(error)),
        }
    }

    /// All runs, of the namespace or of the cluster.
    pub async fn list(&self, everywhere: bool) -> Result<Vec<GrpoRun>, Error> {
        let api = match everywhere {
            true => Api::all(self.client.clone()),
            false => self.runs(),
        };
        let asking = Asking {
            verb: "list",
            resource: RUNS,
            namespace: (!everywhere).then_some(self.namespace.as_str()),
            name: "",
        };
        match api.list(&ListParams::default()).await {
            Ok(list) => Ok(list.items),
            Err(error) if refused(&error, 404) => Err(Error::NotInstalled),
            Err(error) => Err(asking.failed(error)),
        }
    }

    /// Why the run does not exist: the kind does not exist, or the names of the existing runs.
    async fn no_run(&self, name: &str) -> Error {
        let there = match self.runs().list(&ListParams::default().limit(NAMES_SHOWN)).await {
            Ok(list) if list.items.is_empty() => None,
            Ok(list) => Some(
                list.items
                    .iter()
                    .map(ResourceExt::name_any)
                    .collect::<Vec<_>>()
                    .join(", "),
            ),
            Err(error) if refused(&error, 404) => return Error::NotInstalled,
            Err(_) => None,
        };
        Error::NoRun {
            name: name.to_owned(),
            namespace: self.namespace.clone(),
            there,
        }
    }
}

async fn config(options: &ClusterOptions) -> Result<Config, Error> {
    let wrong = |error: kube::config::KubeconfigError| Error::Kubeconfig(error.to_string());
    let of_context = KubeConfigOptions {
        context: options.context.clone(),
        ..KubeConfigOptions::default()
    };
    match (&options.kubeconfig, &options.context) {
        (Some(path), _) => {
            let read = Kubeconfig::read_from(path).map_err(wrong)?;
            Config::from_custom_kubeconfig(read, &of_context).await.map_err(wrong)
        }
        (None, Some(_)) => Config::from_kubeconfig(&of_context).await.map_err(wrong),
        (None, None) => Config::infer()
            .await
            .map_err(|error| Error::Kubeconfig(error.to_string())),
    }
}
