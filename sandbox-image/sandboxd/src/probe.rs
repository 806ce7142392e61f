//! The addresses that the sandbox can reach, and the kernel's limits.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use grpo_sandbox_protocol::{Limits, MAX_PROBED, ProbeReply, ProbeRequest};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::bounds;

const CGROUPS: &str = "/sys/fs/cgroup";
/// Control groups version 1 express "no limit" as their largest number, rounded to pages.
const NO_BOUND: u64 = 1 << 60;
/// Longest duration of a probe.
const LONGEST: Duration = Duration::from_secs(30);

/// Tries all addresses at once. Only an established connection counts: a refusal may come from a firewall.
pub async fn probe(request: &ProbeRequest) -> ProbeReply {
    let within = Duration::from_millis(request.timeout_millis).min(LONGEST);
    let mut tries = JoinSet::new();
    for address in request.addresses.iter().copied().take(MAX_PROBED) {
        tries.spawn(async move { reaches(address, within).await.then_some(address) });
    }
    let mut reached: Vec<SocketAddr> = tries.join_all().await.into_iter().flatten().collect();
    reached.sort();
    ProbeReply {
        reached,
        limits: limits(Path::new(CGROUPS), Path::new(bounds::UIDS)),
    }
}

async fn reaches(address: SocketAddr, within: Duration) -> bool {
    let connected = tokio::time::timeout(within, TcpStream::connect(address)).await;
    matches!(connected, Ok(Ok(_)))
}

/// Control groups version 2, then version 1.
fn limits(root: &Path, uids: &Path) -> Limits {
    let read = |file: &str| fs::read_to_string(root.join(file)).ok();
    let number = |file: &str| {
        read(file)?
            .trim()
            .parse::<u64>()
            .ok()
            .filter(|number| *number < NO_BOUND)
    };
    let quota = read("cpu.max").or_else(|| {
        let (quota, period) = (read("cpu/cpu.cfs_quota_us")?, read("cpu/cpu.cfs_period_us")?);
        Some(format!("{} {}", quota.trim(), period.trim()))
    });
    let cpu_millis = quota.and_then(|quota| {
        let (quota, period) = quota.trim().split_once(' ')?;
        (quota.parse::<u64>().ok()? * 1000).checked_div(period.parse().ok()?)
    });
    // The pod's limit, if it can be seen from here, and our own. A limit per user bounds nothing: root in a sandbox can
    // act as many users.
    let of_the_pod = number("pids.max").or_else(|| number("pids/pids.max"));
    let processes = [of_the_pod, bounds::processes_together()];
    Limits {
        memory_bytes: number("memory.max").or_else(|| number("memory/memory.limit_in_bytes")),
        cpu_millis,
        processes: processes.into_iter().flatten().min(),
        user_namespace: bounds::is_user_namespace(uids),
    }
}

#[cfg(test)]
mod tests;
