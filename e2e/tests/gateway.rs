//! The processes of the sandbox gateway and sandboxd, on a control plane without nodes: the cost of leases for the API
//! server, the delay for callers of a killed gateway, the gateway's memory, and that killed and misled gateways give
//! nothing twice. The short variants of `make bench-sandbox`.
//!
//! Needs the programs that `make setup` builds, the gateway's binary and sandboxd's: `make test-operator`.

use crate::support::bars::judge;
use grpo_bench::sandbox_bench::{SandboxBenchError, chaos, exec, leases, refill, restart};

/// Writes and memory do not depend on how busy the machine is.
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
