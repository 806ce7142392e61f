//! A client for the bucket of an [`ObjectStoreSource`].

use crate::credentials::{Credentials, CredentialsError};
use grpo_crds::sources::ObjectStoreSource;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey, S3CopyIfNotExists, resolve_bucket_region};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::multipart::MultipartStore;
use object_store::{Certificate, ClientOptions, ObjectStore, RetryConfig};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// How long one request is retried.
const PATIENCE: Duration = Duration::from_secs(180);
const CONNECT: Duration = Duration::from_secs(10);
/// Time without a byte after which the request is retried. A large answer as a whole may take longer.
const SILENCE: Duration = Duration::from_secs(60);
/// The region for S3's own servers if none is given; others ignore it.
const DEFAULT_REGION: &str = "us-east-1";

/// A bucket's client.
#[derive(Clone)]
pub struct Opened {
    pub objects: Arc<dyn ObjectStore>,
    /// Named multipart uploads, if an aborted one cannot be completed: not with Azure.
    pub parts: Option<Arc<dyn MultipartStore>>,
    /// The URL's path below the bucket, without slashes at its ends.
    pub prefix: String,
}

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("{url} is no bucket of an object store, such as s3://bucket/folder")]
    Url { url: String },
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
    #[error("reading the certificates in {file} (SSL_CERT_FILE): {source}")]
    Certificates {
        file: PathBuf,
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    #[error(
        "opening {url}: {source}; check objectStore.endpoint and the keys of credentialsSecretRef, which are the variables of \
the store's own tools"
    )]
    Client { url: String, source: object_store::Error },
}

impl OpenError {
    /// Whether a retry may succeed.
    pub fn is_transient(&self) -> bool {
        matches!(
            self,
            Self::Client {
                source: object_store::Error::Generic { .. },
                ..
            }
        )
    }
}

/// A client for the bucket. It sends a request only for a bucket of Amazon's without a region.
pub async fn open(source: &ObjectStoreSource, credentials: &Credentials) -> Result<Opened, OpenError> {
    // If a process has two cryptography providers, rustls uses the installed one.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let unknown = || OpenError::Url {
        url: source.url.clone(),
    };
    let (scheme, rest) = source.url.split_once("://").ok_or_else(unknown)?;
    let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    if bucket.is_empty() {
        return Err(unknown());
    }
    let prefix = prefix.trim_matches('/').to_owned();
    let options = client_options(source)?;
    let opened = match scheme {
        "s3" => s3(source, bucket, credentials, options).await,
        "gs" => gs(source, bucket, credentials, options),
        "az" => az(source, bucket, credentials, options),
        _ => return Err(unknown()),
    };
    let (objects, parts) = opened.map_err(|error| OpenError::Client {
        url: source.url.clone(),
        source: error,
    })?;
    Ok(Opened { objects, parts, prefix })
}

type Client = (Arc<dyn ObjectStore>, Option<Arc<dyn MultipartStore>>);

async fn s3(
    source: &ObjectStoreSource,
    bucket: &str,
    credentials: &Credentials,
    options: ClientOptions,
) -> object_store::Result<Client> {
    let mut builder = AmazonS3Builder::new()
        .with_bucket_name(bucket)
        .with_retry(retries())
        .with_client_options(options.clone())
        .with_copy_if_not_exists(S3CopyIfNotExists::Multipart);
    for (key, value) in credentials.of("AWS_") {
        if let Ok(key) = key.parse::<AmazonS3ConfigKey>() {
            builder = builder.with_config(key, value);
        }
    }
    if let Some(endpoint) = &source.endpoint {
        builder = builder.with_endpoint(endpoint);
    }
    let named = source.region.clone();
    let region = named.or_else(|| builder.get_config_value(&AmazonS3ConfigKey::Region));
    let region = match region {
        Some(region) => region,
        None if builder.get_config_value(&AmazonS3ConfigKey::Endpoint).is_some() => DEFAULT_REGION.to_owned(),
        None => resolve_bucket_region(bucket, &options).await?,
    };
    let client = Arc::new(builder.with_region(region).build()?);
    Ok((client.clone(), Some(client)))
}

fn gs(
    source: &ObjectStoreSource,
    bucket: &str,
    credentials: &Credentials,
    options: ClientOptions,
) -> object_store::Result<Client> {
    let mut builder = GoogleCloudStorageBuilder::new()
        .with_bucket_name(bucket)
        .with_retry(retries())
        .with_client_options(options);
    for (key, value) in credentials.of("GOOGLE_") {
        // A Secret has the key itself, a machine the path of its file.
        let is_key = value.trim_start().starts_with('{');
        match key.parse::<GoogleConfigKey>() {
            Ok(_) if is_key => builder = builder.with_service_account_key(value),
            Ok(key) => builder = builder.with_config(key, value),
            Err(_) => {}
        }
    }
    if let Some(endpoint) = &source.endpoint {
        builder = builder.with_config(GoogleConfigKey::BaseUrl, endpoint);
    }
    let client = Arc::new(builder.build()?);
    Ok((client.clone(), Some(client)))
}

fn az(
    source: &ObjectStoreSource,
    container: &str,
    credentials: &Credentials,
    options: ClientOptions,
) -> object_store::Result<Client> {
    let mut builder = MicrosoftAzureBuilder::new()
        .with_container_name(container)
        .with_retry(retries())
        .with_client_options(options);
    for (key, value) in credentials.of("AZURE_") {
        match key.parse::<AzureConfigKey>() {
            // A path is appended to it, and Azure's webhook adds a final slash.
            Ok(key @ AzureConfigKey::AuthorityHost) => builder = builder.with_config(key, value.trim_end_matches('/')),
            Ok(key) => builder = builder.with_config(key, value),
            Err(_) => {}
        }
    }
    if let Some(endpoint) = &source.endpoint {
        builder = builder.with_endpoint(endpoint.clone());
    }
    Ok((Arc::new(builder.build()?), None))
}

/// Proxies come from `HTTP_PROXY`, `HTTPS_PROXY` and `NO_PROXY`. TLS trusts the authorities that browsers trust, even
/// in an image without any, and those in `SSL_CERT_FILE`.
fn client_options(source: &ObjectStoreSource) -> Result<ClientOptions, OpenError> {
    let is_plain = source
        .endpoint
        .as_ref()
        .is_some_and(|endpoint| endpoint.starts_with("http://"));
    let mut options = ClientOptions::new()
        .with_allow_http(is_plain)
        .with_connect_timeout(CONNECT)
        .with_read_timeout(SILENCE)
        .with_timeout_disabled()
        .with_no_system_certificates(true);
    for certificate in webpki_root_certs::TLS_SERVER_ROOT_CERTS {
        if let Ok(certificate) = Certificate::from_der(certificate) {
            options = options.with_root_certificate(certificate);
        }
    }
    let named = std::env::var_os("SSL_CERT_FILE").filter(|file| !file.is_empty());
    if let Some(file) = named.map(PathBuf::from) {
        let read = std::fs::read(&file).map_err(Into::into);
        let read = read.and_then(|pem| Certificate::from_pem_bundle(&pem).map_err(Into::into));
        let certificates = read.map_err(|source| OpenError::Certificates { file, source })?;
        options = certificates
            .into_iter()
            .fold(options, ClientOptions::with_root_certificate);
    }
    Ok(options)
}

fn retries() -> RetryConfig {
    RetryConfig {
        max_retries: 20,
        retry_timeout: PATIENCE,
        ..RetryConfig::default()
    }
}
