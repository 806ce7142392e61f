//! Asks a pool's agents for their reports: the version that serves, the result of a probe, failures.
//!
//! Reports go into the pool's status and never create or delete a pod. An agent without an answer by the deadline is
//! left out.

use std::time::Duration;

use futures::{StreamExt, stream};
use grpo_auth::TokenFile;
use grpo_contracts::{RunConfig, access::Service};
use grpo_engine_protocol::AgentStatus;
use grpo_operator_core::{
    inference_pool::observation::Statuses,
    pods::{PodFacts, PodState},
};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::{Request, StatusCode, body::Bytes, header::AUTHORIZATION};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};

/// Deadline of an answer: an agent answers at once, or is unreachable.
const DEADLINE: Duration = Duration::from_secs(2);
const LONGEST_ANSWER: usize = 64 << 10;
const AT_ONE_TIME: usize = 64;

/// The client for agents.
#[derive(Clone, Debug)]
pub struct Agents {
    client: Client<HttpConnector, Empty<Bytes>>,
    token: TokenFile,
}

impl Default for Agents {
    fn default() -> Self {
        Self {
            client: Client::builder(TokioExecutor::new()).build_http(),
            token: TokenFile::mounted(Service::EngineAgent),
        }
    }
}

impl Agents {
    /// Asks the agent of every running replica.
    pub async fn statuses(&self, pods: &[PodFacts]) -> Statuses {
        let mut asked = Vec::new();
        for pod in pods {
            if let (0, false, PodState::Running { .. }, Some(ip)) = (pod.rank, pod.deleting, &pod.state, &pod.ip) {
                asked.push(self.clone().named(pod.name.clone(), ip.clone()));
            }
        }
        let answers: Vec<_> = stream::iter(asked).buffer_unordered(AT_ONE_TIME).collect().await;
        answers.into_iter().flatten().collect()
    }

    async fn named(self, pod: String, ip: String) -> Option<(String, AgentStatus)> {
        Some((pod, self.status(&ip).await?))
    }

    async fn status(&self, ip: &str) -> Option<AgentStatus> {
        let host = if ip.contains(':') {
            format!("[{ip}]")
        } else {
            ip.to_owned()
        };
        let uri = format!("http://{host}:{}/agent/v1/status", RunConfig::AGENT_PORT);
        let answer = async {
            let mut request = Request::get(uri);
            if let Some(token) = self.token.header() {
                request = request.header(AUTHORIZATION, token);
            }
            let answer = self.client.request(request.body(Empty::new()).ok()?).await.ok()?;
            (answer.status() == StatusCode::OK).then_some(())?;
            let body = Limited::new(answer.into_body(), LONGEST_ANSWER).collect().await.ok()?;
            serde_json::from_slice(&body.to_bytes()).ok()
        };
        tokio::time::timeout(DEADLINE, answer).await.ok().flatten()
    }
}
