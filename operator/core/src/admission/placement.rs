//! Where pods would go on nodes, or why they do not fit: for `kubectl grpo plan`, with admission's search and messages.
//! Pure.

use std::sync::Arc;

use grpo_contracts::reason::Reason;

use super::{
    facts::{NodeFacts, PodNeeds, VolumeTerms},
    fit::{Budget, Capacity, VolumePlaces, place},
    messages,
};

/// Maximum number of copies counted.
const MOST_COPIES: u32 = 10_000;

/// Returns the node of each of these pods, in their order, next to the pods already on nodes. Otherwise returns the
/// reason and the message for a run with these pods.
pub fn placement(
    nodes: &[NodeFacts],
    bound: &[&PodNeeds],
    pods: &[&PodNeeds],
) -> Result<Vec<Arc<str>>, (Reason, String)> {
    let mut budget = Budget::default();
    let capacity = Capacity::free(nodes, bound);
    if let Some(places) = place(&capacity, pods, VolumePlaces::default(), &mut budget) {
        return Ok(places);
    }
    let verdict = messages::does_not_fit(pods, &VolumeTerms::new(), Some(&capacity), nodes, &mut budget);
    Err((verdict.reason, verdict.message))
}

/// Number of pods like this one that fit next to the pods already on nodes, at most `per_node` on each.
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
