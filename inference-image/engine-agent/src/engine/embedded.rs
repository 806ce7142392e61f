//! The embedded engine, over its admin API on loopback.

use std::time::Duration;

use axum::body::Bytes;
use grpo_engine_protocol::{ChatRequest, EngineState, ErrorBody, LoadRequest, LoadResponse};
use serde_json::json;

use super::wire::{Answered, STATE_DEADLINE, Server, ask};
use super::{Engine, EngineFault, Page, Serving, SleepState, Weights, chat};

#[derive(Clone, Debug)]
pub struct Embedded(pub Server);

impl Embedded {
    async fn state(&self) -> Result<EngineState, EngineFault> {
        self.0.ask("/admin/state").await
    }
}

impl Engine for Embedded {
    async fn serving(&self) -> Result<Serving, EngineFault> {
        let state = self.state().await?;
        Ok(Serving {
            version: state.version,
            sha256: Some(state.sha256),
        })
    }

    async fn load(&self, weights: Weights<'_>, deadline: Duration) -> Result<Serving, EngineFault> {
        let request = LoadRequest {
            dir: weights.dir.display().to_string(),
            version: weights.order.version.clone(),
            sha256: Some(weights.sha256.to_owned()),
        };
        let url = self.0.at("/admin/load");
        let call = self.0.client.post(url.clone()).timeout(deadline).json(&request);
        let loaded: LoadResponse = ask(call, &url).await?;
        Ok(Serving {
            version: loaded.version,
            sha256: Some(loaded.sha256),
        })
    }

    async fn sleep_state(&self) -> Result<SleepState, EngineFault> {
        Ok(match self.state().await?.asleep {
            true => SleepState::Asleep,
            false => SleepState::Awake,
        })
    }

    async fn sleep(&self, deadline: Duration) -> Result<(), EngineFault> {
        self.0.tell("/admin/sleep", &json!({}), deadline).await
    }

    async fn wake(&self, deadline: Duration) -> Result<(), EngineFault> {
        self.0.tell("/admin/wake", &json!({}), deadline).await
    }

    async fn complete(&self, body: Bytes, version: Option<&str>) -> Result<Answered, ErrorBody> {
        self.0.pass_on("/v1/completions", body, version).await
    }

    async fn chat(&self, request: ChatRequest) -> Result<Answered, ErrorBody> {
        chat::pass_on(&self.0, &request).await
    }

    async fn page(&self, page: Page) -> Result<Answered, EngineFault> {
        match page {
            // All our processes use this path.
            Page::Health => {
                let url = self.0.at("/healthz");
                self.0
                    .fetch(self.0.client.get(url.clone()).timeout(STATE_DEADLINE), &url)
                    .await
            }
            _ => self.0.page(page).await,
        }
    }
}
