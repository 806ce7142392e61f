//! The clients, each as a process: arguments, time, memory and downloaded files.

use super::HubBenchError;
use grpo_hub::Repository;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};
use tokio::process::{Child, Command};

/// Interval between readings of a process's memory.
const LOOK: Duration = Duration::from_millis(50);

/// The downloaded repository.
pub const REPOSITORY: &str = "owner/name";

/// Prints the folder of the snapshot. Environment variables name the hub and the cache.
const SNAPSHOT: &str = "import sys; from huggingface_hub import snapshot_download; \
                        print(snapshot_download(sys.argv[1], max_workers=int(sys.argv[2])))";

/// Paths of the programs.
#[derive(Clone, Debug)]
pub struct Programs {
    /// `grpo-engine-agent`.
    pub ours: PathBuf,
    /// A Python with `huggingface_hub` installed.
    pub python: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Client {
    Ours,
    /// The hub's own client with this many concurrent files.
    HubClient {
        workers: usize,
    },
    /// This many concurrent `curl | tee | sha256sum`.
    Curl {
        workers: usize,
    },
}

/// A client's folder and its hub.
pub struct Job<'a> {
    pub programs: &'a Programs,
    pub endpoint: &'a str,
    pub token: Option<&'a str>,
    pub folder: &'a Path,
}

/// How a process ended.
#[derive(Clone, Copy, Debug)]
pub struct Ran {
    pub succeeded: bool,
    pub seconds: f64,
    /// Peak memory.
    pub peak_bytes: u64,
}

impl Client {
    pub fn name(self) -> String {
        match self {
            Self::Ours => "grpo-engine-agent fetch-model".to_owned(),
            Self::HubClient { workers } => format!("huggingface_hub, {workers} workers"),
            Self::Curl { workers } => format!("{workers} x curl | tee | sha256sum"),
        }
    }

    /// `urls` are the files' URLs, for curl.
    pub fn start(self, job: &Job<'_>, urls: &[String]) -> Result<Child, HubBenchError> {
        let mut command = match self {
            Self::Ours => {
                let mut command = Command::new(&job.programs.ours);
                command.args(["fetch-model", "--repo", REPOSITORY]);
                command
                    .arg("--cache")
                    .arg(job.folder)
                    .arg("--link")
                    .arg(job.folder.join("current"));
                command
            }
            Self::HubClient { workers } => {
                let mut command = Command::new(&job.programs.python);
                command.args(["-c", SNAPSHOT, REPOSITORY, &workers.to_string()]);
                command
                    .env("HF_HUB_CACHE", job.folder)
                    .env("HF_HOME", job.folder.join("home"));
                command
                    .env("HF_HUB_DISABLE_PROGRESS_BARS", "1")
                    .env("HF_HUB_DISABLE_TELEMETRY", "1");
                command
            }
            Self::Curl { workers } => {
                let mut command = Command::new("bash");
                let one = "curl -sfL \"$1\" | tee \"$(basename \"$1\")\" | sha256sum > \"$(basename \"$1\").sha256\"";
                let each =
                    format!("set -o pipefail; printf '%s\\n' \"$@\" | xargs -P {workers} -I URL bash -c '{one}' _ URL");
                command.args(["-c", &each, "_"]).args(urls).current_dir(job.folder);
                command
            }
        };
        command.env("HF_ENDPOINT", job.endpoint).env_remove("HF_TOKEN");
        if let Some(token) = job.token {
            command.env("HF_TOKEN", token);
        }
        for proxy in ["http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"] {
            command.env_remove(proxy);
        }
        command.stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
        command
            .spawn()
            .map_err(HubBenchError::io("starting", PathBuf::from(self.name())))
    }

    pub async fn run(self, job: &Job<'_>, urls: &[String]) -> Result<Ran, HubBenchError> {
        let began = Instant::now();
        let mut child = self.start(job, urls)?;
        let status = child.id().map(|id| format!("/proc/{id}/status"));
        let mut peak_bytes = 0;
        loop {
            let ended = tokio::time::timeout(LOOK, child.wait()).await;
            if let Ok(ended) = ended {
                let ended = ended.map_err(HubBenchError::io("waiting for", PathBuf::from(self.name())))?;
                return Ok(Ran {
                    succeeded: ended.success(),
                    seconds: began.elapsed().as_secs_f64(),
                    peak_bytes,
                });
            }
            let read = status.as_ref().and_then(|status| std::fs::read_to_string(status).ok());
            peak_bytes = read.and_then(|status| peak(&status)).unwrap_or(0).max(peak_bytes);
        }
    }

    /// The cache's named files, by commit and path. Empty for curl, which has no such cache.
    pub fn named(self, folder: &Path) -> BTreeMap<(String, String), Vec<u8>> {
        let snapshots = folder.join(Repository::model(REPOSITORY).folder()).join("snapshots");
        let mut found = BTreeMap::new();
        for commit in std::fs::read_dir(&snapshots).into_iter().flatten().flatten() {
            let name = commit.file_name().to_string_lossy().into_owned();
            files(&commit.path(), &mut |path, bytes| {
                found.insert((name.clone(), path), bytes);
            });
        }
        found
    }
}

/// Parses the line `VmHWM: 12 kB`.
fn peak(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().trim_end_matches("kB").trim().parse().ok()?;
    Some(kib << 10)
}

fn files(root: &Path, each: &mut impl FnMut(String, Vec<u8>)) {
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if let (Ok(below), Ok(bytes)) = (path.strip_prefix(root), std::fs::read(&path)) {
                each(below.to_string_lossy().into_owned(), bytes);
            }
        }
    }
}
