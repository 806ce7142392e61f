//! Finds whether pods fit onto nodes all at once, and a node for each. Pure.
//!
//! A search with backtracking: pods by falling size, each first where it leaves least, so it finds a fit also if sizes
//! do not divide each other. Equal nodes are tried once, and nodes that a pod avoids last. The search is bounded;
//! beyond the bound pods count as not fitting, which is safe: the run waits.

use std::{cmp::Reverse, sync::Arc};

use super::facts::{Amounts, Member, NodeFacts, PodNeeds, VolumeTerms, add};

/// Maximum tries of one search, and of all searches of one decision together.
const TRIES: usize = 20_000;
const ALL_TRIES: usize = 200_000;

/// The remaining tries of one decision: a thousand waiting runs must not delay the cluster's events.
#[derive(Debug)]
pub struct Budget(usize);

impl Default for Budget {
    fn default() -> Self {
        Self(ALL_TRIES)
    }
}

/// The resource that decides a pod's size first.
pub const GPU: &str = "nvidia.com/gpu";

/// Nodes with their free amounts.
#[derive(Clone, Debug)]
pub struct Capacity<'a> {
    pub nodes: Vec<(&'a NodeFacts, Amounts)>,
}

/// Where pods that mount a run's volumes must go.
#[derive(Clone, Copy, Debug, Default)]
pub struct VolumePlaces<'a> {
    /// The node of bound pods that share the store's volume.
    pub node: Option<&'a str>,
    /// Node requirements of all volumes. `None`: no requirement.
    pub terms: Option<&'a VolumeTerms>,
}

/// Pods that go onto one node together: usually one.
struct Item<'a> {
    pods: Vec<usize>,
    needs: Amounts,
    /// The only possible node, if already decided.
    only: Option<&'a str>,
}

impl<'a> Capacity<'a> {
    /// Free amounts of the nodes with these pods. Reservations of the scheduler count as used: a pod placed there would
    /// wait in vain.
    pub fn free(nodes: &'a [NodeFacts], pods: &[&PodNeeds]) -> Self {
        let mut capacity = Self::total(nodes);
        for pod in pods {
            if let Some(node) = pod.node.as_ref().or(pod.promised.as_ref()) {
                capacity.take(node, &pod.requests);
            }
        }
        capacity
    }

    /// The free amounts without these pods.
    pub fn without(&self, pods: &[&PodNeeds]) -> Self {
        let mut capacity = self.clone();
        for pod in pods {
            let mut nodes = capacity.nodes.iter_mut();
            if let Some((_, free)) = nodes.find(|(node, _)| Some(node.name.as_str()) == pod.node.as_deref()) {
                change(free, &pod.requests, 1);
            }
        }
        capacity
    }

    /// The full amounts of the nodes, as if no pod ran.
    pub fn total(nodes: &'a [NodeFacts]) -> Self {
        Self {
            nodes: nodes.iter().map(|node| (node, node.allocatable.clone())).collect(),
        }
    }

    pub fn take(&mut self, node: &str, needs: &Amounts) {
        if let Some((_, free)) = self.nodes.iter_mut().find(|(facts, _)| facts.name == node) {
            for (resource, amount) in needs {
                *free.entry(resource.clone()).or_insert(0) -= amount;
            }
        }
    }
}

/// Returns the node of each pod, in the pods' order, if all of them fit.
pub fn place(
    capacity: &Capacity<'_>,
    pods: &[&PodNeeds],
    volumes: VolumePlaces<'_>,
    budget: &mut Budget,
) -> Option<Vec<Arc<str>>> {
    let items = items(pods, volumes.node);
    let of_nodes = |is: &dyn Fn(&NodeFacts, &Item<'_>) -> bool| -> Vec<Vec<bool>> {
        let nodes = capacity.nodes.iter();
        nodes
            .map(|(node, _)| items.iter().map(|item| is(node, item)).collect())
            .collect()
    };
    let admitted = of_nodes(&|node, item| is_admitted(node, item, pods, volumes.terms));
    let avoided = of_nodes(&|node, item| is_avoided(node, item, pods));
    let mut search = Search {
        free: capacity.nodes.iter().map(|(_, free)| free.clone()).collect(),
        items: &items,
        admitted: &admitted,
        avoided: &avoided,
        chosen: Vec::with_capacity(items.len()),
        tries: TRIES.min(budget.0),
    };
    let allowed = search.tries;
    let placed = search.place_from(0);
    budget.0 -= allowed - search.tries;
    if !placed {
        return None;
    }
    let mut nodes: Vec<Arc<str>> = vec![Arc::from(""); pods.len()];
    for (item, node) in items.iter().zip(&search.chosen) {
        for pod in &item.pods {
            nodes[*pod] = Arc::from(capacity.nodes[*node].0.name.as_str());
        }
    }
    Some(nodes)
}

