//! The operator on a control plane without nodes: its costs, its behavior in outages, and whether it places runs whole.
//! The short variants of `make bench-operator`.
//!
//! Needs the programs that `make setup` builds and the operator's binary: `make test-operator`.

use crate::support::bars::judge;
use grpo_bench::operator_bench::{RigError, capacity, outages, rest};

/// Memory and requests do not depend on how busy the machine is.
fn counts(unit: &str) -> bool {
    !matches!(unit, "ms" | "events/s")
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "starts a control plane: make test-operator"]
async fn an_operator_at_rest_asks_for_nothing_and_answers_each_event() -> Result<(), RigError> {
    judge(rest::measure(rest::Scale::SHORT).await, counts)
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "starts a control plane: make test-operator"]
async fn outages_kills_and_a_second_operator_make_nothing_anew_and_lose_nothing() -> Result<(), RigError> {
    judge(outages::measure(outages::Scale::SHORT).await, counts)
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "starts a control plane: make test-operator"]
async fn runs_that_do_not_fit_together_are_placed_whole_one_after_the_other() -> Result<(), RigError> {
    judge(capacity::measure(capacity::Scale::SHORT).await, counts)
}
