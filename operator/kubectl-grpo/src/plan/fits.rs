//! The nodes for the pods of a plan, or the reason why they do not fit, by the operator's admission.

use super::made::{Made, PlannedPod, sandbox, sandbox_row};
use super::nodes::Nodes;
use super::report::{FitRow, NodesReport, Report};
use grpo_operator_core::admission::facts::PodNeeds;
use grpo_operator_core::admission::messages::NEVER_FITS;
use grpo_operator_core::admission::placement::{copies, placement};
use kube::ResourceExt;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The name for pools that belong to no run.
const POOLS: &str = "pools that no run owns";

/// Adds the nodes to a report. Each run is placed by itself, because the operator admits one after another.
pub fn add(report: &mut Report, made: &Made, nodes: &Nodes) {
    let mut taken: Vec<PodNeeds> = nodes.bound.clone().unwrap_or_default();
    let mut fits = Vec::new();
    let alone = owned_by(made, None);
    if !alone.is_empty() {
        let (row, placed) = place(POOLS, &alone, nodes, &taken);
        taken.extend(placed);
        fits.push(row);
    }
    for run in &made.runs {
        let name = run.name_any();
        let (row, placed) = place(&format!("GrpoRun {name}"), &owned_by(made, Some(&name)), nodes, &taken);
        fits.push(row);
        let beside: Vec<&PodNeeds> = taken.iter().chain(&placed).collect();
        let pool = run.spec.sandboxes.pool_ref.as_ref().map_or(&name, |pool| &pool.name);
        count_sandboxes(report, made, pool, nodes, &beside);
    }
    // A pool without a run in the manifests.
    let beside: Vec<&PodNeeds> = taken.iter().collect();
    for pool in &made.sandboxes {
        count_sandboxes(report, made, &pool.name_any(), nodes, &beside);
    }
    let gpus = nodes.nodes.iter().filter(|node| node.usable);
    let gpus = gpus.map(|node| node.allocatable.get("nvidia.com/gpu").copied().unwrap_or(0) / 1000);
    for row in &fits {
        let Some(message) = &row.message else { continue };
        let message = format!("{}: {message}", row.of);
        match row.reason.as_deref() {
            Some(reason) if reason == NEVER_FITS.text() => report.problems.push(message),
            _ => report.warnings.push(message),
        }
    }
    report.nodes = Some(NodesReport {
        from: nodes.from.clone(),
        count: nodes.nodes.len(),
        gpus: gpus.sum(),
        pods_known: nodes.bound.is_some(),
        fits,
    });
}

fn owned_by<'a>(made: &'a Made, run: Option<&str>) -> Vec<&'a PlannedPod> {
    made.pods.iter().filter(|pod| pod.run.as_deref() == run).collect()
}

/// Places these pods; returns the row, and the pods with their nodes.
fn place(of: &str, pods: &[&PlannedPod], nodes: &Nodes, taken: &[PodNeeds]) -> (FitRow, Vec<PodNeeds>) {
    let bound: Vec<&PodNeeds> = taken.iter().collect();
    let needs: Vec<&PodNeeds> = pods.iter().map(|pod| &pod.needs).collect();
    let mut row = FitRow {
        of: of.to_owned(),
        fits: false,
        places: BTreeMap::new(),
        reason: None,
        message: None,
    };
    let places = match placement(&nodes.nodes, &bound, &needs) {
        Ok(places) => places,
        Err((reason, message)) => {
            row.reason = Some(reason.into());
            row.message = Some(message);
            return (row, Vec::new());
        }
    };
    row.fits = true;
    let mut placed = Vec::new();
    for (pod, node) in needs.iter().zip(places) {
        row.places.entry(node.to_string()).or_default().push(pod.name.clone());
        placed.push(PodNeeds {
            node: Some(Arc::clone(&node)),
            ..(*pod).clone()
        });
    }
    (row, placed)
}

/// Counts, once for each pool, the sandboxes that fit beside these pods.
fn count_sandboxes(report: &mut Report, made: &Made, pool: &str, nodes: &Nodes, beside: &[&PodNeeds]) {
    let Some(pool) = made.sandboxes.iter().find(|one| one.name_any() == pool) else {
        return;
    };
    let of = sandbox_row(pool).of;
    if let Some(row) = report
        .sandboxes
        .iter_mut()
        .find(|row| row.of == of && row.fit.is_none())
    {
        let fit = copies(&nodes.nodes, beside, &sandbox(pool), pool.spec.max_per_node);
        row.fit = Some(fit);
        if fit < row.at_most {
            report.warnings.push(format!(
                "{of}: {fit} of at most {} sandboxes fit beside the other pods; lower spec.max or their requests, or add nodes",
                row.at_most
            ));
        }
    }
}
