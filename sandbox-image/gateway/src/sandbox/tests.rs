use super::*;

#[test]
fn a_sandbox_is_asked_at_its_address_of_either_family() {
    let asked = |ip: &str| health(ip).body(()).unwrap().uri().to_string();
    assert_eq!(asked("10.0.0.7"), "http://10.0.0.7:7070/healthz");
    assert_eq!(asked("fd00:10::7"), "http://[fd00:10::7]:7070/healthz");
}

#[tokio::test]
async fn a_sandbox_that_has_an_address_of_ipv6_only_is_reached() {
    let address = (std::net::Ipv6Addr::LOCALHOST, SANDBOXD_PORT);
    // Without IPv6 in the kernel there are no such sandboxes.
    let Ok(listener) = tokio::net::TcpListener::bind(address).await else {
        return;
    };
    let router = axum::Router::new().route("/healthz", axum::routing::get(|| async { "ok" }));
    tokio::spawn(async move { axum::serve(listener, router).await });
    let sandboxes = Sandboxes::new(Signer::from_seed(&[7; 32]));
    let reached = async { while !sandboxes.answers("::1").await {} };
    tokio::time::timeout(std::time::Duration::from_secs(60), reached)
        .await
        .unwrap();
}
