//! Downloads a model from the hub or a bucket before a pod's engine or trainer starts: gets the list of files,
//! downloads those that the cache lacks, and links the process's model path to them.
//!
//! Waits for a server or a driver that does not answer. The pod's log names the cause; the run's driver reports it in
//! the run's status, and ends the run if waiting cannot help.

use clap::Args;
use grpo_auth::TokenFile;
use grpo_contracts::access::{self, Service};
use grpo_crds::sources::ObjectStoreSource;
use grpo_hub::snapshot::{self, Progress};
use grpo_hub::{FileSource, Hub, HubError, HubFiles, HubSettings, Pin, Repository};
use grpo_object_storage::{BucketFiles, Content};
use reqwest::Url;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// First and longest pause between two requests: a driver starts within seconds, a hub comes back after minutes.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
const ASK_WITHIN: Duration = Duration::from_secs(30);
/// Interval between progress messages of a download.
const SAY: Duration = Duration::from_secs(10);

/// Bring a model of the hub or of a bucket into a cache.
#[derive(Args, Clone, Debug)]
pub struct Flags {
    /// Owner and name of a repository of the hub.
    #[arg(long, required_unless_present = "object_store")]
    pub repo: Option<String>,
    /// URL of the folder with config.json in a bucket: s3://, gs:// or az://.
    #[arg(long, conflicts_with_all = ["repo", "revision", "token_file"])]
    pub object_store: Option<String>,
    /// URL of a server that speaks S3 and is not Amazon's.
    #[arg(long, requires = "object_store")]
    pub object_store_endpoint: Option<String>,
    /// Region of the bucket.
    #[arg(long, requires = "object_store")]
    pub object_store_region: Option<String>,
    /// A folder with the bucket's keys, one file each, such as AWS_ACCESS_KEY_ID. Default: the pod's own identity.
    #[arg(long, requires = "object_store")]
    pub credentials: Option<PathBuf>,
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

/// Returns the folder of the files, to which the link now points.
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
    let Some(url) = &flags.object_store else {
        let settings = HubSettings::from_env().with_token_file(flags.token_file.as_deref())?;
        let (hub, repository) = (
            Hub::new(&settings)?,
            Repository::model(flags.repo.as_deref().unwrap_or_default()),
        );
        let files = HubFiles {
            hub: &hub,
            repository: &repository,
        };
        return take(flags, &files, Pin::of_model(files, flags.revision.as_deref())).await;
    };
    let source = ObjectStoreSource {
        url: url.clone(),
        endpoint: flags.object_store_endpoint.clone(),
        region: flags.object_store_region.clone(),
        credentials_secret_ref: None,
    };
    let files = BucketFiles::open(Content::Model, &source, flags.credentials.as_deref()).await;
    let files = files.map_err(HubError::from)?;
    take(flags, &files, async { files.pin().await.map_err(HubError::from) }).await
}

/// Downloads the files that the driver or the cache pins, else those that `now` returns.
async fn take(
    flags: &Flags,
    files: &impl FileSource,
    now: impl Future<Output = Result<Pin, HubError>>,
) -> Result<PathBuf, FetchError> {
    let pin = match (&flags.pin_url, &flags.pin_name) {
        (Some(url), _) => told(url, &flags.tokens).await?,
        (None, Some(name)) => Pin::agreed(files, &flags.cache, name, now).await?,
        (None, None) => now.await?,
    };
    let progress = Progress::default();
    let mut download = std::pin::pin!(pin.fetch(files, &flags.cache, &progress));
    let folder = loop {
        match tokio::time::timeout(SAY, &mut download).await {
            Ok(folder) => break folder?,
            Err(_) => {
                let (arrived, all) = progress.bytes();
                tracing::info!("{files}: {} of {} MB", arrived / 1_000_000, all / 1_000_000);
            }
        }
    };
    snapshot::link(&folder, &flags.link)?;
    tracing::info!(%files, commit = %pin.commit, "the model is here");
    Ok(folder)
}

/// The pin of the run's driver.
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
