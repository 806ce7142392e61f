//! A source of weights that can be told to misbehave.

use super::model_of;
use axum::Router;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures::StreamExt;
use grpo_engine::model::Model;
use grpo_engine_agent::pull::sha256;
use grpo_engine_protocol::WeightsOrder;
use grpo_records::weights::{WeightsDelta, WeightsFile, WeightsManifest};
use grpo_weights_delta::Encoder;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use tokio::net::TcpListener;

/// Serves weights as a driver does, with ranges.
#[derive(Clone, Default)]
pub struct Source {
    url: String,
    content: Arc<Mutex<Content>>,
}

#[derive(Default)]
struct Content {
    files: BTreeMap<String, Vec<u8>>,
    break_after: BTreeMap<String, usize>,
    fetched: Vec<(String, Option<String>)>,
}

impl Source {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/weights", listener.local_addr().unwrap());
        let source = Self {
            url,
            content: Arc::default(),
        };
        let router = Router::new()
            .route("/weights/{*path}", get(serve_file))
            .with_state(source.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        source
    }

    /// Publishes a random model; returns the order for it and the checksum of its tensors.
    pub fn publish(&self, version: &str, seed: u64) -> (WeightsOrder, String) {
        let mut tensors = String::new();
        let order = self.publish_with(version, seed, |manifest| tensors = manifest.tensors_sha256.clone());
        (order, tensors)
    }

    pub fn publish_with(&self, version: &str, seed: u64, change: impl FnOnce(&mut WeightsManifest)) -> WeightsOrder {
        let dir = model_of(seed);
        let files =
            ["config.json", "model.safetensors"].map(|name| (name, std::fs::read(dir.path().join(name)).unwrap()));
        let tensors = Model::load(dir.path(), version, None).unwrap().sha256;
        self.publish_files(version, files.into(), &tensors, change)
    }

    /// Publishes an adapter with dummy content: the tests only need to see that it is an adapter.
    pub fn publish_adapter(&self, version: &str) -> WeightsOrder {
        self.publish_adapter_with(version, |_| {})
    }

    pub fn publish_adapter_with(&self, version: &str, change: impl FnOnce(&mut WeightsManifest)) -> WeightsOrder {
        let files = vec![
            ("adapter_config.json", b"{}".to_vec()),
            ("adapter_model.safetensors", version.as_bytes().to_vec()),
        ];
        self.publish_files(version, files, &sha256(version.as_bytes()), change)
    }

    /// Publishes these files as a version with the tensors' checksum `tensors` in its manifest.
    pub fn publish_files(
        &self,
        version: &str,
        files: Vec<(&str, Vec<u8>)>,
        tensors: &str,
        change: impl FnOnce(&mut WeightsManifest),
    ) -> WeightsOrder {
        let mut content = self.content.lock().unwrap();
        let files = files.into_iter().map(|(name, bytes)| {
            let file = WeightsFile {
                name: name.to_owned(),
                bytes: bytes.len() as u64,
                sha256: sha256(&bytes),
            };
            content.files.insert(format!("{version}/{name}"), bytes);
            file
        });
        let mut manifest = WeightsManifest {
            version: version.to_owned(),
            lineage: "a".to_owned(),
            step: 1,
            parent: None,
            files: files.collect(),
            deltas: Vec::new(),
            chat_templates: Vec::new(),
            tensors_sha256: tensors.to_owned(),
            canary: None,
        };
        change(&mut manifest);
        let bytes = serde_json::to_vec(&manifest).unwrap();
        let manifest_sha256 = sha256(&bytes);
        content.files.insert(format!("{version}/manifest.json"), bytes);
        WeightsOrder {
            version: version.to_owned(),
            source: format!("{}/{version}", self.url),
            manifest_sha256,
            relay: None,
        }
    }

