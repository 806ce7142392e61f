//! OpenTelemetry traces of episodes, sent where the environment says.
//!
//! `OTEL_EXPORTER_OTLP_ENDPOINT` in `driver.env` switches them on; the SDK reads the other variables of the
//! [specification](https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/), such as the
//! sampler. A trace is one attempt of an episode: below it are the lease, the setup, each turn with its sampling and
//! its command, the patch, the grading and the reward. So a trace shows what an episode waited for, while the records
//! of the store have sums.
//!
//! Spans have the target [`TARGET`] and the level TRACE, which logs leave out. Without a collector no layer asks for
//! them, and a span costs a comparison.

use crate::outside;
use bytes::Bytes;
use opentelemetry::trace::TracerProvider;
use opentelemetry_http::{HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{ExporterBuildError, Protocol, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::runtime::Handle;
use tracing::Subscriber;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::registry::LookupSpan;

/// The target of all spans.
pub const TARGET: &str = "grpo_traces";
/// The variables that name a collector.
const ENDPOINTS: [&str; 2] = ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"];
/// The SDK reads it too, unless it is given a name.
const SERVICE_NAME: &str = "OTEL_SERVICE_NAME";
/// A collector that does not answer delays neither episodes nor the end of the run for longer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Longest answer of a collector that is read, in bytes. It says which spans were refused.
const LONGEST_ANSWER: usize = 64 << 10;

/// A span of one step of an episode: `step!("lease")`, `step!("turn", turn = 3)`.
macro_rules! step {
    ($name:literal $(, $field:ident = $value:expr)*) => {
        tracing::trace_span!(target: $crate::traces::TARGET, $name $(, $field = $value)*)
    };
}
pub(crate) use step;

/// Sends spans until it is shut down.
pub struct Traces(SdkTracerProvider);

impl Traces {
    /// `None` if the environment names no collector.
    pub fn of_environment() -> Result<Option<Self>, ExporterBuildError> {
        let is_set = |name: &&str| std::env::var_os(*name).is_some_and(|value| !value.is_empty());
        match ENDPOINTS.iter().any(is_set) {
            true => Self::to(None).map(Some),
            false => Ok(None),
        }
    }

    /// Sends to this endpoint, or to that of the environment.
    fn to(endpoint: Option<&str>) -> Result<Self, ExporterBuildError> {
        let client = Client {
            client: outside::client(),
            runtime: Handle::current(),
            is_well: Arc::new(AtomicBool::new(true)),
        };
        let mut exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(client)
            .with_protocol(Protocol::HttpBinary);
        if let Some(endpoint) = endpoint {
            exporter = exporter.with_endpoint(endpoint);
        }
        let resource = match std::env::var_os(SERVICE_NAME) {
            Some(_) => Resource::builder(),
            None => Resource::builder().with_service_name("grpo-driver"),
        };
        let provider = SdkTracerProvider::builder()
            .with_batch_exporter(exporter.build()?)
            .with_resource(resource.build())
            .build();
        Ok(Self(provider))
    }

    /// The layer that makes OpenTelemetry's spans of ours.
    pub fn layer<S>(&self) -> impl Layer<S> + use<S>
    where
        S: Subscriber + for<'span> LookupSpan<'span>,
    {
        let ours = Targets::new().with_target(TARGET, LevelFilter::TRACE);
        tracing_opentelemetry::layer()
            .with_tracer(self.0.tracer("grpo-driver"))
            .with_location(false)
            .with_threads(false)
            .with_target(false)
            .with_filter(ours)
    }

    /// Sends the spans that have ended.
    pub async fn shut_down(self) {
        let done = tokio::task::spawn_blocking(move || self.0.shutdown_with_timeout(PATIENCE));
        match done.await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "the last traces were not sent"),
            Err(error) => tracing::warn!(%error, "the last traces were not sent"),
        }
    }
}

/// Sends on the driver's runtime: the SDK exports from a thread of its own, which has none.
#[derive(Debug)]
struct Client {
    client: reqwest::Client,
    runtime: Handle,
    /// For one log line for each outage: the SDK itself says nothing.
    is_well: Arc<AtomicBool>,
}

/// What came of sending spans.
fn told(is_well: &AtomicBool, problem: Option<String>) {
    let was_well = is_well.swap(problem.is_none(), Ordering::Relaxed);
    match problem {
        Some(problem) if was_well => tracing::warn!(problem, "traces are not sent; episodes work on"),
        None if !was_well => tracing::info!("traces are sent again"),
        _ => {}
    }
}

#[async_trait::async_trait]
impl HttpClient for Client {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let (client, is_well) = (self.client.clone(), self.is_well.clone());
        let sent = self.runtime.spawn(async move {
            let mut request: reqwest::Request = request.try_into()?;
            *request.timeout_mut() = Some(PATIENCE);
            let to = outside::shown(request.url().as_str());
            let answer = client.execute(request).await.map_err(reqwest::Error::without_url);
            let answer = answer.inspect_err(|error| told(&is_well, Some(format!("{to}: {error}"))))?;
            let status = answer.status();
            told(
                &is_well,
                (!status.is_success()).then(|| format!("the collector answers {status}")),
            );
            let body = outside::body(answer, LONGEST_ANSWER).await?.unwrap_or_default();
            Ok::<_, HttpError>(Response::builder().status(status).body(Bytes::from(body))?)
        });
        sent.await?
    }
}

#[cfg(test)]
mod tests;
