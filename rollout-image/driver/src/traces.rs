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

use crate::episode::EpisodePlan;
use crate::fault::DriverError;
use crate::outside;
use bytes::Bytes;
use grpo_records::{EpisodeMeta, EpisodeScope};
use opentelemetry::trace::TracerProvider;
use opentelemetry_http::{HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{ExporterBuildError, Protocol, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::runtime::Handle;
use tracing::level_filters::LevelFilter;
use tracing::{Span, Subscriber};
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

/// A span of one step of an episode: `step!("lease")`, `step!("turn", turn = 3)`.
macro_rules! step {
    ($name:literal $(, $field:ident = $value:expr)*) => {
        tracing::trace_span!(target: $crate::traces::TARGET, $name $(, $field = $value)*)
    };
}
pub(crate) use step;

/// The span of an attempt; [`ended`] adds its result.
pub fn attempt(plan: &EpisodePlan, (namespace, run): (&str, &str), attempt: u32) -> Span {
    let (scope, number) = match &plan.key.scope {
        EpisodeScope::Iteration { iteration } => ("iteration", Some(u64::from(*iteration))),
        EpisodeScope::Evaluation { set, .. } => (set.as_str(), None),
    };
    tracing::trace_span!(
        target: TARGET,
        "episode",
        k8s.namespace.name = namespace,
        grpo.run = run,
        grpo.episode = plan.key.dir(attempt),
        grpo.task = plan.key.instance,
        grpo.scope = scope,
        grpo.iteration = number,
        grpo.group = plan.key.group,
        grpo.sample = plan.key.sample,
        grpo.attempt = attempt,
        grpo.outcome = tracing::field::Empty,
        grpo.reward = tracing::field::Empty,
        grpo.turns = tracing::field::Empty,
        grpo.sampled_tokens = tracing::field::Empty,
        otel.status_code = tracing::field::Empty,
        otel.status_description = tracing::field::Empty,
    )
}

/// Adds the result to an attempt's span. A void is an error: the infrastructure lost the attempt.
pub fn ended(span: &Span, result: &Result<Option<EpisodeMeta>, DriverError>) {
    match result {
        Ok(Some(meta)) => {
            span.record("grpo.outcome", meta.outcome.to_string());
            span.record("grpo.turns", meta.turns);
            span.record("grpo.sampled_tokens", meta.sampled_tokens as u64);
            if let Some(reward) = meta.reward {
                span.record("grpo.reward", f64::from(reward));
            }
            if !meta.outcome.is_verdict() {
                span.record("otel.status_code", "ERROR");
                // Not the message: it may quote what a task's image printed, and traces leave the run's namespace.
                span.record("otel.status_description", meta.outcome.to_string());
            }
        }
        Ok(None) => {
            span.record("grpo.outcome", "Abandoned");
        }
        Err(error) => {
            span.record("otel.status_code", "ERROR");
            span.record("otel.status_description", described(error));
        }
    }
}

/// Without what a message may quote.
fn described(error: &DriverError) -> &'static str {
    match error {
        DriverError::Terminal(fault) => fault.reason.text(),
        _ => "an error of the driver; its log has the message",
    }
}

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
            let answer = client.execute(request).await;
            let answer = answer.inspect_err(|error| told(&is_well, Some(error.to_string())))?;
            let status = answer.status();
            told(
                &is_well,
                (!status.is_success()).then(|| format!("the collector answers {status}")),
            );
            let body = answer.bytes().await?;
            Ok::<_, HttpError>(Response::builder().status(status).body(body)?)
        });
        sent.await?
    }
}

#[cfg(test)]
mod tests;
