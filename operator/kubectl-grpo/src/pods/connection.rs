//! The client of the servers in a run's pods: HTTP over one connection that the API server forwards into a pod.

use crate::error::{Asking, Error};
use bytes::Bytes;
use futures::FutureExt;
use grpo_records::look::Refusal;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::Pod;
use kube::api::Api;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};

/// The longest accepted answer: a page is far shorter.
const LONGEST_ANSWER: usize = 128 << 20;
/// Deadline of one answer: long enough for a slow disk, not for a dead node.
const PATIENCE: Duration = Duration::from_secs(60);
/// Deadline for the reason of a broken connection.
const REASON_WITHIN: Duration = Duration::from_secs(1);

/// An open HTTP connection to a pod of a run.
pub struct PodConnection {
    pod: String,
    sender: SendRequest<Full<Bytes>>,
}

impl PodConnection {
    /// Connects through the API server's port-forward.
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
        // The connection may end before its reason arrives, which says more.
        match tokio::time::timeout(REASON_WITHIN, broken).await {
            Ok(Some(why)) => refused(why),
            _ => Err(error),
        }
    }

    /// Uses any connection.
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

    /// One request; `wanted` becomes the query.
    pub async fn ask<T: DeserializeOwned>(&mut self, route: &str, wanted: &impl Serialize) -> Result<T, Error> {
        let path = self.path(route, wanted)?;
        let (status, body) = self.fetch(path).await?;
        if status == StatusCode::OK {
            return serde_json::from_slice(&body).map_err(|error| {
                self.error(format!("its answer about {route} cannot be read ({error}): is its driver of another version than this plugin?"))
            });
        }
        Err(self.refusal(route, status, &body))
    }

    /// One request with an answer that is too long for memory; `wanted` becomes the query.
    pub async fn stream(&mut self, route: &str, wanted: &impl Serialize) -> Result<Pieces, Error> {
        let request = Request::get(self.path(route, wanted)?).body(Full::default());
        self.pieces(route, request).await
    }

    /// One request with an object as its body, and an answer that is too long for memory.
    pub async fn post(&mut self, route: &str, question: &impl Serialize) -> Result<Pieces, Error> {
        let body = serde_json::to_vec(question).map_err(|error| self.error(error.to_string()))?;
        let request = Request::post(route).header("content-type", "application/json");
        self.pieces(route, request.body(Full::from(body))).await
    }

    async fn pieces(
        &mut self,
        route: &str,
        request: hyper::http::Result<Request<Full<Bytes>>>,
    ) -> Result<Pieces, Error> {
        let request = request.map_err(|error| self.error(error.to_string()))?;
        let pod = self.pod.clone();
        let answer = patiently(&pod, self.send(request)).await?;
        let status = answer.status();
        if status == StatusCode::OK {
            let body = answer.into_body();
            return Ok(Pieces { pod, body });
        }
        let body = patiently(&pod, whole(answer.into_body())).await?;
        Err(self.refusal(route, status, &body))
    }

    fn path(&self, route: &str, wanted: &impl Serialize) -> Result<String, Error> {
        let query = serde_urlencoded::to_string(wanted).map_err(|error| self.error(error.to_string()))?;
        Ok(format!("{route}?{query}"))
    }

    async fn fetch(&mut self, path: String) -> Result<(StatusCode, Bytes), Error> {
        let request = Request::get(path).body(Full::default());
        let request = request.map_err(|error| self.error(error.to_string()))?;
        let pod = self.pod.clone();
        let fetched = async {
            let answer = self.send(request).await?;
            let status = answer.status();
            Ok((status, whole(answer.into_body()).await?))
        };
        patiently(&pod, fetched).await
    }

    async fn send(&mut self, mut request: Request<Full<Bytes>>) -> Result<Response<Incoming>, String> {
        let host = hyper::header::HeaderValue::from_static("records");
        request.headers_mut().insert(hyper::header::HOST, host);
        // Wait until the connection knows whether the previous answer was its last.
        self.sender.ready().await.map_err(|error| error.to_string())?;
        let sent = self.sender.send_request(request).await;
        sent.map_err(|error| error.to_string())
    }

    fn refusal(&self, route: &str, status: StatusCode, body: &[u8]) -> Error {
        match serde_json::from_slice::<Refusal>(body) {
            Ok(refusal) => refusal.into(),
            Err(_) if status == StatusCode::NOT_FOUND => Error::OlderDriver {
                pod: self.pod.clone(),
                route: route.to_owned(),
            },
            Err(_) => self.error(format!("it answered {status} about {route}")),
        }
    }

    fn error(&self, why: String) -> Error {
        connection_error(&self.pod, why)
    }
}

/// An answer, piece by piece.
pub struct Pieces {
    pod: String,
    body: Incoming,
}

impl Pieces {
    /// `None` after the last piece.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        loop {
            let frame = async { self.body.frame().await.transpose().map_err(|error| error.to_string()) };
            match patiently(&self.pod, frame).await? {
                None => return Ok(None),
                Some(frame) => {
                    if let Ok(bytes) = frame.into_data() {
                        return Ok(Some(bytes));
                    }
                }
            }
        }
    }

    /// The error for an answer that cannot be read.
    pub fn error(&self, why: String) -> Error {
        connection_error(&self.pod, why)
    }
}

async fn whole(body: Incoming) -> Result<Bytes, String> {
    let body = Limited::new(body, LONGEST_ANSWER).collect().await;
    body.map(|body| body.to_bytes()).map_err(|error| error.to_string())
}

async fn patiently<T>(pod: &str, answer: impl Future<Output = Result<T, String>>) -> Result<T, Error> {
    match tokio::time::timeout(PATIENCE, answer).await {
        Ok(answer) => answer.map_err(|why| connection_error(pod, why)),
        Err(_) => Err(connection_error(
            pod,
            format!("no answer within {} s", PATIENCE.as_secs()),
        )),
    }
}

fn connection_error(pod: &str, why: String) -> Error {
    Error::PodConnection {
        pod: pod.to_owned(),
        why,
    }
}
