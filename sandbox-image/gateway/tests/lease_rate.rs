//! The number of leases per second that the gateway itself can grant: all its peers are simulated, over loopback. Pods
//! run at once, and sandboxd accepts every caller. Prints figures; `cargo test -p grpo-gateway --release --test gateway
//! -- --ignored --nocapture lease_rate::`.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::played::{Gateway, Nodes, Server, bounds};
use axum::Router;
use axum::routing::{get, post};
use grpo_gateway::core::{Core, now};
use grpo_gateway::index::{Bounds, Index};
use grpo_gateway::ledger::Counters;
use grpo_sandbox_protocol::{LeaseRequest, Priority, SANDBOXD_PORT};

/// Addresses of sandboxds; many pods share one.
const SANDBOXDS: usize = 64;
const MAX: usize = 600;
const CLIENTS: usize = 64;
const MEASURED: Duration = Duration::from_secs(5);

/// Sandboxes that exist before their pods.
#[derive(Default)]
struct Shared(AtomicUsize);

impl Nodes for Shared {
    fn start(&self, _pod: &str) -> String {
        let nth = self.0.fetch_add(1, Ordering::Relaxed);
        format!("127.77.0.{}", 1 + nth % SANDBOXDS)
    }

    fn stop(&self, _pod: &str) {}
}

async fn serve(address: &str, router: Router) -> SocketAddr {
    let listener = tokio::net::TcpListener::bind(address).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await });
    address
}

/// A running gateway, its API server, and the counters of its ledger.
async fn gateway() -> (Arc<Core>, Server, Counters) {
    let server = Server::serve(Arc::new(Shared::default()), MAX).await;
    for nth in 1..=SANDBOXDS {
        let sandboxd = Router::new()
            .route("/healthz", get(|| async { "ok" }))
            .route("/bind", post(|| async { "{}" }));
        serve(&format!("127.77.0.{nth}:{SANDBOXD_PORT}"), sandboxd).await;
    }
    let gateway = Gateway::begin(&server, bounds(MAX), &format!("max: {MAX}")).await;
    (gateway.core, server, gateway.counters)
}

fn request(id: String) -> LeaseRequest {
    LeaseRequest {
        id,
        run: "r".into(),
        image: "x".into(),
        ttl_seconds: 60,
        wait_seconds: 60,
        priority: Priority::Agent,
    }
}

async fn until_ready(core: &Arc<Core>, count: u32) {
    while core.look(|index| index.state().ready) < count {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn at(sorted: &[Duration], share: f64) -> Duration {
    sorted[((sorted.len() - 1) as f64 * share) as usize]
}

#[test]
#[ignore = "measures"]
fn plans_of_a_large_pool() {
    let max = 10_000;
    let bounds = Bounds {
        orders: max,
        ..bounds(max)
    };
    let (mut index, mut made) = (Index::new(bounds), 0);
    let mut plan = |index: &mut Index| {
        let began = Instant::now();
        let actions = index.plan(1, || {
            made += 1;
            format!("p{made}")
        });
        (began.elapsed(), actions.len())
    };
    index.want("r", (0..50).map(|n| (format!("image-{n}"), max / 50)).collect(), 1);
    println!("{max} ordered: {:?}", plan(&mut index));
    let names: Vec<String> = index.sandboxes.keys().cloned().collect();
    for name in &names {
        index.created(name, 1);
        index.observed(name, "u", "10.0.0.1", "n", 1);
        index.ready(name);
    }
    for nth in 0..max / 2 {
        let image = format!("image-{}", nth % 50);
        let request = LeaseRequest {
            image,
            run: format!("r{}", nth % 7),
            ..request(format!("l{nth}"))
        };
        index.wait(request, 1).unwrap();
    }
    println!("{} leased at once: {:?}", max / 2, plan(&mut index));
    println!("nothing to do: {:?}", plan(&mut index));
    let began = Instant::now();
    println!("next deadline: {:?} {:?}", index.next_deadline(1), began.elapsed());
    let began = Instant::now();
    index.wait(request("one".into()), 1).unwrap();
    println!("one comes: {:?}", began.elapsed());
    println!("one waits: {:?}", plan(&mut index));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "measures, and takes port 7070 of 64 loopback addresses"]
async fn leases_a_second() {
    let (core, server, counters) = gateway().await;
    let warm = 500;
    let began = Instant::now();
    core.with(|index| index.want("r", vec![("x".into(), warm)], now()));
    until_ready(&core, warm as u32).await;
    println!("refill: {warm} pods in {:?}", began.elapsed());

    let began = Instant::now();
    let burst = (0..300).map(|nth| core.lease(request(format!("burst-{nth}"))));
    let leased = futures::future::join_all(burst).await;
    assert!(leased.iter().all(Result::is_ok));
    println!(
        "300 at once: all leased after {:?}, {} ledger writes",
        began.elapsed(),
        counters.writes.get()
    );
    for nth in 0..300 {
        core.apply(|index| index.release(&format!("burst-{nth}"), now()));
    }
    until_ready(&core, warm as u32).await;

    let (writes, leases) = (counters.writes.get(), counters.leases.get());
    let requests = server.writes.load(Ordering::Relaxed);
    let began = Instant::now();
    let clients = (0..CLIENTS).map(|client| {
        let core = core.clone();
        tokio::spawn(async move {
            let mut waits = Vec::new();
            while began.elapsed() < MEASURED {
                let id = format!("c{client}-{}", waits.len());
                let asked = Instant::now();
                core.lease(request(id.clone())).await.unwrap();
                waits.push(asked.elapsed());
                core.apply(|index| index.release(&id, now()));
            }
            waits
        })
    });
    let mut waits: Vec<Duration> = futures::future::join_all(clients)
        .await
        .into_iter()
        .flat_map(Result::unwrap)
        .collect();
    let took = began.elapsed();
    waits.sort();
    let per_lease = (counters.writes.get() - writes) as f64 / (counters.leases.get() - leases) as f64;
    println!(
        "{CLIENTS} clients, {warm} warm: {:.0} leases/s with a pod made and deleted for each; p50 {:?}, p99 {:?}; \
         {per_lease:.3} ledger writes and {:.2} writes in all per lease",
        waits.len() as f64 / took.as_secs_f64(),
        at(&waits, 0.5),
        at(&waits, 0.99),
        (server.writes.load(Ordering::Relaxed) - requests) as f64 / waits.len() as f64,
    );
    println!("{:?}", core.look(|index| index.state()));
}
