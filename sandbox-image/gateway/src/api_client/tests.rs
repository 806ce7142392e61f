use super::*;
use axum::Router;
use axum::http::StatusCode;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use tokio::net::TcpListener;

async fn pods(listener: &TcpListener, answer: Duration) -> Api<Pod> {
    let url = format!("http://{}", listener.local_addr().unwrap());
    let client = of(Config::new(url.parse().unwrap()), answer).unwrap();
    Api::namespaced(client, "team")
}

#[tokio::test]
async fn a_server_that_never_answers_is_an_error_of_unknown_outcome() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let pods = pods(&listener, Duration::from_millis(50)).await;
    let asked = pods.get("a");
    let error = tokio::time::timeout(Duration::from_secs(60), asked)
        .await
        .unwrap()
        .unwrap_err();
    assert!(!matches!(error, kube::Error::Api(_)), "{error}");
}

#[tokio::test]
async fn a_server_that_is_overloaded_is_asked_once_for_each_call() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let pods = pods(&listener, Duration::from_secs(60)).await;
    let asked = Arc::new(AtomicU32::new(0));
    let count = asked.clone();
    let router = Router::new().fallback(move || {
        count.fetch_add(1, Ordering::SeqCst);
        std::future::ready(StatusCode::GATEWAY_TIMEOUT)
    });
    tokio::spawn(async move { axum::serve(listener, router).await });
    let error = pods.get("a").await.unwrap_err();
    assert!(
        matches!(&error, kube::Error::Api(status) if status.code == 504),
        "{error}"
    );
    assert_eq!(asked.load(Ordering::SeqCst), 1);
}
