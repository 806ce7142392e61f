//! The embedded engine, over its admin API on loopback.

use super::{Engine, EngineFault, Serving};
use grpo_engine_protocol::{EngineState, ErrorBody, LoadRequest, LoadResponse};
use reqwest::{Client, RequestBuilder, Url};
use serde::de::DeserializeOwned;
use std::path::Path;
use std::time::Duration;

/// A state that takes longer than this to say is no state.
const STATE_DEADLINE: Duration = Duration::from_secs(5);

#[derive(Clone, Debug)]
pub struct Embedded {
    client: Client,
    state: Url,
    load: Url,
}

impl Embedded {
    pub fn new(client: Client, engine: &Url) -> Self {
        Self {
            client,
            state: at(engine, "/admin/state"),
            load: at(engine, "/admin/load"),
        }
    }
}

impl Engine for Embedded {
    async fn serving(&self) -> Result<Serving, EngineFault> {
        let state: EngineState = ask(self.client.get(self.state.clone()).timeout(STATE_DEADLINE), &self.state).await?;
        Ok(Serving {
            version: state.version,
            sha256: state.sha256,
        })
    }

    async fn load(&self, dir: &Path, version: &str, sha256: &str, deadline: Duration) -> Result<Serving, EngineFault> {
        let request = LoadRequest {
            dir: dir.display().to_string(),
            version: version.to_owned(),
            sha256: Some(sha256.to_owned()),
        };
        let call = self.client.post(self.load.clone()).timeout(deadline).json(&request);
        let loaded: LoadResponse = ask(call, &self.load).await?;
        Ok(Serving {
            version: loaded.version,
            sha256: loaded.sha256,
        })
    }
}

/// A path on a server.
pub fn at(server: &Url, path: &str) -> Url {
    let mut url = server.clone();
    url.set_path(path);
    url
}

async fn ask<T: DeserializeOwned>(call: RequestBuilder, url: &Url) -> Result<T, EngineFault> {
    let url = url.to_string();
    let unreachable = |error: reqwest::Error| EngineFault::Unreachable {
        url: url.clone(),
        cause: causes(&error),
    };
    let answer = call.send().await.map_err(unreachable)?;
    let status = answer.status();
    let body = answer.bytes().await.map_err(unreachable)?;
    if !status.is_success() {
        let message = match serde_json::from_slice::<ErrorBody>(&body) {
            Ok(error) => error.message,
            Err(_) => format!("HTTP {status}"),
        };
        return Err(EngineFault::Refused { url, message });
    }
    serde_json::from_slice(&body).map_err(|error| EngineFault::Misunderstood {
        url,
        cause: error.to_string(),
    })
}

/// An error with what caused it: reqwest's own text stops at "error sending request".
pub fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
