//! The versions, and the driver's server that has them.

use super::links::SOURCE;
use crate::support::Result;
use grpo_driver::metrics::Metrics;
use grpo_driver::progress::Board;
use grpo_driver::serve;
use grpo_engine_protocol::WeightsOrder;
use grpo_records::store::sha256_hex;
use grpo_records::weights::{WeightsDelta, WeightsFile, WeightsManifest};
use grpo_records::{RunStore, paths};
use grpo_weights_delta::Encoder;
use rand::{Rng, RngCore, SeedableRng, rngs::SmallRng};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::sync::watch;

/// The parameters of Qwen3-0.6B in 16 bits.
pub const BYTES: usize = 2 * 596_049_920;
const ROUNDS: usize = 5;
/// Of 1,000 values of 16 bits, those that a step changes: about as in the steps of `make bench-delta`.
pub const CHANGED: usize = 40;
const NAME: &str = "model.safetensors";

/// How a version comes to the replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Each replica gets all of it from the source.
    Apart,
    /// Chunks are passed on.
    Relayed,
    /// As a delta from the version before.
    Delta,
}

const WAYS: [Way; 3] = [Way::Apart, Way::Relayed, Way::Delta];

/// Values of 16 bits as a model's, and the same ones after a step.
fn contents() -> [Vec<u8>; 2] {
    let mut random = SmallRng::seed_from_u64(1);
    let mut old = vec![0; BYTES];
    random.fill_bytes(&mut old);
    let mut new = old.clone();
    for word in new.chunks_exact_mut(2) {
        // Exponents are of a narrow range; what a step changes is the last place.
        word[1] = 0x3c;
        if random.random_range(0..1000) < CHANGED {
            word[0] ^= 1;
        }
    }
    for word in old.chunks_exact_mut(2) {
        word[1] = 0x3c;
    }
    [old, new]
}

fn delta(old: &[u8], new: &[u8]) -> Result<Vec<u8>> {
    let (mut encoder, mut delta) = (Encoder::new()?, Vec::new());
    encoder.begin(&mut delta);
    encoder.add(old, new, &mut delta)?;
    encoder.end(&mut delta);
    Ok(delta)
}

fn file_of(name: &str, bytes: &[u8]) -> WeightsFile {
    WeightsFile {
        name: name.to_owned(),
        bytes: bytes.len() as u64,
        sha256: sha256_hex(bytes),
    }
}

/// The driver's server of weights, with a version for each round and way; its URL. Two contents alternate: a delta is
/// always from the version before, and a whole version never is what a replica has.
pub async fn source(work: &Path) -> Result<(String, Vec<(Way, String)>)> {
    let store = RunStore::open(work, "store")?;
    let place = |version: &str, name: &str| work.join("store").join(paths::weights_file(version, name));
    let contents = contents();
    let deltas = [delta(&contents[1], &contents[0])?, delta(&contents[0], &contents[1])?];
    let mut kept = Vec::new();
    for (at, (content, delta)) in contents.iter().zip(&deltas).enumerate() {
        let (whole, step) = (work.join(format!("content-{at}")), work.join(format!("delta-{at}")));
        std::fs::write(&whole, content)?;
        std::fs::write(&step, delta)?;
        let names = (file_of(NAME, content), file_of(&WeightsDelta::name_of(NAME), delta));
        kept.push((whole, step, names));
    }
    drop((contents, deltas));
    let (mut versions, mut content) = (Vec::new(), 0);
    for step in 1..=(ROUNDS * WAYS.len()) {
        let way = WAYS[(step - 1) % WAYS.len()];
        let version = format!("a-v{step}");
        let base = &kept[content].2.0;
        let (whole, step_file, (file, delta)) = &kept[1 - content];
        content = 1 - content;
        std::fs::create_dir_all(place(&version, NAME).parent().ok_or("a file without a folder")?)?;
        std::fs::hard_link(whole, place(&version, NAME))?;
        let mut manifest = WeightsManifest {
            version: version.clone(),
            lineage: "a".into(),
            step: step as u32,
            parent: None,
            files: vec![file.clone()],
            deltas: Vec::new(),
            chat_templates: Vec::new(),
            tensors_sha256: file.sha256.clone(),
            canary: None,
        };
        if way == Way::Delta {
            std::fs::hard_link(step_file, place(&version, &delta.name))?;
            manifest.deltas.push(WeightsDelta {
                of: NAME.into(),
                base: format!("a-v{}", step - 1),
                base_sha256: base.sha256.clone(),
                file: delta.clone(),
            });
        }
        std::fs::write(manifest_of(work, &version), serde_json::to_vec(&manifest)?)?;
        versions.push((way, version));
    }
    let listener = tokio::net::TcpListener::bind((SOURCE, 8070)).await?;
    let board = Board::new("uid", 1);
    let router = serve::router(&store, board, Arc::new(Metrics::default()), watch::channel(None).1);
    tokio::spawn(async move { axum::serve(listener, router).await });
    Ok((format!("http://{SOURCE}:8070/weights"), versions))
}

fn manifest_of(work: &Path, version: &str) -> PathBuf {
    work.join("store").join(paths::weights_manifest(version))
}

pub fn order_of(source: &str, work: &Path, version: &str) -> Result<WeightsOrder> {
    Ok(WeightsOrder {
        version: version.to_owned(),
        source: format!("{source}/{version}"),
        manifest_sha256: sha256_hex(&std::fs::read(manifest_of(work, version))?),
        relay: None,
    })
}
