//! The command-line flags of a service that checks tokens.

use std::path::PathBuf;

use clap::Args;
use grpo_contracts::access::Service;

use crate::account::AllowedAccount;
use crate::http::Guard;
use crate::keys::{KeySource, KeyStore, KeysError, from_file};
use crate::verify::Verifier;

/// Who may call, and whose signature is believed. There is no flag that turns the check off.
#[derive(Args, Clone, Debug, Default)]
pub struct AuthFlags {
    /// The issuer and its public keys, for a process outside a pod. Default: the API server's.
    #[arg(long, env = "GRPO_ISSUER_FILE")]
    pub issuer_file: Option<PathBuf>,
    /// A service account that may call, `namespace/name` or `namespace/*-suffix`. Repeated.
    #[arg(long = "allow")]
    pub allow: Vec<AllowedAccount>,
}

impl AuthFlags {
    /// The source of the keys.
    pub fn source(&self) -> Result<KeySource, KeysError> {
        match &self.issuer_file {
            Some(file) => Ok(KeySource::File(file.clone())),
            None => KeySource::cluster(),
        }
    }

    /// The guard of a service, and the task that keeps its keys fresh. The caller must spawn the task.
    pub fn guard(
        &self,
        service: Service,
        also: impl IntoIterator<Item = AllowedAccount>,
    ) -> Result<(Guard, impl Future<Output = ()> + Send + 'static), KeysError> {
        let (source, keys) = (self.source()?, KeyStore::default());
        if let KeySource::File(path) = &source {
            keys.set(from_file(path)?);
        }
        let allowed = self.allow.iter().cloned().chain(also).collect();
        let guard = Guard::new(Verifier::new(service, allowed, keys.clone()));
        Ok((guard, keys.keep_fresh(source)))
    }
}
