//! The viewer of a run that works, on a machine that mallory uses too: she knows its address, and not its token.

use super::{NO_CONNECTION, ask_over_network};
use crate::support::{Result, Scene};
use grpo_testing::cluster::host_address;
use kubectl_grpo::cluster::Cluster;
use kubectl_grpo::ui::listen;
use kubectl_grpo::ui::server::{Shown, router};
use kubectl_grpo::ui::viewed::{Place, Viewed};
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

const TOKEN: &str = "0123456789abcdef0123456789abcdef";
const PATHS: [&str; 5] = ["/", "/app.js", "/api/runs", "/api/0/run", "/events"];

/// Serves the viewer, and tries it as a stranger; returns the number of attempts.
pub async fn attempts(theirs: &Scene, run: &str) -> Result<u32> {
    let cluster = Cluster {
        client: theirs.client.clone(),
        namespace: theirs.namespace.clone(),
        given: None,
    };
    let viewed = Arc::new(
        Viewed::open(Place::Run {
            cluster,
            name: run.to_owned(),
            reader_image: None,
        })
        .await?,
    );
    viewed.catch_up().await?;
    let (listener, at) = listen(0).await?;
    let shown = Arc::new(Shown {
        runs: vec![Arc::clone(&viewed)],
        token: TOKEN.to_owned(),
        at,
    });
    // What the cluster's network reaches if a viewer listens on every address.
    let open = TcpListener::bind((host_address(), 0)).await?;
    let at_open = open.local_addr()?;
    let mut servers = JoinSet::new();
    for listener in [listener, open] {
        let router = router(Arc::clone(&shown));
        servers.spawn(async move { axum::serve(listener, router).await });
    }
    let tried = tried(at, at_open).await;
    servers.shutdown().await;
    viewed.close().await?;
    tried
}

async fn tried(at: SocketAddr, open: SocketAddr) -> Result<u32> {
    let http = reqwest::Client::builder()
        .redirect(reqwest::redirect::Policy::none())
        .no_proxy()
        .build()?;
    let name = format!("grpo-ui-{}", at.port());
    let get = async |path: &str, host: &str, cookie: &str| -> Result<u16> {
        let request = http.get(format!("http://{at}{path}")).header("host", host);
        Ok(request.header("cookie", cookie).send().await?.status().as_u16())
    };
    let (own, good) = (at.to_string(), format!("{name}={TOKEN}"));
    assert_eq!(get("/api/0/run", &own, &good).await?, 200, "its own browser is let in");
    let mut attempts = 0;
    for path in PATHS {
        for (host, cookie, wanted) in [
            (&own, String::new(), 401),
            (&own, format!("{name}={}", "f".repeat(32)), 401),
            // A page of hers in the browser of the other team, under a name that she gave this machine.
            (&"mallory.example".to_owned(), good.clone(), 403),
        ] {
            assert_eq!(
                get(path, host, &cookie).await?,
                wanted,
                "{path} of {host} with {cookie}"
            );
            attempts += 1;
        }
    }
    assert_eq!(get("/?token=0123", &own, "").await?, 401);
    let over_network = |port: u16| ask_over_network("GET", &format!("{}:{port}", host_address()), "/api/runs", None);
    assert_eq!(over_network(open.port())?, "403", "the network reaches this machine");
    assert_eq!(
        over_network(at.port())?,
        NO_CONNECTION,
        "the viewer listens on loopback only"
    );
    Ok(attempts + 2)
}
