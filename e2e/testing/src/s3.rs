//! A real server of S3 (versitygw over a folder), for tests of stores in buckets.

use std::path::{Path, PathBuf};

use crate::test_server::{Program, TestServer, TestServerError};

pub const ACCESS_KEY: &str = "test-key";
pub const SECRET_KEY: &str = "test-secret";
/// The bucket that every server has.
pub const BUCKET: &str = "runs";

/// A server that ends when the value is dropped.
pub struct S3Server {
    server: TestServer,
    pub endpoint: String,
    folder: PathBuf,
}

impl S3Server {
    /// Starts one on a free port of this address, with its objects as files below `folder`.
    pub async fn start(address: &str, folder: &Path) -> Result<Self, TestServerError> {
        let buckets = folder.join("buckets");
        std::fs::create_dir_all(buckets.join(BUCKET))?;
        let keys = [("ROOT_ACCESS_KEY", ACCESS_KEY), ("ROOT_SECRET_KEY", SECRET_KEY)];
        let program = Program {
            name: "s3",
            path: "bin/versitygw",
            installer: "e2e/setup/kubernetes.sh control-plane",
            folder,
            environment: keys.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec(),
        };
        let arguments = |port| {
            let (at, objects) = (format!("{address}:{port}"), buckets.display().to_string());
            ["--quiet", "--port", &at, "posix", &objects]
                .map(str::to_owned)
                .to_vec()
        };
        let server = TestServer::start(&program, address, arguments).await?;
        Ok(Self {
            endpoint: format!("http://{}", server.at),
            server,
            folder: buckets,
        })
    }

    /// The bucket's objects as files.
    pub fn objects(&self) -> PathBuf {
        self.folder.join(BUCKET)
    }

    /// Kills it without notice.
    pub async fn kill(&mut self) -> Result<(), TestServerError> {
        self.server.kill().await
    }

    /// Starts it again at the same address.
    pub fn again(&mut self) -> Result<(), TestServerError> {
        self.server.again()
    }
}
