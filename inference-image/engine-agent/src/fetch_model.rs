//! Brings a model of the hub to a pod before its engine or trainer starts: asks which commit, downloads what the cache
//! lacks, and links the path that the process was told to the files.
//!
//! A hub or a driver that is away is waited for. The pod's log says what for; the run's driver says it in the run's
//! status, and ends the run where waiting cannot help.

use clap::Args;
use grpo_auth::TokenFile;
use grpo_contracts::access::{self, Service};
use grpo_hub::snapshot::{self, Progress};
use grpo_hub::{Hub, HubError, HubFiles, HubSettings, Pin, Repository};
use reqwest::Url;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Between two questions, the first and the longest: a driver starts within seconds, a hub comes back after minutes.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
const ASK_WITHIN: Duration = Duration::from_secs(30);
/// How often a download says how far it is.
const SAY: Duration = Duration::from_secs(10);

/// Bring a model of the hub into a cache.
#[derive(Args, Clone, Debug)]
pub struct Flags {
    /// Owner and name of the repository.
    #[arg(long)]
    pub repo: String,
    /// Branch, tag or commit. Default: the newest commit.
    #[arg(long)]
    pub revision: Option<String>,
    /// The folder that is shared.
    #[arg(long)]
    pub cache: PathBuf,
    /// What leads to the files in the end.
    #[arg(long)]
    pub link: PathBuf,
    /// A file with a token of the hub.
    #[arg(long)]
    pub token_file: Option<PathBuf>,
    /// Where the driver of the run says which files it takes.
    #[arg(long, conflicts_with = "pin_name")]
    pub pin_url: Option<Url>,
    /// The first process that shares the cache and has this name decides.
    #[arg(long)]
    pub pin_name: Option<String>,
    /// The folder with tokens for the services of the cluster.
    #[arg(long, default_value = access::TOKENS)]
    pub tokens: PathBuf,
}

#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    #[error(transparent)]
    Hub(#[from] HubError),
    #[error("asking {url} which files the run takes: {cause}")]
    Pin { url: Url, cause: String },
}

impl FetchError {
    fn is_transient(&self) -> bool {
        match self {
            Self::Hub(error) => error.is_transient(),
            Self::Pin { .. } => true,
        }
    }
}

/// Answers the folder of the files, to which the link leads now.
pub async fn fetch(flags: &Flags) -> Result<PathBuf, FetchError> {
    let mut pause = PAUSES.0;
    loop {
        match fetch_once(flags).await {
            Err(error) if error.is_transient() => {
                tracing::warn!(%error, "trying again in {} s", pause.as_secs());
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(PAUSES.1);
            }
            ended => return ended,
        }
    }
}

async fn fetch_once(flags: &Flags) -> Result<PathBuf, FetchError> {
    let settings = HubSettings::from_env().with_token_file(flags.token_file.as_deref())?;
    let (hub, repository) = (Hub::new(&settings)?, Repository::model(&flags.repo));
    let of = HubFiles {
        hub: &hub,
        repository: &repository,
    };
    let now = Pin::of_model(of, flags.revision.as_deref());
    let pin = match (&flags.pin_url, &flags.pin_name) {
        (Some(url), _) => told(url, &flags.tokens).await?,
        (None, Some(name)) => Pin::agreed(&of, &flags.cache, name, now).await?,
        (None, None) => now.await?,
    };
    let progress = Progress::default();
    let mut download = std::pin::pin!(pin.fetch(&of, &flags.cache, &progress));
    let folder = loop {
        match tokio::time::timeout(SAY, &mut download).await {
            Ok(folder) => break folder?,
            Err(_) => {
                let (arrived, all) = progress.bytes();
                tracing::info!("{repository}: {} of {} MB", arrived / 1_000_000, all / 1_000_000);
            }
        }
    };
    snapshot::link(&folder, &flags.link)?;
    tracing::info!(%repository, commit = %pin.commit, "the model is here");
    Ok(folder)
}

/// What the driver of the run takes.
async fn told(url: &Url, tokens: &Path) -> Result<Pin, FetchError> {
    let failed = |cause: String| FetchError::Pin {
        url: url.clone(),
        cause,
    };
    let token = TokenFile::in_folder(tokens, Service::Driver);
    let ask = async {
        let http = reqwest::Client::builder().no_proxy().timeout(ASK_WITHIN).build()?;
        TokenFile::authorize(Some(&token), http.get(url.clone())).send().await
    };
    let answer = ask.await.map_err(|error| failed(error.to_string()))?;
    let status = answer.status();
    let body = answer.bytes().await.map_err(|error| failed(error.to_string()))?;
    if !status.is_success() {
        let text: String = String::from_utf8_lossy(&body).chars().take(500).collect();
        return Err(failed(format!("{status}: {text}")));
    }
    serde_json::from_slice(&body).map_err(|error| failed(error.to_string()))
}
