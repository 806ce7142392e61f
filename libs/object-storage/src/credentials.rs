//! Credentials in the variables of a store's own tools: from a mounted Secret, or from the process's environment.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

/// Maximum length of a value: a service account's key file has 2.4 kB.
const LONGEST: u64 = 64 << 10;

/// Names and values, such as `AWS_ACCESS_KEY_ID`. [`fmt::Debug`] shows names only.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Credentials(BTreeMap<String, String>);

#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    #[error("reading the credentials of an object store in {path}: {source}; does the Secret exist?")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("the credentials of an object store in {path} are longer than {LONGEST} bytes")]
    Long { path: PathBuf },
    #[error(
        "the Secret in credentialsSecretRef has no key for {url}; name its keys as the variables of the store's tools, which \
begin with {prefix}"
    )]
    NoKeys { url: String, prefix: &'static str },
}

impl Credentials {
    /// From this process: the variables that the cluster gives a pod with a service account of the cloud, or a user's
    /// shell.
    pub fn from_env() -> Self {
        Self(std::env::vars().filter(|(name, _)| is_variable(name)).collect())
    }

    /// From a mounted Secret, one file for each key. The environment is then ignored: an identity of the node must not
    /// replace the one that was named.
    pub fn mounted(folder: &Path) -> Result<Self, CredentialsError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            |source| CredentialsError::Read { path, source }
        };
        let mut variables = BTreeMap::new();
        for entry in fs::read_dir(folder).map_err(failed(folder))? {
            let path = entry.map_err(failed(folder))?.path();
            // Beside the keys are the folders through which the kubelet changes all keys at once.
            let Some(name) = path
                .file_name()
                .and_then(|name| name.to_str())
                .filter(|name| is_variable(name))
            else {
                continue;
            };
            if fs::metadata(&path).map_err(failed(&path))?.len() > LONGEST {
                return Err(CredentialsError::Long { path });
            }
            let value = fs::read_to_string(&path).map_err(failed(&path))?;
            variables.insert(name.to_owned(), value.trim_end_matches(['\r', '\n']).to_owned());
        }
        Ok(Self(variables))
    }

    /// The credentials of a bucket: from the mounted Secret or, without a Secret, from this process.
    pub fn of_bucket(url: &str, secret: Option<&Path>) -> Result<Self, CredentialsError> {
        let Some(folder) = secret else {
            return Ok(Self::from_env());
        };
        let credentials = Self::mounted(folder)?;
        // Without keys, the client would ask the machine for an identity for minutes.
        let prefix = variables_of(url);
        let has_keys = credentials.of(prefix).next().is_some();
        has_keys.then_some(credentials).ok_or_else(|| CredentialsError::NoKeys {
            url: url.to_owned(),
            prefix,
        })
    }

    /// The credentials of one cloud: keys of its builder in `object_store`, and values.
    pub(crate) fn of(&self, cloud: &str) -> impl Iterator<Item = (String, &str)> {
        let own = self.0.iter().filter(move |(name, _)| name.starts_with(cloud));
        own.map(|(name, value)| (name.to_ascii_lowercase(), value.as_str()))
    }
}

impl<const N: usize> From<[(&str, &str); N]> for Credentials {
    fn from(variables: [(&str, &str); N]) -> Self {
        Self(
            variables
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into(),
        )
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.debug_set().entries(self.0.keys()).finish()
    }
}

/// The prefix of the variables of a store's own tools.
fn variables_of(url: &str) -> &'static str {
    match url.split_once("://") {
        Some(("gs", _)) => "GOOGLE_",
        Some(("az", _)) => "AZURE_",
        _ => "AWS_",
    }
}

fn is_variable(name: &str) -> bool {
    ["AWS_", "GOOGLE_", "AZURE_"]
        .iter()
        .any(|cloud| name.starts_with(cloud))
}
