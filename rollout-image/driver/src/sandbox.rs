//! The driver's client of the sandbox gateway: leases, and commands and files in sandboxes.
//!
//! The caller chooses the ids, so calls can be repeated: a retry gets the same lease, and a command never runs twice.
//! While the gateway is unavailable, or an image cannot be pulled, calls are repeated with growing pauses until their
//! budget is used up. A held lease is renewed in the background. If it is dropped without a release, it stays until its
//! time to live is over; a restarted driver relies on that.

mod agents;
mod answer;
mod error;
mod images;
mod queue;
mod sessions;

pub use self::agents::RelayOutages;
use self::answer::{ANSWER_BYTES, Refusal, answer_of_output, once};
pub use self::error::{Blame, SandboxError};
use self::images::Images;
use self::queue::{Counted, Queue};
use crate::retry::{Budget, Pauses, Retry};
use bytes::Bytes;
use grpo_auth::TokenFile;
use grpo_sandbox_protocol::{
    DEFAULT_OUTPUT_BYTES, Demand, ErrorBody, ErrorCode, ExecRequest, ExecResult, FaultOrigin as Whose, ImageDemand,
    Lease, LeaseRequest, MAX_FILE_BYTES, PackageIndexState, PoolState, Priority, RenewRequest, Room, SandboxCause,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// How long the gateway holds a lease request before it answers that no lease is available.
const LEASE_WAIT: Duration = Duration::from_secs(60);
const PAUSES: Pauses = Pauses::doubling(Duration::from_millis(200), Duration::from_secs(5));
/// Between two requests for an image that cannot be pulled: the gateway asks the registry, not the driver.
const IMAGE_PAUSES: Pauses = Pauses::doubling(Duration::from_secs(1), Duration::from_secs(30));
/// Added to a command's timeout, for the way there and back and for killing the command.
const EXEC_MARGIN: Duration = Duration::from_secs(30);
/// The memory for all answers together, in files of the largest size.
const FILES_IN_MEMORY: usize = 4;
const LONGEST_RENEWAL: Duration = Duration::from_secs(40);
/// The budget of calls that are soon repeated anyway.
const BRIEF: Budget = Budget {
    request: EXEC_MARGIN,
    total: Duration::from_secs(1),
};

/// The gateway of the run's sandbox pool. Cloning is cheap.
#[derive(Clone)]
pub struct Gateway {
    url: String,
    run: String,
    http: reqwest::Client,
    patience: Duration,
    ttl: Duration,
    token: Option<TokenFile>,
    images: Images,
    queue: Queue,
    /// The memory for answers.
    room: Room,
}

/// A lease that is renewed as long as this value exists.
pub struct Sandbox {
    gateway: Gateway,
    pub lease: Lease,
    renewing: JoinHandle<()>,
    _held: Counted,
}

impl Gateway {
    /// `patience`: how long a call waits for an unavailable gateway. `ttl`: how long a lease outlives its driver.
    pub fn new(
        url: impl Into<String>,
        run: impl Into<String>,
        patience: Duration,
        ttl: Duration,
    ) -> Result<Self, reqwest::Error> {
        let http = reqwest::Client::builder()
            .connect_timeout(Duration::from_secs(3))
            .pool_idle_timeout(Duration::from_secs(30))
            .no_proxy()
            .build()?;
        Ok(Self {
            url: url.into().trim_end_matches('/').to_owned(),
            run: run.into(),
            http,
            patience,
            ttl,
            token: None,
            images: Images::new(patience),
            queue: Queue::default(),
            room: Room::of_files(FILES_IN_MEMORY),
        })
    }

    /// Sets how long calls wait for an image that cannot be pulled.
    pub fn with_image_patience(mut self, patience: Duration) -> Self {
        self.images = Images::new(patience);
        self
    }

    /// The images that cannot be pulled.
    pub fn images(&self) -> &Images {
        &self.images
    }

    /// The run's requests and leases.
    pub fn queue(&self) -> &Queue {
        &self.queue
    }

    /// Sets the token for the gateway.
    pub fn with_token(mut self, token: TokenFile) -> Self {
        self.token = Some(token);
        self
    }

    fn authorized(&self, request: reqwest::RequestBuilder) -> reqwest::RequestBuilder {
        TokenFile::authorize(self.token.as_ref(), request)
    }

    /// Leases a sandbox, waiting in the gateway's queue; `patience` bounds the wait.
    pub async fn lease(
        &self,
        id: &str,
        image: &str,
        priority: Priority,
        patience: Duration,
    ) -> Result<Sandbox, SandboxError> {
        let request = LeaseRequest {
            id: id.to_owned(),
            run: self.run.clone(),
            image: image.to_owned(),
            ttl_seconds: self.ttl.as_secs(),
            wait_seconds: LEASE_WAIT.as_secs().min(patience.as_secs().max(1)),
            priority,
        };
        let call = Call {
            doing: format!("leasing a sandbox of {image}"),
            lease: id,
            object: image,
            budget: Budget {
                request: LEASE_WAIT + EXEC_MARGIN,
                total: patience,
            },
            answer: ANSWER_BYTES,
        };
        let _waits = self.queue.waits();
        let ask = || self.http.post(self.at("/v1/leases")).json(&request);
        let answer = self.send_telling(&call, ask, &|why| self.queue.refused(why)).await?;
        let lease: Lease = parsed(&call, &answer)?;
        self.images.pulled(image);
        Ok(self.hold(lease))
    }

    /// Takes over an earlier driver's lease. Returns `None` if it has ended.
    pub async fn take_up(&self, id: &str) -> Result<Option<Sandbox>, SandboxError> {
        let call = Call {
            doing: format!("asking for lease {id}"),
            lease: id,
            object: "",
            budget: Budget {
                request: EXEC_MARGIN,
                total: self.patience,
            },
            answer: ANSWER_BYTES,
        };
        let renew = RenewRequest {
            ttl_seconds: self.ttl.as_secs(),
        };
        let url = self.at(&format!("/v1/leases/{id}/renew"));
        match self.send_json(&call, || self.http.post(&url), &renew).await {
            Ok(lease) => Ok(Some(self.hold(lease))),
            Err(SandboxError::NoSuchLease { .. } | SandboxError::Lost { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Releases a lease. If the request does not reach the gateway, the lease expires.
    pub async fn release(&self, id: &str) {
        let url = self.at(&format!("/v1/leases/{id}"));
        let request = self.http.delete(url).timeout(Duration::from_secs(10));
        if let Err(error) = self.authorized(request).send().await {
            tracing::debug!(lease = id, %error, "releasing");
        }
    }

    /// Reports the demand: the images of the next leases.
    pub async fn demand(&self, images: Vec<ImageDemand>) -> Result<(), SandboxError> {
        let demand = Demand {
            run: self.run.clone(),
            images,
        };
        let call = Call {
            doing: "saying which sandboxes come next".into(),
            lease: "",
            object: "",
            // The next demand replaces this one anyway.
            budget: BRIEF,
            answer: ANSWER_BYTES,
        };
        self.send(&call, || self.http.put(self.at("/v1/demand")).json(&demand))
            .await
            .map(|_| ())
    }

    /// Whether the pool's package index answers now. Waits for the gateway, not for the index.
    pub async fn package_index(&self) -> Result<PackageIndexState, SandboxError> {
        let call = self.about_the_pool("asking for the pool's package index");
        let url = self.at("/v1/pool/package-index");
        let answer = self.send(&call, || self.http.get(&url)).await?;
        parsed(&call, &answer)
    }

    /// The URL of the package index that graders reach, if the pool names one. Waits for the gateway.
    pub async fn package_index_url(&self) -> Result<Option<String>, SandboxError> {
        let call = self.about_the_pool("asking for the pool's package index");
        let answer = self.send(&call, || self.http.get(self.at("/v1/pool"))).await?;
        parsed(&call, &answer).map(|pool: PoolState| pool.package_index)
    }

    /// A short question that waits for the gateway.
    fn about_the_pool(&self, doing: &'static str) -> Call<'static> {
        Call {
            doing: doing.into(),
            lease: "",
            object: "",
            budget: Budget {
                request: EXEC_MARGIN,
                total: self.patience,
            },
            answer: ANSWER_BYTES,
        }
    }

    fn hold(&self, lease: Lease) -> Sandbox {
        let (gateway, id) = (self.clone(), lease.id.clone());
        let renewing = tokio::spawn(async move { gateway.keep_renewing(&id).await });
        Sandbox {
            gateway: self.clone(),
            lease,
            renewing,
            _held: self.queue.holds(),
        }
    }

    async fn keep_renewing(&self, id: &str) {
        let renew = RenewRequest {
            ttl_seconds: self.ttl.as_secs(),
        };
        let url = self.at(&format!("/v1/leases/{id}/renew"));
        let (pause, timeout) = renewal(self.ttl);
        loop {
            tokio::time::sleep(pause).await;
            let request = self.http.post(&url).json(&renew).timeout(timeout);
            match self.authorized(request).send().await {
                Ok(answer) if answer.status() == 404 || answer.status() == 410 => return,
                // The next call that uses the sandbox reports the error; the pause above is the retry.
                Ok(_) => {}
                Err(error) => tracing::debug!(lease = id, %error, "renewing"),
            }
        }
    }

    fn at(&self, path: &str) -> String {
        format!("{}{path}", self.url)
    }

    async fn send_json<B: Serialize, T: DeserializeOwned>(
        &self,
        call: &Call<'_>,
        request: impl Fn() -> reqwest::RequestBuilder,
        body: &B,
    ) -> Result<T, SandboxError> {
        let answer = self.send(call, || request().json(body)).await?;
        parsed(call, &answer)
    }

    /// Sends until an answer is usable or the call's budget is used up.
    async fn send(
        &self,
        call: &Call<'_>,
        request: impl Fn() -> reqwest::RequestBuilder,
    ) -> Result<Bytes, SandboxError> {
        self.send_telling(call, request, &|_| ()).await
    }

    /// The same; `refused` gets each refusal after which the call is sent again, and `None` for an image that cannot be
    /// pulled: [`Images`] has its message.
    async fn send_telling(
        &self,
        call: &Call<'_>,
        request: impl Fn() -> reqwest::RequestBuilder,
        refused: &(dyn Fn(Option<&str>) + Sync),
    ) -> Result<Bytes, SandboxError> {
        let mut away = Retry::new(call.budget.total, PAUSES);
        let mut image = Retry::new(Duration::MAX, IMAGE_PAUSES);
        let began = Instant::now();
        loop {
            let (last, retry) = match once(
                self.authorized(request()).timeout(call.budget.request),
                call.answer,
                &self.room,
            )
            .await
            {
                Ok(bytes) => return Ok(bytes),
                Err(Refusal::Final(error)) => return Err(call.error(error)),
                Err(refusal) if refusal.code() == Some(ErrorCode::ImageUnavailable) => {
                    tracing::warn!(
                        image = call.object,
                        why = refusal.text(),
                        "the image cannot be pulled; trying again"
                    );
                    if !self.images.failed(call.object, refusal.text(), began) {
                        return Err(call.unavailable(refusal));
                    }
                    refused(None);
                    // The gateway answered.
                    away.progress();
                    (refusal, &mut image)
                }
                Err(refusal) => {
                    refused(Some(refusal.text()));
                    if refusal.code() == Some(ErrorCode::QueueDeadline)
                        && began.elapsed() < queue::FULL_POOL
                        && self.queue.holds_some()
                        && self.is_full().await
                    {
                        away.still_alive();
                    }
                    (refusal, &mut away)
                }
            };
            tracing::debug!(doing = %call.doing, last = last.text(), "asking the gateway again");
            if retry.pause().await.is_err() {
                return Err(call.unavailable(last));
            }
        }
    }
}

impl Sandbox {
    pub fn id(&self) -> &str {
        &self.lease.id
    }

    /// Runs a command. A repeated id gets the first result.
    pub async fn exec(&self, request: &ExecRequest) -> Result<ExecResult, SandboxError> {
        let call = Call {
            doing: format!("running a command under lease {}", self.lease.id),
            lease: &self.lease.id,
            object: "",
            budget: Budget {
                request: Duration::from_secs(request.timeout_seconds) + EXEC_MARGIN,
                total: self.gateway.patience + Duration::from_secs(request.timeout_seconds) + EXEC_MARGIN,
            },
            answer: answer_of_output(request.max_output_bytes.unwrap_or(DEFAULT_OUTPUT_BYTES)),
        };
        let url = self.url("/exec");
        self.gateway
            .send_json(&call, || self.gateway.http.post(&url), request)
            .await
    }

    pub async fn put_file(&self, path: &str, bytes: Bytes) -> Result<(), SandboxError> {
        let call = self.file_call("writing", path);
        let url = self.url("/files");
        let put = || {
            let request = self.gateway.http.put(&url).query(&[("path", path), ("mode", "0644")]);
            request.body(bytes.clone())
        };
        self.gateway.send(&call, put).await.map(|_| ())
    }

    pub async fn get_file(&self, path: &str) -> Result<Bytes, SandboxError> {
        let call = self.file_call("reading", path);
        let url = self.url("/files");
        self.gateway
            .send(&call, || self.gateway.http.get(&url).query(&[("path", path)]))
            .await
    }

    /// Releases the sandbox. If the request does not reach the gateway, the lease expires.
    pub async fn release(self) {
        self.gateway.release(&self.lease.id).await;
    }

    fn url(&self, below: &str) -> String {
        self.gateway.at(&format!("/v1/leases/{}{below}", self.lease.id))
    }

    fn file_call<'a>(&'a self, doing: &str, path: &'a str) -> Call<'a> {
        Call {
            doing: format!("{doing} {path} under lease {}", self.lease.id),
            lease: &self.lease.id,
            object: path,
            budget: Budget {
                request: Duration::from_secs(60),
                total: self.gateway.patience,
            },
            answer: MAX_FILE_BYTES,
        }
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        self.renewing.abort();
    }
}

/// The pause between two renewals, and the timeout of one. A driver that is suspended between two renewals keeps its
/// leases for the rest of their time to live, which a pool may cap.
fn renewal(ttl: Duration) -> (Duration, Duration) {
    ((ttl / 3).min(LONGEST_RENEWAL), (ttl / 4).min(LONGEST_RENEWAL))
}

/// A call: its subject, for errors, and its limits.
struct Call<'a> {
    doing: String,
    lease: &'a str,
    object: &'a str,
    budget: Budget,
    /// The longest answer that is read, in bytes.
    answer: usize,
}

impl Call<'_> {
    /// The error after the last retry: image or gateway unavailable.
    fn unavailable(&self, last: Refusal) -> SandboxError {
        match last {
            Refusal::Again(body) if body.code == ErrorCode::ImageUnavailable => self.error(body),
            last => SandboxError::Unavailable {
                doing: self.doing.clone(),
                within: self.budget.total,
                last: last.text().to_owned(),
                silent: last.code() == Some(ErrorCode::SandboxUnreachable),
            },
        }
    }

    fn error(&self, body: ErrorBody) -> SandboxError {
        match body.code {
            ErrorCode::SandboxLost => SandboxError::Lost {
                lease: self.lease.to_owned(),
                cause: body.cause.unwrap_or(SandboxCause::Unknown),
            },
            ErrorCode::ImageUnavailable => SandboxError::ImageUnavailable {
                image: self.object.to_owned(),
                message: body.message,
            },
            ErrorCode::NoSuchLease => SandboxError::NoSuchLease {
                lease: self.lease.to_owned(),
            },
            ErrorCode::NoSuchFile => SandboxError::NoSuchFile {
                lease: self.lease.to_owned(),
                path: self.object.to_owned(),
            },
            _ => SandboxError::Refused {
                doing: self.doing.clone(),
                message: body.message,
                fault: match body.code {
                    // Clocks, keys and epochs belong to the infrastructure, not to the workload.
                    ErrorCode::BadSignature | ErrorCode::WrongLease => Whose::Infrastructure,
                    _ => body.fault,
                },
            },
        }
    }
}

fn parsed<T: DeserializeOwned>(call: &Call<'_>, bytes: &[u8]) -> Result<T, SandboxError> {
    serde_json::from_slice(bytes).map_err(|error| SandboxError::Refused {
        doing: call.doing.clone(),
        message: format!("malformed response from the gateway: {error}"),
        fault: Whose::Infrastructure,
    })
}

#[cfg(test)]
mod tests;
