//! Volumes of a bench: creates a claim and streams files into it through a short-lived pod. A ConfigMap, as tests use
//! it for their files, holds 1 MiB; a dataset may be larger.

use super::{ClusterError, FIELD_MANAGER, api, store, wait};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::Client;
use kube::api::{Api, AttachParams, DeleteParams, Patch, PatchParams, PostParams};
use serde_json::json;
use std::path::Path;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// For one file.
const WRITE_LIMIT: Duration = Duration::from_secs(300);
const STREAM_BYTES: usize = 64 << 10;
/// Reads as many bytes as the file has: not every server passes on the end of the standard input. The file appears
/// whole.
const WRITE: &str = r#"cd /volume && head -c "$1" > "$0.new" && chmod a+r "$0.new" && mv "$0.new" "$0""#;
/// Unpacks an archive into a folder. The processes of runs are other users, and write beside the folder.
const UNPACK: &str =
    r#"cd /volume && mkdir -p "$0" && head -c "$1" | tar -x --no-same-owner -C "$0" && chmod -R a+rwX "${0%%/*}""#;

/// Whether the claim exists.
pub async fn exists(client: &Client, namespace: &str, claim: &str) -> Result<bool, ClusterError> {
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), namespace);
    let found = claims
        .get_opt(claim)
        .await
        .map_err(api("reading", named(namespace, claim)))?;
    Ok(found.is_some())
}

/// Creates the claim if it does not exist. `size`: as Kubernetes writes quantities.
pub async fn create(client: &Client, namespace: &str, claim: &str, size: &str) -> Result<(), ClusterError> {
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), namespace);
    let wanted = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": claim},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}},
    });
    claims
        .patch(
            claim,
            &PatchParams::apply(FIELD_MANAGER).force(),
            &Patch::Apply(&wanted),
        )
        .await
        .map_err(api("applying", named(namespace, claim)))?;
    Ok(())
}

/// Writes files into the root of the volume, and replaces those of the same names.
pub async fn write(client: &Client, namespace: &str, claim: &str, files: &[(&str, &[u8])]) -> Result<(), ClusterError> {
    stream_all(client, namespace, claim, WRITE, files).await
}

/// Writes the contents of the folder `from` into the folder `to` of the volume.
pub async fn write_folder(
    client: &Client,
    namespace: &str,
    claim: &str,
    from: &Path,
    to: &str,
) -> Result<(), ClusterError> {
    let mut tar = tokio::process::Command::new("tar");
    let packed = tar
        .args(["--format=posix", "-cf", "-", "-C"])
        .arg(from)
        .arg(".")
        .output()
        .await;
    let about = |what: String| failed(claim, format!("packing {}: {what}", from.display()));
    let packed = packed.map_err(|error| about(error.to_string()))?;
    if !packed.status.success() {
        return Err(about(String::from_utf8_lossy(&packed.stderr).trim().to_owned()));
    }
    stream_all(client, namespace, claim, UNPACK, &[(to, &packed.stdout)]).await
}

/// Gives each of `files` to `script`, with its name as `$0` and its length as `$1`.
async fn stream_all(
    client: &Client,
    namespace: &str,
    claim: &str,
    script: &str,
    files: &[(&str, &[u8])],
) -> Result<(), ClusterError> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let name = format!("{claim}-writer");
    let writer = writer(&name, claim)?;
    store::remove(&pods, &name).await?;
    pods.create(&PostParams::default(), &writer)
        .await
        .map_err(api("creating", format!("Pod {namespace}/{name}")))?;
    let written = stream(&pods, &name, claim, script, files).await;
    let removed = store::remove(&pods, &name).await;
    written.and(removed)
}

/// Deletes the claim, and waits until it is gone.
pub async fn delete(client: &Client, namespace: &str, claim: &str) -> Result<(), ClusterError> {
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), namespace);
    match claims.delete(claim, &DeleteParams::default()).await {
        Ok(_) => {}
        Err(kube::Error::Api(status)) if status.code == 404 => return Ok(()),
        Err(error) => return Err(api("deleting", named(namespace, claim))(error)),
    }
    let what = format!("{} to be gone", named(namespace, claim));
    let gone = |there: &wait::Objects<PersistentVolumeClaim>| there.is_empty().then_some(());
    Ok(wait::until(claims, wait::named(claim), store::PATIENCE, &what, gone).await?)
}

fn named(namespace: &str, claim: &str) -> String {
    format!("PersistentVolumeClaim {namespace}/{claim}")
}

fn writer(name: &str, claim: &str) -> Result<Pod, ClusterError> {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "labels": {"app.kubernetes.io/managed-by": FIELD_MANAGER}},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "activeDeadlineSeconds": 600,
            "automountServiceAccountToken": false,
            "containers": [{
                "name": "writer", "image": store::IMAGE, "imagePullPolicy": "IfNotPresent",
                "command": ["sleep", "600"],
                "securityContext": {"runAsUser": 0},
                "volumeMounts": [{"name": "volume", "mountPath": "/volume"}],
            }],
            "volumes": [{"name": "volume", "persistentVolumeClaim": {"claimName": claim}}],
        },
    });
    serde_json::from_value(pod).map_err(|error| failed(claim, error.to_string()))
}

async fn stream(
    pods: &Api<Pod>,
    name: &str,
    claim: &str,
    script: &str,
    files: &[(&str, &[u8])],
) -> Result<(), ClusterError> {
    store::running(pods, name).await?;
    for (file, bytes) in files {
        let written = tokio::time::timeout(WRITE_LIMIT, write_one(pods, name, script, file, bytes)).await;
        let about = |what: String| failed(claim, format!("{file}: {what}"));
        match written {
            Ok(written) => written.map_err(about)?,
            Err(_) => return Err(about(format!("not written within {WRITE_LIMIT:?}"))),
        }
    }
    Ok(())
}

/// Writes one file. The error says what failed.
async fn write_one(pods: &Api<Pod>, name: &str, script: &str, file: &str, bytes: &[u8]) -> Result<(), String> {
    let length = bytes.len().to_string();
    let command = ["sh", "-c", script, file, length.as_str()];
    let attach = AttachParams::default()
        .stdin(true)
        .stdout(false)
        .stderr(true)
        .max_stdin_buf_size(STREAM_BYTES);
    let mut there = pods
        .exec(name, command, &attach)
        .await
        .map_err(|error| format!("starting its writer in Pod {name}: {error}"))?;
    let (Some(mut into), Some(mut errors)) = (there.stdin(), there.stderr()) else {
        return Err("no streams".to_owned());
    };
    let mut said = String::new();
    // The input stays open until the writer has ended: closing it may end the connection.
    let (written, _) = tokio::join!(
        async {
            into.write_all(bytes).await?;
            into.flush().await
        },
        errors.read_to_string(&mut said)
    );
    written.map_err(|error| format!("streaming: {error}"))?;
    let ended = match there.take_status() {
        Some(status) => status.await,
        None => None,
    };
    match ended.and_then(|status| status.status).as_deref() {
        Some("Success") => Ok(()),
        _ => Err(format!("its writer failed: {}", said.trim())),
    }
}

fn failed(claim: &str, what: String) -> ClusterError {
    ClusterError::Volume {
        claim: claim.to_owned(),
        what,
    }
}
