//! The egress probe: checks that sandboxes reach nothing.
//!
//! A NetworkPolicy is an object that a cluster may ignore. So the gateway leases two sandboxes of its own, made from
//! the pool's template with sandboxd's image. One of them tries to connect to addresses that must not be reachable: the
//! API server, the metadata address of clouds, the cluster's name server, the gateway, and the other sandbox. All but
//! the metadata address are known to listen, so silence proves a block.
//!
//! Some network plugins enforce the policies of a new pod only seconds after its start. So a sandbox that reached
//! something is asked again for a while. Its pool still gives no leases, since a leased sandbox may be as new, but its
//! condition then names the cause.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use grpo_sandbox_protocol::{EgressReport, Lease, LeaseRequest, Priority, ProbeReply, ProbeRequest, SANDBOXD_PORT};
use hyper::Method;
use rand::Rng;
use tokio::time::Instant;

use super::{Core, now};
use crate::egress::{PROBE_RUN, ProbePauses, why_not};
use crate::index::ActiveLease;
use crate::sandbox::Holder;

/// Deadline of a connection.
const CONNECT_WITHIN: Duration = Duration::from_secs(2);
/// A sandbox that reached something is asked again after this time, for this long.
const ASK_AGAIN: Duration = Duration::from_secs(3);
const LATE_WITHIN: Duration = Duration::from_secs(15);
/// Deadline for the probe's own leases.
const LEASE_WITHIN: Duration = Duration::from_secs(300);
/// The metadata address: clouds give a machine its credentials there.
const METADATA: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(169, 254, 169, 254)), 80);
/// The metadata address for sandboxes with IPv6 addresses.
const METADATA_OF_IPV6: SocketAddr =
    SocketAddr::new(IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)), 80);

/// An address that must not be reachable.
struct Target {
    what: &'static str,
    address: SocketAddr,
}

impl Target {
    fn told(&self) -> String {
        format!("{} ({})", self.what, self.address)
    }
}

/// Probes for as long as the gateway lives.
pub async fn keep_probing(core: Arc<Core>) {
    let mut pauses = ProbePauses::default();
    loop {
        let known = core.egress.report();
        let wait = pauses.next(known.as_ref(), core.template.spec.allow_unenforced, now());
        tokio::time::sleep(wait).await;
        let found = probe(&core).await;
        match found.is_blocked() {
            true => tracing::info!(tried = found.tried.join(", "), "sandboxes reach nothing"),
            false => tracing::warn!("{}", why_not(Some(&found))),
        }
        pauses.has_failed = found.failed.is_some();
        core.egress.found(found, now());
        core.report();
    }
}

async fn probe(core: &Arc<Core>) -> EgressReport {
    let name = format!("{PROBE_RUN}-{:08x}", rand::rng().random::<u32>());
    let names = [format!("{name}-0"), format!("{name}-1")];
    let found = probe_with(core, &names).await;
    for name in &names {
        core.apply(|index| index.release(name, now()));
    }
    found.unwrap_or_else(|failed| EgressReport {
        at: now(),
        tried: Vec::new(),
        reached: Vec::new(),
        blocked_after_seconds: None,
        failed: Some(failed),
    })
}

async fn probe_with(core: &Arc<Core>, names: &[String; 2]) -> Result<EgressReport, String> {
    let [from, other] = match core.template.spec.max {
        1 => [Some(lease(core, &names[0]).await?), None],
        _ => {
            let (from, other) = tokio::join!(lease(core, &names[0]), lease(core, &names[1]));
            [Some(from?), Some(other?)]
        }
    };
    let from = from.ok_or("no sandbox")?;
    let mut targets = targets(&from);
    if let Some(other) = &other {
        let ip: IpAddr = other.ip.parse().map_err(|_| format!("{:?} is no address", other.ip))?;
        targets.push(Target {
            what: "another sandbox",
            address: SocketAddr::new(ip, SANDBOXD_PORT),
        });
    }
    let request = ProbeRequest {
        addresses: targets.iter().map(|target| target.address).collect(),
        timeout_millis: CONNECT_WITHIN.as_millis() as u64,
    };
    let reply = ask(core, &from, &request).await?;
    core.egress.bounded_by(reply.limits);
    // With `allowUnenforced` leases do not depend on it, and want the probe's sandboxes back.
    let blocked_after_seconds = match reply.reached.is_empty() || core.template.spec.allow_unenforced {
        true => None,
        false => blocked_later(|| ask(core, &from, &request)).await,
    };
    let reached = targets.iter().filter(|target| reply.reached.contains(&target.address));
    Ok(EgressReport {
        at: now(),
        reached: reached.map(Target::told).collect(),
        tried: targets.iter().map(Target::told).collect(),
        blocked_after_seconds,
        failed: None,
    })
}

