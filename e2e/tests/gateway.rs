//! The sandbox gateway's process on a control plane without nodes, and sandboxd's: what leases cost the API server,
//! what a killed gateway costs those who wait, how much memory it takes, and that nothing is given twice by gateways
//! that are killed and misled. The short variants of `make bench-sandbox`.
//!
//! Needs the programs that `make setup` builds, the gateway's binary and sandboxd's: `make test-operator`.

use crate::support::bars::judge;
use grpo_bench::sandbox_bench::{SandboxBenchError, chaos, exec, leases, refill, restart};

/// Writes and memory mean the same on a busy machine.
fn counts(unit: &str) -> bool {
    matches!(unit, "writes" | "MiB" | "pods" | "sandboxes" | "leases")
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "starts a control plane; run by make test-operator"]
async fn leases_that_come_together_share_their_writes_and_one_alone_takes_three_at_most()
-> Result<(), SandboxBenchError> {
    judge(leases::measure(leases::Scale::SHORT).await, counts)
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "starts a control plane; run by make test-operator"]
async fn a_pool_fills_beside_a_client_that_does_nothing_else() -> Result<(), SandboxBenchError> {
    judge(refill::measure(refill::Scale::SHORT).await, counts)
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "starts a control plane; run by make test-operator"]
async fn a_gateway_that_was_killed_has_every_lease_and_gives_out_the_next() -> Result<(), SandboxBenchError> {
    judge(restart::measure(restart::Scale::SHORT).await, counts)
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "starts a control plane; run by make test-operator"]
async fn commands_run_straight_and_through_a_gateway_that_leased_a_real_sandboxd() -> Result<(), SandboxBenchError> {
    judge(exec::measure(exec::Scale::SHORT).await, counts)
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "starts a control plane; run by make test-operator"]
async fn gateways_that_are_killed_and_misled_give_no_sandbox_twice_and_make_no_pod_too_many()
-> Result<(), SandboxBenchError> {
    judge(chaos::measure(chaos::Scale::SHORT).await, counts)
}
