//! The selected cluster, namespace and run.

mod proxy;

use crate::arguments::ClusterOptions;
use crate::error::{Asking, Error, refused};
use grpo_crds::GrpoRun;
use kube::api::{Api, ListParams};
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
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

/// Like `Config::infer`, except for the proxy: see [`proxy`].
async fn config(options: &ClusterOptions) -> Result<Config, Error> {
    let only_in_pod = options.kubeconfig.is_none() && options.context.is_none();
    let (mut config, of_kubeconfig) = match of_kubeconfig(options).await {
        Ok(found) => found,
        Err(KubeconfigError::ParseNoProxy(error)) => {
            let text = format!("NO_PROXY cannot be read ({error}); separate names by one comma");
            return Err(Error::Proxy(text));
        }
        Err(KubeconfigError::ParseProxyUrl(error)) => {
            return Err(Error::Proxy(format!(
                "HTTPS_PROXY or proxy-url is no address ({error})"
            )));
        }
        Err(error) if only_in_pod => {
            return Config::incluster()
                .map_err(|in_pod| Error::Kubeconfig(format!("{error} (and this is no pod with access: {in_pod})")));
        }
        Err(error) => return Err(Error::Kubeconfig(error.to_string())),
    };
    let environment = proxy::Environment::read();
    config.proxy_url =
        proxy::choose(&config.cluster_url, of_kubeconfig.as_deref(), &environment).map_err(Error::Proxy)?;
    if config.proxy_url.is_some()
        && let Some(server) = proxy::with_port(&config.cluster_url)
    {
        config.cluster_url = server;
    }
    Ok(config)
}

/// The selected context, and the `proxy-url` of its cluster.
async fn of_kubeconfig(options: &ClusterOptions) -> Result<(Config, Option<String>), KubeconfigError> {
    let read = match &options.kubeconfig {
        Some(path) => Kubeconfig::read_from(path)?,
        None => Kubeconfig::read()?,
    };
    let proxy = proxy::of_kubeconfig(&read, options.context.as_deref());
    let of_context = KubeConfigOptions {
        context: options.context.clone(),
        ..KubeConfigOptions::default()
    };
    Ok((Config::from_custom_kubeconfig(read, &of_context).await?, proxy))
}
