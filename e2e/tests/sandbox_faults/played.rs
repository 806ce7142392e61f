//! A simulated node: pods run as soon as they are created, and a server at their addresses answers as sandboxd does.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU8, Ordering};

use futures::TryStreamExt;
use grpo_sandbox_protocol::SANDBOXD_PORT;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::support::Result;

/// Images with this prefix cannot be pulled.
pub const MISSING: &str = "missing/";
/// The kubelet refuses the first pod of an image with this prefix.
pub const REJECTED: &str = "rejected/";
/// For commands in pods of this image, the network is cut.
pub const CUT: &str = "cut";

const ADDRESSES: u8 = 32;
/// The second byte of the pods' addresses: none of those that control planes beside this test may have.
const SECOND_BYTE: u8 = 48;

pub struct Node(Vec<JoinHandle<()>>);

impl Node {
    pub async fn start(pods: Api<Pod>) -> Result<Self> {
        let mut tasks = Vec::new();
        for nth in 1..=ADDRESSES {
            let listener = TcpListener::bind((Ipv4Addr::new(127, SECOND_BYTE, 0, nth), SANDBOXD_PORT)).await?;
            tasks.push(tokio::spawn(sandboxd(listener)));
        }
        tasks.push(tokio::spawn(kubelet(pods)));
        Ok(Self(tasks))
    }

    pub fn stop(self) {
        self.0.iter().for_each(JoinHandle::abort);
    }
}

/// Accepts every lease, and closes the connection of commands.
async fn sandboxd(listener: TcpListener) {
    while let Ok((mut stream, _)) = listener.accept().await {
        tokio::spawn(async move {
            let mut head = Vec::new();
            let mut part = [0; 4096];
            while !head.windows(4).any(|end| end == b"\r\n\r\n") {
                match stream.read(&mut part).await {
                    Ok(0) | Err(_) => return,
                    Ok(length) => head.extend_from_slice(&part[..length]),
                }
            }
            if head.starts_with(b"POST /exec") {
                return;
            }
            let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok";
            let _ = stream.write_all(answer).await;
            let _ = stream.shutdown().await;
            // Read the rest of a body; closing earlier would discard the answer.
            while stream.read(&mut part).await.is_ok_and(|length| length > 0) {}
        });
    }
}

/// Gives every pod a node and a status.
async fn kubelet(pods: Api<Pod>) {
    let events = watcher::watcher(pods.clone(), watcher::Config::default()).default_backoff();
    let mut events = std::pin::pin!(events);
    let (next, mut rejected) = (AtomicU8::new(0), std::collections::BTreeSet::new());
    loop {
        match events.try_next().await {
            Ok(Some(Event::Apply(pod) | Event::InitApply(pod))) => {
                let is_new = pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_none());
                let image = pod.spec.as_ref().and_then(|spec| spec.containers[0].image.clone());
                let image = image.unwrap_or_default();
                let is_rejected = image.starts_with(REJECTED) && rejected.insert(image.clone());
                if is_new {
                    let nth = 1 + next.fetch_add(1, Ordering::Relaxed) % ADDRESSES;
                    tokio::spawn(run(pods.clone(), pod.name_any(), image, nth, is_rejected));
                }
            }
            Ok(Some(_)) => {}
            Ok(None) => return,
            // The API server is down.
            Err(_) => {}
        }
    }
}

async fn run(pods: Api<Pod>, name: String, image: String, nth: u8, is_rejected: bool) -> Option<()> {
    let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": {"kind": "Node", "name": "node"}});
    let bound: kube::Result<Value> = pods
        .create_subresource("binding", &name, &PostParams::default(), &binding)
        .await;
    bound.ok()?;
    let address = format!("127.{SECOND_BYTE}.0.{nth}");
    let container = |state: Value| json!([{"name": "sandbox", "image": image, "imageID": "", "ready": false, "restartCount": 0, "state": state}]);
    let status = if is_rejected {
        json!({"phase": "Failed", "reason": "OutOfcpu", "message": "Pod was rejected: Node didn't have enough resource: cpu"})
    } else if image.starts_with(MISSING) {
        let message = format!("Back-off pulling image \"{image}\": ErrImagePull: not found");
        let waiting = json!({"waiting": {"reason": "ImagePullBackOff", "message": message}});
        json!({"phase": "Pending", "containerStatuses": container(waiting)})
    } else {
        let running = json!({"running": {"startedAt": "2026-11-21T10:00:00Z"}});
        json!({"phase": "Running", "podIP": address, "podIPs": [{"ip": address}], "containerStatuses": container(running)})
    };
    let patch = Patch::Merge(json!({"status": status}));
    pods.patch_status(&name, &PatchParams::default(), &patch)
        .await
        .ok()
        .map(drop)
}
