//! Sessions: interactive programs in a sandbox, such as a debugger.

use super::{ANSWER_BYTES, Call, EXEC_MARGIN, Sandbox, SandboxError};
use crate::retry::Budget;
use grpo_sandbox_protocol::{CloseRequest, SessionInput, SessionReply, SessionRequest};
use serde::Serialize;
use std::time::Duration;

/// The time limit to begin a session, which may have to set up an environment first.
const BEGIN_WITHIN: Duration = Duration::from_secs(90);

impl Sandbox {
    /// Begins a session. A repeated id gets the same session.
    pub async fn begin_session(&self, request: &SessionRequest) -> Result<(), SandboxError> {
        let call = self.session_call(format!("beginning session {}", request.id), BEGIN_WITHIN);
        self.post("/sessions", &call, request).await.map(|_| ())
    }

    /// Types, and waits for the reply. A repeated id gets the first reply.
    pub async fn session_input(&self, input: &SessionInput) -> Result<SessionReply, SandboxError> {
        let time = Duration::from_millis(input.timeout_millis) + EXEC_MARGIN;
        let call = self.session_call(format!("typing into session {}", input.session), time);
        let answer = self.post("/sessions/input", &call, input).await?;
        super::parsed(&call, &answer)
    }

    /// Ends a session and the processes that it started.
    pub async fn close_session(&self, id: &str) -> Result<(), SandboxError> {
        let call = self.session_call(format!("ending session {id}"), EXEC_MARGIN);
        let request = CloseRequest { id: id.to_owned() };
        self.post("/sessions/close", &call, &request).await.map(|_| ())
    }

    async fn post(&self, below: &str, call: &Call<'_>, body: &impl Serialize) -> Result<bytes::Bytes, SandboxError> {
        let url = self.url(below);
        self.gateway
            .send(call, || self.gateway.http.post(&url).json(body))
            .await
    }

    fn session_call(&self, doing: String, time: Duration) -> Call<'_> {
        Call {
            doing: format!("{doing} under lease {}", self.lease.id),
            lease: &self.lease.id,
            object: "",
            budget: Budget {
                request: time,
                total: self.gateway.patience + time,
            },
            answer: ANSWER_BYTES,
        }
    }
}
