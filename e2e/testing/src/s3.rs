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
        let program = cache().join("bin/versitygw");
        if !program.exists() {
            return Err(S3Error::Program { path: program });
        }
        let buckets = folder.join("buckets");
        std::fs::create_dir_all(buckets.join(BUCKET))?;
        let free = std::net::TcpListener::bind((address, 0))?.local_addr()?;
        let arguments = [
            "--quiet",
            "--port",
            &free.to_string(),
            "posix",
            &buckets.display().to_string(),
        ];
        let arguments = arguments.map(str::to_owned).to_vec();
        let keys = [("ROOT_ACCESS_KEY", ACCESS_KEY), ("ROOT_SECRET_KEY", SECRET_KEY)];
        let keys = keys.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
        let mut part = Part::start_with("s3", &program, arguments, keys, folder)?;
        let started = tokio::time::Instant::now();
        while TcpStream::connect(free).await.is_err() {
            part.runs()?;
            if started.elapsed() > STARTS_WITHIN {
                return Err(part.useless(format!("it does not listen on {free}")).into());
            }
            tokio::time::sleep(LOOK).await;
        }
        Ok(Self {
            part,
            endpoint: format!("http://{free}"),
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
