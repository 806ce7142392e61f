//! A bucket of a real server (versitygw) for runs' stores: its objects are files of this machine too.

use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use super::process::{free_port, until};

const BUCKET: &str = "runs";
const KEYS: [(&str, &str); 2] = [("ACCESS_KEY", "test-key"), ("SECRET_KEY", "test-secret")];

/// The server ends when this is dropped.
pub struct Bucket {
    server: Child,
    endpoint: String,
    folder: tempfile::TempDir,
}

impl Bucket {
    pub fn start() -> Self {
        let cache = std::env::var("GRPO_CACHE").unwrap();
        let program = Path::new(&cache).join("bin/versitygw");
        assert!(
            program.exists(),
            "e2e/setup/kubernetes.sh control-plane builds {program:?}"
        );
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join(BUCKET)).unwrap();
        let at = format!("127.0.0.1:{}", free_port());
        let server = Command::new(program)
            .args(["--quiet", "--port", &at, "posix"])
            .arg(folder.path())
            .envs(KEYS.map(|(name, value)| (format!("ROOT_{name}"), value)))
            .spawn()
            .unwrap();
        let bucket = Self {
            server,
            endpoint: format!("http://{at}"),
            folder,
        };
        until(|| TcpStream::connect(&at).is_ok());
        bucket
    }

    /// Its `store` field in a spec.
    pub fn store(&self) -> serde_json::Value {
        serde_json::json!({"objectStore": {"url": format!("s3://{BUCKET}/experiments"), "endpoint": self.endpoint}})
    }

    /// Environment variables of its clients.
    pub fn environment() -> Vec<(String, String)> {
        let [(_, key), (_, secret)] = KEYS;
        let keys = [("AWS_ACCESS_KEY_ID", key), ("AWS_SECRET_ACCESS_KEY", secret)];
        keys.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec()
    }

    /// Folder with the objects of a run's store.
    pub fn folder_of(&self, run: &str) -> PathBuf {
        self.folder.path().join(BUCKET).join("experiments").join(run)
    }
}

impl Drop for Bucket {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}
