//! The client's side of the records API: HTTP over one connection that the API server forwards into a pod.

use crate::error::{Asking, Error};
use bytes::Bytes;
use futures::FutureExt;
use grpo_records::look::Refusal;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::Pod;
use kube::api::Api;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};

/// The longest answer that is taken: a page is far shorter.
const LONGEST_ANSWER: usize = 128 << 20;
/// Patience with one answer. A slow disk is waited for, a dead node is not.
const PATIENCE: Duration = Duration::from_secs(60);
/// A broken connection is explained within this time, or not at all.
const REASON_WITHIN: Duration = Duration::from_secs(1);

/// An open HTTP connection to a pod of a run.
pub struct PodConnection {
    pod: String,
    sender: SendRequest<Empty<Bytes>>,
}

impl PodConnection {
    /// Through the API server's port-forward.
    pub async fn of_pod(pods: &Api<Pod>, namespace: &str, pod: &str, port: u16) -> Result<Self, Error> {
        let asking = Asking {
            verb: "create",
            resource: "pods/portforward",
            namespace: Some(namespace),
            name: pod,
        };
        let no_stream = || connection_error(pod, "the API server forwarded no port".to_owned());
        let mut forwarded = pods
            .portforward(pod, &[port])
            .await
            .map_err(|error| asking.failed(error))?;
        let stream = forwarded.take_stream(port).ok_or_else(no_stream)?;
        let broken = forwarded.take_error(port).ok_or_else(no_stream)?;
        let mut connection = Self::over(pod, stream).await?;
        let mut broken = std::pin::pin!(broken.fuse());
        let refused = |why: String| {
            let advice = "a driver of an older version does not serve its records: copy the store and give --from DIR";
            Err(connection_error(pod, format!("{why}; {advice}")))
        };
        let error = tokio::select! {
            there = connection.healthy() => match there {
                Ok(()) => return Ok(connection),
                Err(error) => error,
            },
            Some(why) = &mut broken => return refused(why),
        };
        // The connection may end before the reason arrives, which says more.
        match tokio::time::timeout(REASON_WITHIN, broken).await {
            Ok(Some(why)) => refused(why),
            _ => Err(error),
        }
    }

    /// Over any connection.
    pub async fn over(pod: &str, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> Result<Self, Error> {
        let (sender, connection) = handshake(TokioIo::new(stream))
            .await
            .map_err(|error| connection_error(pod, error.to_string()))?;
        tokio::spawn(connection);
        Ok(Self {
            pod: pod.to_owned(),
            sender,
        })
    }

    async fn healthy(&mut self) -> Result<(), Error> {
        self.fetch("/healthz".to_owned()).await.map(|_| ())
    }

    /// One question; `wanted` becomes the query.
    pub async fn ask<T: DeserializeOwned>(&mut self, route: &str, wanted: &impl Serialize) -> Result<T, Error> {
        let query = serde_urlencoded::to_string(wanted).map_err(|error| self.error(error.to_string()))?;
        let (status, body) = self.fetch(format!("{route}?{query}")).await?;
        if status == StatusCode::OK {
            return serde_json::from_slice(&body).map_err(|error| {
                self.error(format!("its answer about {route} cannot be read ({error}): is its driver of another version than this plugin?"))
            });
        }
        match serde_json::from_slice::<Refusal>(&body) {
            Ok(refusal) => Err(refusal.into()),
            Err(_) => Err(self.error(format!("it answered {status} about {route}"))),
        }
    }

    async fn fetch(&mut self, path: String) -> Result<(StatusCode, Bytes), Error> {
        let pod = self.pod.clone();
        let fetched = async {
            let request = Request::get(path)
                .header("host", "records")
                .body(Empty::new())
                .map_err(|error| error.to_string())?;
            // The connection has to have noticed that the answer before was its last word.
            self.sender.ready().await.map_err(|error| error.to_string())?;
            let answer = self
                .sender
                .send_request(request)
                .await
                .map_err(|error| error.to_string())?;
            let status = answer.status();
            let body = Limited::new(answer.into_body(), LONGEST_ANSWER).collect().await;
            Ok((status, body.map_err(|error| error.to_string())?.to_bytes()))
        };
        match tokio::time::timeout(PATIENCE, fetched).await {
            Ok(answer) => answer.map_err(|why: String| connection_error(&pod, why)),
            Err(_) => Err(connection_error(
                &pod,
                format!("no answer within {} s", PATIENCE.as_secs()),
            )),
        }
    }

    fn error(&self, why: String) -> Error {
        connection_error(&self.pod, why)
    }
}

fn connection_error(pod: &str, why: String) -> Error {
    Error::PodConnection {
        pod: pod.to_owned(),
        why,
    }
}
