//! A real server of S3 (versitygw over a folder), for tests of stores in buckets.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::net::TcpStream;

use crate::cluster::cache;
use crate::control_plane::{Part, PartError};

pub const ACCESS_KEY: &str = "test-key";
pub const SECRET_KEY: &str = "test-secret";
/// The bucket that every server has.
pub const BUCKET: &str = "runs";
const STARTS_WITHIN: Duration = Duration::from_secs(30);
/// No connection begins at one of these, so that none takes a server's port while it is away.
const PORTS: std::ops::Range<u16> = 20_000..30_000;
/// Another server may have the port.
const TRIES: u32 = 5;
const LOOK: Duration = Duration::from_millis(50);

/// A server that ends with the value.
pub struct S3Server {
    part: Part,
    pub endpoint: String,
    folder: PathBuf,
}

#[derive(Debug, thiserror::Error)]
pub enum S3Error {
    #[error("{path} is not there; `e2e/setup/kubernetes.sh control-plane` builds it")]
    Program { path: PathBuf },
    #[error("preparing the folder of the S3 server: {0}")]
    Folder(#[from] std::io::Error),
    #[error(transparent)]
    Part(#[from] PartError),
}

impl S3Server {
    /// Starts one at a free port of this address, with its objects as files below `folder`.
    pub async fn start(address: &str, folder: &Path) -> Result<Self, S3Error> {
        let mut tries = 0;
        loop {
            tries += 1;
            let port = rand::random_range(PORTS);
            if tries < TRIES && std::net::TcpListener::bind((address, port)).is_err() {
                continue;
            }
            match Self::start_at(address, port, folder).await {
                Err(S3Error::Part(PartError::Ended { .. })) if tries < TRIES => {}
                started => return started,
            }
        }
    }

    async fn start_at(address: &str, port: u16, folder: &Path) -> Result<Self, S3Error> {
        let program = cache().join("bin/versitygw");
        if !program.exists() {
            return Err(S3Error::Program { path: program });
        }
        let buckets = folder.join("buckets");
        std::fs::create_dir_all(buckets.join(BUCKET))?;
        let at = format!("{address}:{port}");
        let arguments = ["--quiet", "--port", &at, "posix", &buckets.display().to_string()];
        let arguments = arguments.map(str::to_owned).to_vec();
        let keys = [("ROOT_ACCESS_KEY", ACCESS_KEY), ("ROOT_SECRET_KEY", SECRET_KEY)];
        let keys = keys.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
        let mut part = Part::start_with("s3", &program, arguments, keys, folder)?;
        let started = tokio::time::Instant::now();
        loop {
            // What answers at a port that ours did not get is another's; ours has ended then.
            let listens = TcpStream::connect(&at).await.is_ok();
            part.runs()?;
            if listens {
                break;
            }
            if started.elapsed() > STARTS_WITHIN {
                return Err(part.useless(format!("it does not listen on {at}")).into());
            }
            tokio::time::sleep(LOOK).await;
        }
        Ok(Self {
            part,
            endpoint: format!("http://{at}"),
            folder: buckets,
        })
    }

    /// The bucket's objects as files.
    pub fn objects(&self) -> PathBuf {
        self.folder.join(BUCKET)
    }

    /// Ends it without a word.
    pub async fn kill(&mut self) -> Result<(), S3Error> {
        Ok(self.part.kill().await?)
    }

    /// Starts it again at the same address.
    pub fn again(&mut self) -> Result<(), S3Error> {
        Ok(self.part.again()?)
    }
}
