//! A pool's gateway, called with a token of the pool's client account through the API server's port-forward: it needs
//! no route into the cluster's network, and no NetworkPolicy blocks it. Other pods are reached in the same way.

use super::{Result, SOON, Scene};
use grpo_contracts::access::{Service, account};
use grpo_testing::cluster::token::service_token;
use kube::ResourceExt;
use kube::api::ListParams;
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderValue};
use serde_json::Value;
use tokio::io::copy_bidirectional;
use tokio::net::TcpListener;

pub struct Gateway {
    url: String,
    http: reqwest::Client,
}

impl Gateway {
    /// The gateway of a pool, once it serves.
    pub async fn of(scene: &Scene, pool: &str) -> Result<Self> {
        let token = client_token(scene, pool).await?;
        let http = reqwest::Client::builder()
            .no_proxy()
            .timeout(SOON)
            .default_headers(bearer(&token)?)
            .build()?;
        let url = door(scene, pool).await?;
        Ok(Self { url, http })
    }

    /// Returns status and body of the answer.
    pub async fn post(&self, path: &str, body: &Value) -> Result<(u16, Value)> {
        let answer = self
            .http
            .post(format!("{}/v1/{path}", self.url))
            .json(body)
            .send()
            .await?;
        let status = answer.status().as_u16();
        let text = answer.text().await?;
        Ok((status, serde_json::from_str(&text).unwrap_or(Value::String(text))))
    }
}

/// A token for clients of a pool.
pub async fn client_token(scene: &Scene, pool: &str) -> Result<String> {
    let account = account::sandbox_client(pool);
    Ok(service_token(&scene.client, &scene.namespace, &account, Service::Gateway).await?)
}

pub fn bearer(token: &str) -> Result<HeaderMap> {
    let mut headers = HeaderMap::new();
    headers.insert(AUTHORIZATION, HeaderValue::from_str(&format!("Bearer {token}"))?);
    Ok(headers)
}

/// A forwarded port on loopback to the gateway of a pool.
pub async fn door(scene: &Scene, pool: &str) -> Result<String> {
    let gateways = ListParams::default().labels(&format!("grpo.dev/role=gateway,grpo.dev/sandbox-pool={pool}"));
    let listed = scene.pods().list(&gateways).await?.items;
    let gateway = listed.first().ok_or("the pool has no gateway")?.name_any();
    forwarded(scene, gateway, 8080).await
}

/// A forwarded port on loopback to a pod, through the API server, which works on every kind of cluster.
pub async fn forwarded(scene: &Scene, pod: String, port: u16) -> Result<String> {
    let pods = scene.pods();
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move {
        while let Ok((mut outside, _)) = listener.accept().await {
            let (pods, pod) = (pods.clone(), pod.clone());
            tokio::spawn(async move {
                let mut forwarded = pods.portforward(&pod, &[port]).await.ok()?;
                let mut inside = forwarded.take_stream(port)?;
                copy_bidirectional(&mut outside, &mut inside).await.ok()
            });
        }
    });
    Ok(format!("http://{address}"))
}
