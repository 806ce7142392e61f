//! Another engine agent, perhaps in another cluster: it gets the orders and pulls the versions itself.

use std::time::Duration;

use axum::body::Bytes;
use grpo_engine_protocol::{AgentState, AgentStatus, ChatRequest, ErrorBody, TEXT_PATH, TextRequest};
use tokio::time::{Instant, sleep};

use super::wire::{Answered, STATE_DEADLINE, Server, misbehaved, successful};
use super::{Engine, EngineFault, Page, Serving, Weights, chat};

/// Interval between two checks of an agent that works on an order.
const LOOK: Duration = Duration::from_millis(500);

#[derive(Clone, Debug)]
pub struct Remote(pub Server);

impl Remote {
    async fn status(&self) -> Result<AgentStatus, EngineFault> {
        self.0.ask("/agent/v1/status").await
    }
}

impl Engine for Remote {
    fn reads_folders(&self) -> bool {
        false
    }

    async fn serving(&self) -> Result<Serving, EngineFault> {
        let status = self.status().await?;
        match status.serving {
            Some(version) => Ok(Serving {
                version,
                sha256: status.loaded_sha256,
            }),
            None => Err(EngineFault::Refused {
                url: self.0.url.to_string(),
                message: status
                    .message
                    .unwrap_or_else(|| "its engine serves nothing yet".to_owned()),
            }),
        }
    }

    async fn load(&self, weights: Weights<'_>, deadline: Duration) -> Result<Serving, EngineFault> {
        let until = Instant::now() + deadline;
        let url = self.0.at("/agent/v1/weights");
        let call = self
            .0
            .client
            .put(url.clone())
            .timeout(STATE_DEADLINE)
            .json(weights.order);
        successful(self.0.fetch(call, &url).await?, &url)?;
        let version = &weights.order.version;
        loop {
            let status = self.status().await?;
            if status.serving.as_ref() == Some(version) {
                return Ok(Serving {
                    version: version.clone(),
                    sha256: status.loaded_sha256,
                });
            }
            let failed = status.state == AgentState::Failed && status.wanted.as_ref() == Some(version);
            if failed || Instant::now() >= until {
                return Err(EngineFault::Refused {
                    url: url.to_string(),
                    message: status
                        .message
                        .unwrap_or_else(|| format!("{version} does not serve in time")),
                });
            }
            sleep(LOOK).await;
        }
    }

    fn cannot_sleep(&self) -> Option<&'static str> {
        Some(
            "it is behind another engine agent, whose devices are not the trainer's; a colocated pool has engines of its own",
        )
    }

    async fn complete(&self, body: Bytes, version: Option<&str>) -> Result<Answered, ErrorBody> {
        self.0.pass_on("/v1/completions", body, version).await
    }

    async fn chat(&self, request: ChatRequest) -> Result<Answered, ErrorBody> {
        chat::pass_on(&self.0, &request).await
    }

    async fn text(&self, request: TextRequest) -> Result<Answered, ErrorBody> {
        let body = serde_json::to_vec(&request).map_err(|error| misbehaved(error.to_string()))?;
        self.0.pass_on(TEXT_PATH, body.into(), None).await
    }

    async fn page(&self, page: Page) -> Result<Answered, EngineFault> {
        let path = match page {
            Page::Models => return self.0.page(page).await,
            Page::Health => "/readyz",
            // Those of its engine. Its own, at /metrics, have the names of this agent's, and would hide them.
            Page::Metrics => "/engine/metrics",
        };
        let url = self.0.at(path);
        let call = self.0.client.get(url.clone()).timeout(STATE_DEADLINE);
        self.0.fetch(call, &url).await
    }
}
