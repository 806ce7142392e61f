//! A run whose engine samples with another model than its trainer computes with: a frozen sampler. The engine is the
//! service for clients of another pool, which serves the demo's model. The run's own model is a copy of it whose norms
//! divide by a far larger number.
//!
//! All logits of the copy are near 0, so each of its 1,024 tokens has a logprob of about -6.9. The demo's model is sure
//! of most tokens that it samples, with logprobs near 0. So the gap is larger than 1 in every step.

use crate::support::{Result, SOON, Scene, small_run};
use grpo_contracts::access::Service as Called;
use grpo_contracts::volumes::{claim_volume, image_volume, mount};
use grpo_crds::InferencePool;
use grpo_testing::cluster::manifest::RunManifest;
use grpo_testing::cluster::token::service_token;
use grpo_testing::cluster::wait;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, Secret, ServiceAccount};
use serde_json::json;

/// Pool, account and Secret of the engine.
const SERVER: &str = "sampler";
pub const MODEL: &str = "grpo.dev/demo/model:1";
/// The claim with the copy, and the pod that makes it.
const COPY: &str = "flat-model";
const MAKE_COPY: &str = r#"set -e
cp -rL /from/. /to/
sed -i 's/"rms_norm_eps": [^,]*/"rms_norm_eps": 1000000.0/' /to/config.json
grep -q '"rms_norm_eps": 1000000.0' /to/config.json
chmod -R a+rX /to"#;

/// Makes the copy and the engine; returns the run.
pub async fn run(scene: &Scene, name: &str) -> Result<RunManifest> {
    copy(scene).await?;
    server(scene).await?;
    // Asked before the server is there, the agent asks again after this period.
    let engine = json!({"external": {
        "url": format!("http://{SERVER}-clients:8000/v1"), "apiKeySecretRef": {"name": SERVER, "key": "token"},
        "weights": "Frozen", "probe": {"period": "5s"},
    }});
    Ok(small_run(name)?
        .with("/model", json!({"persistentVolumeClaim": {"claimName": COPY}}))
        .with("/inference", json!({"pool": {"engine": engine}}))
        .with("/algorithm/allowFrozenSampler", json!(true))
        .with("/trainer", json!({"nodes": 1}))
        .with("/rollout/iterations", json!(50)))
}

async fn server(scene: &Scene) -> Result<()> {
    let account = json!({"metadata": {"name": SERVER}});
    scene.make::<ServiceAccount>(account).await?;
    let model = json!({"image": {"reference": MODEL}});
    let spec = json!({"model": model, "engine": {"embedded": {}}, "clients": [{"serviceAccount": SERVER}]});
    scene
        .make::<InferencePool>(json!({"metadata": {"name": SERVER}, "spec": spec}))
        .await?;
    let token = service_token(&scene.client, &scene.namespace, SERVER, Called::EngineAgent).await?;
    let secret = json!({"metadata": {"name": SERVER}, "stringData": {"token": token}});
    scene.make::<Secret>(secret).await?;
    Ok(())
}

async fn copy(scene: &Scene) -> Result<()> {
    let claim = json!({"metadata": {"name": COPY}, "spec": {
        "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "50Mi"}}}});
    scene.make::<PersistentVolumeClaim>(claim).await?;
    let pod = json!({
        "metadata": {"name": COPY},
        "spec": {
            "restartPolicy": "Never",
            "containers": [{
                "name": "copy", "image": "grpo.dev/driver:dev", "imagePullPolicy": "IfNotPresent",
                "command": ["sh", "-c", MAKE_COPY], "securityContext": {"runAsUser": 0},
                "volumeMounts": [mount("from", "/from", true), mount("to", "/to", false)],
            }],
            "volumes": [image_volume("from", MODEL, "IfNotPresent"), claim_volume("to", COPY, false)],
        },
    });
    scene.make::<Pod>(pod).await?;
    let ended = |pods: &wait::Objects<Pod>| match pods.get(COPY)?.status.as_ref()?.phase.as_deref()? {
        "Succeeded" => Some(Ok(())),
        "Failed" => Some(Err(format!("pod {COPY} failed: kubectl logs {COPY} says why"))),
        _ => None,
    };
    let what = "a changed copy of the demo's model";
    Ok(wait::until(scene.pods(), wait::named(COPY), SOON, what, ended).await??)
}
