//! The operator's own numbers, and the port they are read from. Labels are kinds and reasons, never names of objects.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use axum::{Router, extract::State, http::header, response::IntoResponse, routing::get};
use prometheus_client::{
    encoding::{EncodeLabelSet, text::encode},
    metrics::{
        counter::Counter,
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
    },
    registry::{Registry, Unit},
};

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindLabel {
    kind: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ErrorLabel {
    kind: String,
    reason: String,
}

/// Everything that is counted.
#[derive(Clone)]
pub struct Metrics {
    registry: Arc<Registry>,
    durations: Family<KindLabel, Histogram>,
    errors: Family<ErrorLabel, Counter>,
    unreadable: Family<KindLabel, Counter>,
    leader: Gauge,
}

impl Metrics {
    pub fn new() -> Self {
        let durations = Family::<KindLabel, Histogram>::new_with_constructor(|| {
            Histogram::new(exponential_buckets(0.001, 2.0, 16))
        });
        let (errors, unreadable, leader) = (Family::default(), Family::default(), Gauge::default());
        let mut registry = Registry::with_prefix("grpo_operator");
        registry.register_with_unit(
            "reconcile_duration",
            "Duration of one reconcile",
            Unit::Seconds,
            durations.clone(),
        );
        registry.register(
            "reconcile_errors",
            "Reconciles that ended with an error",
            errors.clone(),
        );
        registry.register(
            "unreadable_objects",
            "Objects that could not be read",
            unreadable.clone(),
        );
        registry.register("leader", "1 while this replica reconciles", leader.clone());
        Self {
            registry: Arc::new(registry),
            durations,
            errors,
            unreadable,
            leader,
        }
    }

    pub fn reconciled(&self, kind: &str, took: Duration, error: Option<&'static str>) {
        let kind = kind.to_owned();
        self.durations
            .get_or_create(&KindLabel { kind: kind.clone() })
            .observe(took.as_secs_f64());
        if let Some(reason) = error {
            let reason = reason.to_owned();
            self.errors.get_or_create(&ErrorLabel { kind, reason }).inc();
        }
    }

    pub fn unreadable(&self, kind: &str) {
        self.unreadable
            .get_or_create(&KindLabel { kind: kind.to_owned() })
            .inc();
    }

    pub fn leading(&self) {
        self.leader.set(1);
    }
}

/// Serves `/healthz`, `/readyz` and `/metrics` until the process ends. A replica that waits for the lease is ready too.
pub async fn serve(listen: SocketAddr, metrics: Metrics) -> std::io::Result<()> {
    let listener = tokio::net::TcpListener::bind(listen).await?;
    let router = Router::new()
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(async || "ok\n"))
        .route("/metrics", get(text))
        .with_state(metrics);
    axum::serve(listener, router).await
}

async fn text(State(metrics): State<Metrics>) -> impl IntoResponse {
    let mut text = String::new();
    // Writing into a String fails only when a metric cannot be formatted; what was written until then is still of use.
    let _ = encode(&mut text, &metrics.registry);
    (
        [(
            header::CONTENT_TYPE,
            "application/openmetrics-text; version=1.0.0; charset=utf-8",
        )],
        text,
    )
}