fn items<'a>(pods: &[&PodNeeds], store_node: Option<&'a str>) -> Vec<Item<'a>> {
    let is_together = |pod: &PodNeeds| pod.member.as_ref().is_some_and(|member| member.together);
    let mut together = Item {
        pods: Vec::new(),
        needs: Amounts::new(),
        only: store_node,
    };
    let mut items = Vec::new();
    for (n, pod) in pods.iter().enumerate() {
        if is_together(pod) {
            together.pods.push(n);
            add(&mut together.needs, &pod.requests);
        } else {
            items.push(Item {
                pods: vec![n],
                needs: (*pod.requests).clone(),
                only: None,
            });
        }
    }
    if !together.pods.is_empty() {
        items.push(together);
    }
    items.sort_by_cached_key(|item| Reverse(size(&item.needs)));
    items
}

/// Devices first, because they are scarce.
fn size(needs: &Amounts) -> (i64, i64, i64, i64) {
    let of = |resource: &str| needs.get(resource).copied().unwrap_or(0);
    let others = needs
        .iter()
        .filter(|(resource, _)| resource.contains('/') && &***resource != GPU)
        .map(|(_, amount)| *amount)
        .sum();
    (of(GPU), others, of("cpu"), of("memory"))
}

fn is_admitted(node: &NodeFacts, item: &Item<'_>, pods: &[&PodNeeds], volumes: Option<&VolumeTerms>) -> bool {
    let reaches = |member: &Member| volumes.is_none_or(|volumes| node.reaches(member, volumes));
    let admits = |member: &Member| node.admits(member) && reaches(member);
    item.only.is_none_or(|only| only == node.name)
        && item
            .pods
            .iter()
            .all(|pod| pods[*pod].member.as_deref().is_some_and(admits))
}

fn is_avoided(node: &NodeFacts, item: &Item<'_>, pods: &[&PodNeeds]) -> bool {
    item.pods.iter().any(|pod| {
        let member = pods[*pod].member.as_ref();
        member.is_some_and(|member| member.avoids.contains(&node.name))
    })
}

struct Search<'a> {
    free: Vec<Amounts>,
    items: &'a [Item<'a>],
    /// By node, whether each item may go there.
    admitted: &'a [Vec<bool>],
    /// By node, whether each item prefers to avoid it.
    avoided: &'a [Vec<bool>],
    chosen: Vec<usize>,
    tries: usize,
}

impl Search<'_> {
    fn place_from(&mut self, n: usize) -> bool {
        let Some(item) = self.items.get(n) else { return true };
        let mut nodes: Vec<usize> = (0..self.free.len())
            .filter(|node| self.admitted[*node][n] && fits_into(&self.free[*node], &item.needs))
            .collect();
        nodes.sort_by_cached_key(|node| (self.avoided[*node][n], size(&self.free[*node])));
        let mut tried: Vec<usize> = Vec::new();
        for node in nodes {
            let alike = |other: &usize| {
                self.free[*other] == self.free[node]
                    && self.admitted[*other] == self.admitted[node]
                    && self.avoided[*other] == self.avoided[node]
            };
            if tried.iter().any(alike) {
                continue;
            }
            tried.push(node);
            if self.tries == 0 {
                return false;
            }
            self.tries -= 1;
            change(&mut self.free[node], &item.needs, -1);
            self.chosen.push(node);
            if self.place_from(n + 1) {
                return true;
            }
            self.chosen.pop();
            change(&mut self.free[node], &item.needs, 1);
        }
        false
    }
}

fn fits_into(free: &Amounts, needs: &Amounts) -> bool {
    needs
        .iter()
        .all(|(resource, amount)| free.get(resource).copied().unwrap_or(0) >= *amount)
}

fn change(free: &mut Amounts, needs: &Amounts, sign: i64) {
    for (resource, amount) in needs {
        *free.entry(resource.clone()).or_insert(0) += sign * amount;
    }
}