    /// Publishes a version whose tensors differ from those of `base` in a few values, with a delta; returns the order
    /// and the checksum of its tensors.
    pub fn publish_step(&self, version: &str, base: &str) -> (WeightsOrder, String) {
        let of = |name: &str| self.file(&format!("{base}/{name}"));
        let (config, mut model) = (of("config.json"), of("model.safetensors"));
        let values = 8 + u64::from_le_bytes(model[..8].try_into().unwrap()) as usize;
        for low in model[values..].iter_mut().step_by(400) {
            *low ^= 3;
        }
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("config.json"), &config).unwrap();
        std::fs::write(dir.path().join("model.safetensors"), &model).unwrap();
        let tensors = Model::load(dir.path(), version, None).unwrap().sha256;
        let files = vec![("config.json", config), ("model.safetensors", model)];
        let order = self.publish_files(version, files, &tensors, |_| {});
        (self.add_delta(&order, base, "model.safetensors"), tensors)
    }

    /// Publishes two versions with a model and a large file, a third of which is new in the second one, with its delta;
    /// returns their orders and that file.
    pub fn publish_large_steps(&self, bytes: usize) -> (WeightsOrder, WeightsOrder, Vec<u8>) {
        let old: Vec<u8> = (0..bytes as u64)
            .map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8)
            .collect();
        let mut new = old.clone();
        new[..bytes / 3].reverse();
        let publish = |version: &str, seed: u64, large: Vec<u8>| {
            let dir = model_of(seed);
            let read = |name: &str| std::fs::read(dir.path().join(name)).unwrap();
            let tensors = Model::load(dir.path(), version, None).unwrap().sha256;
            let files = vec![
                ("config.json", read("config.json")),
                ("model.safetensors", read("model.safetensors")),
                ("large.bin", large),
            ];
            self.publish_files(version, files, &tensors, |_| {})
        };
        let first = publish("a-v1", 2, old);
        let next = publish("a-v2", 3, new.clone());
        (first, self.add_delta(&next, "a-v1", "large.bin"), new)
    }

    /// Adds the delta of a file from that of `base` to a version; returns its order.
    pub fn add_delta(&self, order: &WeightsOrder, base: &str, name: &str) -> WeightsOrder {
        let (old, new) = (
            self.file(&format!("{base}/{name}")),
            self.file(&format!("{}/{name}", order.version)),
        );
        let (mut encoder, mut delta) = (Encoder::new().unwrap(), Vec::new());
        encoder.begin(&mut delta);
        encoder.add(&old, &new, &mut delta).unwrap();
        encoder.end(&mut delta);
        let file = WeightsFile {
            name: WeightsDelta::name_of(name),
            bytes: delta.len() as u64,
            sha256: sha256(&delta),
        };
        let path = format!("{}/{}", order.version, file.name);
        self.content.lock().unwrap().files.insert(path, delta);
        self.change_manifest(order, |manifest| {
            manifest.deltas.push(WeightsDelta {
                of: name.to_owned(),
                base: base.to_owned(),
                base_sha256: sha256(&old),
                file,
            });
        })
    }

    /// Publishes a version again with another manifest; returns its order.
    pub fn change_manifest(&self, order: &WeightsOrder, change: impl FnOnce(&mut WeightsManifest)) -> WeightsOrder {
        let path = format!("{}/manifest.json", order.version);
        let mut manifest: WeightsManifest = serde_json::from_slice(&self.file(&path)).unwrap();
        change(&mut manifest);
        let bytes = serde_json::to_vec(&manifest).unwrap();
        let manifest_sha256 = sha256(&bytes);
        self.content.lock().unwrap().files.insert(path, bytes);
        WeightsOrder {
            manifest_sha256,
            ..order.clone()
        }
    }

    /// The bytes of a file.
    pub fn file(&self, path: &str) -> Vec<u8> {
        self.content.lock().unwrap().files[path].clone()
    }

    pub fn remove(&self, path: &str) {
        self.content.lock().unwrap().files.remove(path).unwrap();
    }

    /// Serves the folder of a version that a trainer published, with its manifest.
    pub fn serve_version(&self, folder: &std::path::Path) -> WeightsOrder {
        let manifest = std::fs::read(folder.join("manifest.json")).unwrap();
        let manifest_sha256 = sha256(&manifest);
        let version = serde_json::from_slice::<WeightsManifest>(&manifest).unwrap().version;
        for file in std::fs::read_dir(folder).unwrap() {
            let file = file.unwrap();
            let name = format!("{version}/{}", file.file_name().to_string_lossy());
            let bytes = std::fs::read(file.path()).unwrap();
            self.content.lock().unwrap().files.insert(name, bytes);
        }
        WeightsOrder {
            source: format!("{}/{version}", self.url),
            version,
            manifest_sha256,
            relay: None,
        }
    }

    /// Inverts one byte of a file; a second call restores it.
    pub fn corrupt(&self, path: &str) {
        let mut content = self.content.lock().unwrap();
        let bytes = content.files.get_mut(path).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
    }

    /// Has the files of this version only.
    pub fn keep_only(&self, version: &str) {
        let folder = format!("{version}/");
        self.content
            .lock()
            .unwrap()
            .files
            .retain(|path, _| path.starts_with(&folder));
    }

    /// Cuts the next transfer of a file short.
    pub fn break_after(&self, path: &str, bytes: usize) {
        self.content.lock().unwrap().break_after.insert(path.to_owned(), bytes);
    }

    /// Bytes of a file that were requested.
    pub fn sent(&self, path: &str) -> u64 {
        let content = self.content.lock().unwrap();
        let whole = content.files[path].len() as u64;
        let of = |range: &Option<String>| match range.as_deref().and_then(|range| range.strip_prefix("bytes=")) {
            None => whole,
            Some(range) => {
                let (from, last) = range.split_once('-').unwrap();
                last.parse::<u64>().map_or(whole, |last| last + 1) - from.parse::<u64>().unwrap()
            }
        };
        let fetched = content.fetched.iter().filter(|(name, _)| name == path);
        fetched.map(|(_, range)| of(range)).sum()
    }

    /// Requested paths, with ranges.
    pub fn fetched(&self) -> Vec<(String, Option<String>)> {
        self.content.lock().unwrap().fetched.clone()
    }
}

async fn serve_file(State(source): State<Source>, Path(path): Path<String>, headers: HeaderMap) -> Response {
    let mut content = source.content.lock().unwrap();
    let range = headers
        .get(header::RANGE)
        .map(|range| range.to_str().unwrap().to_owned());
    content.fetched.push((path.clone(), range.clone()));
    let Some(bytes) = content.files.get(&path) else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let total = bytes.len();
    let (from, end) = range.as_ref().map_or((0, total), |range| {
        let (from, last) = range.strip_prefix("bytes=").unwrap().split_once('-').unwrap();
        let last = last.parse::<usize>().map_or(total, |last| last + 1);
        (from.parse::<usize>().unwrap(), last)
    });
    let rest = bytes[from..end].to_vec();
    let body = match content.break_after.remove(&path) {
        None => Body::from(rest),
        Some(cut) => {
            let start = futures::stream::iter([Ok(rest[..cut.min(rest.len())].to_vec())]);
            // Sent data is flushed while the stream is pending.
            let end = futures::stream::once(async {
                tokio::task::yield_now().await;
                Err(std::io::Error::other("the line is cut"))
            });
            Body::from_stream(start.chain(end))
        }
    };
    match (from, end) {
        (0, all) if all == total => body.into_response(),
        _ => {
            let range = format!("bytes {from}-{}/{total}", end - 1);
            (StatusCode::PARTIAL_CONTENT, [(header::CONTENT_RANGE, range)], body).into_response()
        }
    }
}
