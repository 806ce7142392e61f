//! A pool's gateway, called through the API server's proxy: nothing of the cluster's network has to be reachable from
//! here.

use super::{Result, SOON, Scene};
use kube::Client;
use serde_json::Value;

pub struct Gateway {
    client: Client,
    namespace: String,
    pool: String,
}

impl Gateway {
    pub fn of(scene: &Scene, pool: &str) -> Self {
        Self {
            client: scene.client.clone(),
            namespace: scene.namespace.clone(),
            pool: pool.to_owned(),
        }
    }

    /// Status and body of the answer.
    pub async fn post(&self, path: &str, body: &Value) -> Result<(u16, Value)> {
        self.ask("POST", path, serde_json::to_vec(body)?).await
    }

    pub async fn ask(&self, method: &str, path: &str, body: Vec<u8>) -> Result<(u16, Value)> {
        let (namespace, pool) = (&self.namespace, &self.pool);
        let uri = format!("/api/v1/namespaces/{namespace}/services/{pool}-gateway:8080/proxy/v1/{path}");
        let request = http::Request::builder()
            .method(method)
            .uri(uri)
            .header("content-type", "application/json")
            .body(kube::client::Body::from(body))?;
        let answer = tokio::time::timeout(SOON, self.client.send(request)).await??;
        let status = answer.status().as_u16();
        let text = answer.into_body().collect_bytes().await?;
        let text = String::from_utf8_lossy(&text).into_owned();
        Ok((status, serde_json::from_str(&text).unwrap_or(Value::String(text))))
    }
}
