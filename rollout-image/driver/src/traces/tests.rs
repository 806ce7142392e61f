use super::*;
use axum::Router;
use axum::extract::State;
use axum::routing::post;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::trace::v1::Span as Sent;
use prost::Message;
use std::sync::Mutex;
use tracing::Instrument;
use tracing_subscriber::layer::SubscriberExt;

type Received = std::sync::Arc<Mutex<Vec<Sent>>>;

/// A collector on loopback: the endpoint of traces, and the spans that it got.
async fn collector() -> (String, Received) {
    let received = Received::default();
    let take = |State(received): State<Received>, body: Bytes| async move {
        let request = ExportTraceServiceRequest::decode(body).unwrap();
        let scopes = request.resource_spans.into_iter().flat_map(|one| one.scope_spans);
        received.lock().unwrap().extend(scopes.flat_map(|one| one.spans));
    };
    let app = Router::new()
        .route("/v1/traces", post(take))
        .with_state(received.clone());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}/v1/traces", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, app).await });
    (endpoint, received)
}

#[tokio::test]
async fn steps_are_sent_below_their_attempt_and_log_spans_are_not() {
    let (endpoint, received) = collector().await;
    let traces = Traces::to(Some(&endpoint)).unwrap();
    let subscriber = tracing_subscriber::registry().with(traces.layer());
    {
        let _ours = tracing::subscriber::set_default(subscriber);
        let root = step!("episode");
        async {
            async {}.instrument(step!("turn", turn = 3_u32)).await;
            async {}.instrument(tracing::info_span!("elsewhere")).await;
        }
        .instrument(root)
        .await;
    }
    traces.shut_down().await;
    let spans = received.lock().unwrap().clone();
    let named = |name: &str| spans.iter().find(|span| span.name == name).unwrap();
    assert_eq!(spans.len(), 2, "{spans:?}");
    assert_eq!(named("turn").parent_span_id, named("episode").span_id);
    assert_eq!(named("turn").trace_id, named("episode").trace_id);
    assert!(named("turn").attributes.iter().any(|one| one.key == "turn"));
}

/// How long the end of a run takes with a span for a collector at this address.
async fn end_with(address: &str) -> Duration {
    let traces = Traces::to(Some(&format!("http://{address}/v1/traces"))).unwrap();
    let subscriber = tracing_subscriber::registry().with(traces.layer());
    {
        let _ours = tracing::subscriber::set_default(subscriber);
        async {}.instrument(step!("episode")).await;
    }
    let began = std::time::Instant::now();
    traces.shut_down().await;
    began.elapsed()
}

#[tokio::test]
async fn a_collector_that_is_gone_or_never_answers_delays_the_end_for_seconds_only() {
    // Its queue takes the connection.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let gone = end_with("127.0.0.1:1").await;
    let silent = end_with(&address).await;
    assert!(gone < PATIENCE, "{gone:?}");
    assert!(silent < PATIENCE * 2, "{silent:?}");
}
