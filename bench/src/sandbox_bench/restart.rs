//! Figure 7: a gateway with a large pool is killed and restarted at once: the time until the next lease, and its
//! memory.

use std::time::{Duration, Instant};

use futures::{StreamExt, TryStreamExt, stream};
use grpo_sandbox_protocol::Priority;
use hyper::Method;

use super::{
    SandboxBenchError, median,
    rig::{Gateway, Rig},
};
use grpo_bench_report::Row;

/// Deadline for the next lease.
const PATIENCE: Duration = Duration::from_secs(60);

/// The size of the measurement.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    pub sandboxes: usize,
    /// The number of leased sandboxes.
    pub leased: usize,
    pub kills: usize,
}

impl Scale {
    pub const FULL: Self = Self {
        sandboxes: 10_000,
        leased: 5_000,
        kills: 5,
    };
    pub const SHORT: Self = Self {
        sandboxes: 300,
        leased: 150,
        kills: 1,
    };
}

pub async fn measure(scale: Scale) -> Result<Vec<Row>, SandboxBenchError> {
    let rig = Rig::start(scale.sandboxes).await?;
    let mut gateway = rig.gateway()?;
    gateway.serves().await?;
    gateway.caller.want(scale.sandboxes).await?;
    gateway.until_ready(scale.sandboxes).await?;
    lease(&gateway, scale.leased).await?;
    let before = (gateway.part.memory("VmRSS:"), gateway.part.memory("VmHWM:"));
    let (mut until_lease, mut until_ready) = (Vec::new(), Vec::new());
    let mut after = (None, None);
    for kill in 0..scale.kills {
        let began = Instant::now();
        gateway.part.kill().await?;
        gateway = rig.gateway()?;
        next_lease(&gateway, kill, began).await?;
        until_lease.push(began.elapsed().as_secs_f64());
        gateway.serves().await?;
        until_ready.push(began.elapsed().as_secs_f64());
        still_held(&gateway, scale.leased).await?;
        gateway.until_ready(scale.sandboxes - scale.leased - kill - 1).await?;
        after = (gateway.part.memory("VmRSS:"), gateway.part.memory("VmHWM:"));
    }
    let of = format!("7: {} sandboxes, {} leased", scale.sandboxes, scale.leased);
    let slowest = until_lease.iter().copied().max_by(f64::total_cmp);
    Ok(vec![
        Row::new(
            format!(
                "{of}: gateway killed and started, until the next lease, median of {}",
                scale.kills
            ),
            median(until_lease),
            "s",
            Some("<= 2"),
        ),
        Row::new(
            format!("{of}: gateway killed and started, until the next lease, slowest"),
            slowest,
            "s",
            None,
        ),
        Row::new(
            format!("{of}: gateway killed and started, until it is ready"),
            median(until_ready),
            "s",
            None,
        ),
        Row::new(format!("{of}: the gateway's memory"), before.0, "MiB", Some("<= 64")),
        Row::new(
            format!("{of}: the gateway's memory, most since it began"),
            before.1,
            "MiB",
            None,
        ),
        Row::new(
            format!("{of}: the gateway's memory after it was started again"),
            after.0,
            "MiB",
            Some("<= 64"),
        ),
        Row::new(
            format!("{of}: the gateway's memory, most since it was started again"),
            after.1,
            "MiB",
            None,
        ),
    ])
}

fn name(number: usize) -> String {
    format!("held-{number}")
}

async fn lease(gateway: &Gateway, count: usize) -> Result<(), SandboxBenchError> {
    stream::iter((0..count).map(name))
        .map(async |name| gateway.caller.lease(&name, Priority::Agent).await)
        .buffer_unordered(128)
        .try_for_each(async |_| Ok(()))
        .await
}

/// Calls until there is an answer: at first no process listens on the port.
async fn next_lease(gateway: &Gateway, kill: usize, began: Instant) -> Result<(), SandboxBenchError> {
    loop {
        match gateway.caller.lease(&format!("next-{kill}"), Priority::Agent).await {
            Ok(_) => return Ok(()),
            Err(error) if began.elapsed() > PATIENCE => return Err(error),
            Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
        }
    }
}

/// Checks that every earlier lease is still held.
async fn still_held(gateway: &Gateway, count: usize) -> Result<(), SandboxBenchError> {
    for number in (0..count).step_by((count / 50).max(1)) {
        gateway
            .caller
            .ask(Method::GET, &format!("/v1/leases/{}", name(number)), ())
            .await?;
    }
    Ok(())
}
