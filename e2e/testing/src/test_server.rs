//! Servers that tests start: one of S3 ([`crate::s3`]), emulators of two clouds, and MLflow's ([`crate::mlflow`]).
//!
//! [`TestServer`] starts a program on a free port and waits until it listens. Dropping the value ends the program.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::net::TcpStream;

use crate::cluster::cache;
use crate::control_plane::{Part, PartError};

/// Azurite must load a thousand files first, MLflow make its database.
const STARTS_WITHIN: Duration = Duration::from_secs(60);
/// Outside of the ports of outgoing connections, so that none takes a server's port while the server is down.
const PORTS: std::ops::Range<u16> = 20_000..30_000;
/// Another server may have taken the port.
const TRIES: u32 = 5;
const LOOK: Duration = Duration::from_millis(50);

#[derive(Debug, thiserror::Error)]
pub enum TestServerError {
    #[error("{path} is not there; `{installer}` makes it")]
    Program { path: PathBuf, installer: &'static str },
    #[error("preparing the folder of a server: {0}")]
    Folder(#[from] std::io::Error),
    #[error(transparent)]
    Part(#[from] PartError),
    #[error("signing a request to the server of buckets: {0}")]
    Signing(#[from] object_store::Error),
    #[error("making a bucket at {at}: the server answers {answer:?}")]
    Bucket { at: String, answer: String },
}

/// The program, and how to start it.
pub(crate) struct Program<'a> {
    pub name: &'a str,
    /// Below the cache.
    pub path: &'a str,
    /// The script that installs it there.
    pub installer: &'static str,
    /// For its log.
    pub folder: &'a Path,
    pub environment: Vec<(String, String)>,
}

/// A server on a port of its own.
pub(crate) struct TestServer {
    part: Part,
    /// Address and port.
    pub at: String,
}

impl TestServer {
    /// `arguments` builds the arguments from a port.
    pub async fn start(
        program: &Program<'_>,
        address: &str,
        arguments: impl Fn(u16) -> Vec<String>,
    ) -> Result<Self, TestServerError> {
        let mut tries = 0;
        loop {
            tries += 1;
            let port = rand::random_range(PORTS);
            if tries < TRIES && std::net::TcpListener::bind((address, port)).is_err() {
                continue;
            }
            match Self::start_at(program, format!("{address}:{port}"), arguments(port)).await {
                Err(TestServerError::Part(PartError::Ended { .. })) if tries < TRIES => {}
                started => return started,
            }
        }
    }

    async fn start_at(program: &Program<'_>, at: String, arguments: Vec<String>) -> Result<Self, TestServerError> {
        let path = cache().join(program.path);
        if !path.exists() {
            let installer = program.installer;
            return Err(TestServerError::Program { path, installer });
        }
        let environment = program.environment.clone();
        let mut part = Part::start_with(program.name, &path, arguments, environment, program.folder)?;
        let started = tokio::time::Instant::now();
        loop {
            // If ours did not get the port, it has ended, and another program's server answers.
            let listens = TcpStream::connect(&at).await.is_ok();
            part.runs()?;
            if listens {
                return Ok(Self { part, at });
            }
            if started.elapsed() > STARTS_WITHIN {
                return Err(part.useless(format!("it does not listen on {at}")).into());
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Kills it without notice.
    pub async fn kill(&mut self) -> Result<(), TestServerError> {
        Ok(self.part.kill().await?)
    }

    /// Starts it again at the same address.
    pub fn again(&mut self) -> Result<(), TestServerError> {
        Ok(self.part.again()?)
    }
}