/// Has sandboxd try the addresses.
async fn ask(core: &Core, from: &ActiveLease, request: &ProbeRequest) -> Result<ProbeReply, String> {
    let body = serde_json::to_vec(request).map_err(|e| e.to_string())?;
    let asked = core.sandboxes.send(
        Holder::of(from),
        Method::POST,
        "/probe",
        body.into(),
        CONNECT_WITHIN * 5,
    );
    let (status, body) = asked.await.map_err(|e| e.to_string())?;
    if !status.is_success() {
        return Err(format!(
            "sandboxd answered {status}: {}",
            String::from_utf8_lossy(&body)
        ));
    }
    serde_json::from_slice(&body).map_err(|e| format!("reading the probe's answer: {e}"))
}

/// Asks a sandbox that reached something again; returns after how many seconds it reached nothing.
async fn blocked_later<A>(ask: impl Fn() -> A) -> Option<u64>
where
    A: Future<Output = Result<ProbeReply, String>>,
{
    let begun = Instant::now();
    while begun.elapsed() < LATE_WITHIN {
        tokio::time::sleep(ASK_AGAIN).await;
        if ask().await.is_ok_and(|reply| reply.reached.is_empty()) {
            return Some(begun.elapsed().as_secs());
        }
    }
    None
}

/// Leases a sandbox for the probe in the ordinary way, so the result holds for all sandboxes of the template. Its lease
/// does not wait behind agents, but it reaches no package index: see [`crate::package_index::reaches_packages`].
async fn lease(core: &Arc<Core>, name: &str) -> Result<ActiveLease, String> {
    let request = LeaseRequest {
        id: name.to_owned(),
        run: PROBE_RUN.to_owned(),
        image: core.template.sandboxd_image.clone(),
        ttl_seconds: 120,
        wait_seconds: LEASE_WITHIN.as_secs(),
        priority: Priority::Grader,
    };
    let Lease { id, .. } = core.lease(request).await.map_err(|error| error.message)?;
    let held = core.look(|index| index.leases.get(&id).cloned());
    held.ok_or_else(|| "the probe's sandbox is gone already".to_owned())
}

/// The targets that exist in every cluster.
fn targets(from: &ActiveLease) -> Vec<Target> {
    let mut targets = vec![Target {
        what: "the metadata address",
        address: match from.ip.contains(':') {
            true => METADATA_OF_IPV6,
            false => METADATA,
        },
    }];
    let variable = |name| std::env::var(name).ok();
    let server = variable("KUBERNETES_SERVICE_HOST").zip(variable("KUBERNETES_SERVICE_PORT"));
    if let Some((host, port)) = server
        && let (Ok(host), Ok(port)) = (host.parse(), port.parse())
    {
        targets.push(Target {
            what: "the API server",
            address: SocketAddr::new(host, port),
        });
    }
    if let Some(server) = name_server() {
        targets.push(Target {
            what: "the name server",
            address: SocketAddr::new(server, 53),
        });
    }
    if let Some(own) = own_address(&from.ip) {
        targets.push(Target {
            what: "the gateway",
            address: SocketAddr::new(own, grpo_contracts::RunConfig::GATEWAY_PORT),
        });
    }
    targets
}

fn name_server() -> Option<IpAddr> {
    let text = std::fs::read_to_string("/etc/resolv.conf").ok()?;
    let mut servers = text.lines().filter_map(|line| line.strip_prefix("nameserver"));
    servers.find_map(|server| server.trim().parse().ok())
}

/// The source address of the gateway's calls to a sandbox. Sends nothing.
fn own_address(sandbox: &str) -> Option<IpAddr> {
    let sandbox: IpAddr = sandbox.parse().ok()?;
    let any: IpAddr = match sandbox {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect((sandbox, SANDBOXD_PORT)).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

#[cfg(test)]
mod tests;
