//! Where pods would go on nodes, or why they do not fit: what `kubectl grpo plan` asks, by the search and in the words
//! of admission. Pure.

use std::sync::Arc;

use grpo_contracts::reason::Reason;

use super::{
    facts::{NodeFacts, PodNeeds},
    fit::{Budget, Capacity, StorePlace, place},
    messages,
};

/// The most copies that are counted.
const MOST_COPIES: u32 = 10_000;

/// The node of each of these pods, in their order, beside the pods that are on nodes already. Otherwise the reason and
/// the message that a run with these pods is told.
pub fn placement(
    nodes: &[NodeFacts],
    bound: &[&PodNeeds],
    pods: &[&PodNeeds],
) -> Result<Vec<Arc<str>>, (Reason, String)> {
    let mut budget = Budget::default();
    let capacity = Capacity::free(nodes, bound);
    if let Some(places) = place(&capacity, pods, StorePlace::default(), &mut budget) {
        return Ok(places);
    }
    let verdict = messages::does_not_fit(pods, &[], Some(&capacity), nodes, &mut budget);
    Err((verdict.reason, verdict.message))
}

/// How many pods like this one fit beside the pods that are on nodes, at most `per_node` on each.
pub fn copies(nodes: &[NodeFacts], bound: &[&PodNeeds], pod: &PodNeeds, per_node: Option<u32>) -> u32 {
    let Some(member) = &pod.member else { return 0 };
    let capacity = Capacity::free(nodes, bound);
    let on = |(node, free): &(&NodeFacts, super::facts::Amounts)| -> u32 {
        if !node.admits(member) {
            return 0;
        }
        let of = |(resource, amount): (&Arc<str>, &i64)| {
            let free = free.get(resource).copied().unwrap_or(0).max(0);
            u32::try_from(free / (*amount).max(1)).unwrap_or(MOST_COPIES)
        };
        let fit = pod.requests.iter().map(of).min().unwrap_or(0);
        per_node.map_or(fit, |most| fit.min(most))
    };
    let all = capacity.nodes.iter().map(on);
    all.fold(0, |sum, fit| sum.saturating_add(fit).min(MOST_COPIES))
}

#[cfg(test)]
mod tests;
