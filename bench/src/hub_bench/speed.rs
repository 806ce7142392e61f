//! Figure 2: shards over loopback, measured in turn: our client with its digests and syncs, the hub's own client, which
//! checks no digest, and curl piped into sha256sum.

use super::clients::{Client, Job, Programs, REPOSITORY, Ran};
use super::{HUB_CLIENT, HubBenchError};
use crate::sandbox_bench::median;
use grpo_bench_report::Row;
use grpo_hub::Repository;
use grpo_hub::played::{Content, PlayedHub};
use rand::{RngCore as _, SeedableRng as _, rngs::SmallRng};
use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

const SHARDS: usize = 4;
const BUFFER: usize = 4 << 20;

/// Size and number of rounds.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    /// The size of all shards together.
    pub bytes: u64,
    pub rounds: usize,
}

/// The rows of the figure.
pub async fn measure(programs: &Programs, work: &Path, scale: Scale) -> Result<Vec<Row>, HubBenchError> {
    let played = PlayedHub::start()
        .await
        .map_err(HubBenchError::io("starting", "the simulated hub"))?;
    let source = work.join("shards");
    let commit = played.push(&Repository::model(REPOSITORY), "main", shards(&source, scale.bytes)?);
    let url = |shard| format!("{}/{REPOSITORY}/resolve/{commit}/{}", played.endpoint, name(shard));
    let urls: Vec<String> = (0..SHARDS).map(url).collect();
    let clients = [
        Client::Ours,
        Client::HubClient { workers: 8 },
        Client::HubClient { workers: 1 },
        Client::Curl { workers: 2 },
    ];
    let mut runs: BTreeMap<Client, Vec<Ran>> = BTreeMap::new();
    for round in 0..scale.rounds {
        // Each client is first equally often.
        for at in 0..clients.len() {
            let client = clients[(at + round) % clients.len()];
            let folder = work.join("download");
            std::fs::create_dir_all(&folder).map_err(HubBenchError::io("making", &folder))?;
            let job = Job {
                programs,
                endpoint: &played.endpoint,
                token: None,
                folder: &folder,
            };
            let ran = client.run(&job, &urls).await?;
            if !ran.succeeded {
                return Err(HubBenchError::Wrong(format!("{} failed", client.name())));
            }
            eprintln!(
                "  {}: {:.1} s, {} MiB",
                client.name(),
                ran.seconds,
                ran.peak_bytes >> 20
            );
            std::fs::remove_dir_all(&folder).map_err(HubBenchError::io("removing", &folder))?;
            // Unwritten data of one client must not slow down the next one.
            let _ = Command::new("sync").status();
            runs.entry(client).or_default().push(ran);
        }
    }
    std::fs::remove_dir_all(&source).map_err(HubBenchError::io("removing", &source))?;
    let rate = |client: &Client| {
        let seconds = runs[client].iter().map(|ran| ran.seconds).collect();
        scale.bytes as f64 / median(seconds).unwrap_or(f64::INFINITY) / 1e6
    };
    let ours = rate(&Client::Ours);
    let mut rows = Vec::new();
    let mut fastest: f64 = 0.0;
    for client in &clients[1..] {
        fastest = fastest.max(rate(client));
        let words = format!("2: MB/s beside {}", client.name());
        rows.push(Row::significant(words, ours, "MB/s", None).beside(HUB_CLIENT, rate(client)));
    }
    let words = format!(
        "2: {} GB in {SHARDS} shards, speed as a multiple of the fastest peer's",
        scale.bytes / 1_000_000_000
    );
    rows.insert(0, Row::new(words, Some(ours / fastest), "x", Some(">= 1.0")));
    let peak = runs[&Client::Ours].iter().map(|ran| ran.peak_bytes >> 20).max();
    rows.push(Row::new(
        "2: most memory of ours",
        peak.map(|mib| mib as f64),
        "MiB",
        Some("<= 128"),
    ));
    Ok(rows)
}

fn name(shard: usize) -> String {
    format!("model-{:05}-of-{SHARDS:05}.safetensors", shard + 1)
}

/// Random bytes on disk, and the small files of a model.
fn shards(folder: &Path, bytes: u64) -> Result<BTreeMap<String, Content>, HubBenchError> {
    std::fs::create_dir_all(folder).map_err(HubBenchError::io("making", folder))?;
    let mut files = BTreeMap::from([("config.json".to_owned(), Content::Small("{}".into()))]);
    let mut random = SmallRng::seed_from_u64(1);
    for shard in 0..SHARDS {
        let (path, size) = (folder.join(name(shard)), bytes / SHARDS as u64);
        let sha256 = written(&path, size, &mut random).map_err(HubBenchError::io("writing", &path))?;
        files.insert(name(shard), Content::OnDisk { path, size, sha256 });
    }
    Ok(files)
}

fn written(path: &PathBuf, size: u64, random: &mut SmallRng) -> std::io::Result<String> {
    use sha2::Digest as _;
    let (mut file, mut hash, mut buffer) = (std::fs::File::create(path)?, sha2::Sha256::new(), vec![0; BUFFER]);
    let mut left = size;
    while left > 0 {
        let part = &mut buffer[..left.min(BUFFER as u64) as usize];
        random.fill_bytes(part);
        hash.update(&*part);
        file.write_all(part)?;
        left -= part.len() as u64;
    }
    Ok(hex::encode(hash.finalize()))
}
