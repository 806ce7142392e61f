//! What can be reached from here.

use std::net::SocketAddr;
use std::time::Duration;

use grpo_sandbox_protocol::{MAX_PROBED, ProbeReply, ProbeRequest};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// Longest probe.
const LONGEST: Duration = Duration::from_secs(30);

/// Tries all at once. Only a connection that came about counts: a refusal may come from whoever keeps the sandbox in.
pub async fn probe(request: &ProbeRequest) -> ProbeReply {
    let within = Duration::from_millis(request.timeout_millis).min(LONGEST);
    let mut tries = JoinSet::new();
    for address in request.addresses.iter().copied().take(MAX_PROBED) {
        tries.spawn(async move { reaches(address, within).await.then_some(address) });
    }
    let mut reached: Vec<SocketAddr> = tries.join_all().await.into_iter().flatten().collect();
    reached.sort();
    ProbeReply { reached }
}

async fn reaches(address: SocketAddr, within: Duration) -> bool {
    let connected = tokio::time::timeout(within, TcpStream::connect(address)).await;
    matches!(connected, Ok(Ok(_)))
}
