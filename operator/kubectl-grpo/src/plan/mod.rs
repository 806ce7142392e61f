//! `kubectl grpo plan`: the effect of manifests on a cluster, before they are applied.
//!
//! ```text
//! files ─► documents ─► rules (schema, CEL) ─► preview (the operator's decisions) ─► report ─► table or JSON
//!                                                        nodes (a file, the cluster) ─┘
//! ```
//!
//! Pods, sizes and places come from the operator's own functions (`grpo-operator-core`), so a plan shows the operator's
//! decisions.

pub mod error;
pub mod fits;
pub mod input;
pub mod made;
pub mod needs;
pub mod nodes;
pub mod report;
pub mod rules;
pub mod sizes;
pub mod text;

use crate::arguments::ClusterOptions;
use crate::arguments::plan::{PlanForm, PlanOptions};
use crate::cluster::Cluster;
use crate::error::Error;
use crate::output;
use error::PlanError;
use grpo_contracts::support::unsupported;
use grpo_crds::GrpoRun;
use grpo_operator_core::preview::{self, Surroundings};
use grpo_operator_core::settings::Settings;
use input::Document;
use jiff::Timestamp;
use kube::ResourceExt;
use made::Made;
use nodes::Nodes;
use report::{ManifestReport, Report};
use rules::Rules;
use serde_json::Value;
use std::path::Path;

/// The namespace of manifests without one, if neither command line nor cluster names one.
const NAMESPACE: &str = "default";

pub async fn plan(options: &ClusterOptions, wanted: &PlanOptions) -> Result<(), Error> {
    let documents = input::read(&wanted.files)?;
    let mut namespace = options.namespace.clone();
    let nodes = match (&wanted.nodes, wanted.server) {
        (Some(file), _) => Some(nodes::of_file(file)?),
        (None, true) => {
            let cluster = Cluster::connect(options).await?;
            let found = nodes::of_cluster(&cluster, |said| eprintln!("warning: {said}")).await?;
            namespace = Some(cluster.namespace);
            Some(found)
        }
        (None, false) => None,
    };
    let namespace = namespace.unwrap_or_else(|| NAMESPACE.to_owned());
    let (report, _) = report_of(&documents, nodes.as_ref(), &namespace)?;
    let text = match wanted.output {
        PlanForm::Table => text::text(&report),
        PlanForm::Json => serde_json::to_string_pretty(&report).map_err(PlanError::Json)? + "\n",
    };
    output::write(Path::new("-"), &text)?;
    match report.problems.len() {
        0 => Ok(()),
        problems => Err(PlanError::Problems(problems).into()),
    }
}

/// The plan, and the objects behind it.
pub fn report_of(
    documents: &[Document],
    nodes: Option<&Nodes>,
    namespace: &str,
) -> Result<(Report, Vec<Value>), PlanError> {
    let mut report = Report::default();
    let accepted = checked(documents, &mut report)?;
    let mut settings = Settings::defaults().map_err(|error| PlanError::Settings(error.to_string()))?;
    // Such a run is a problem of the report already; its plan is computed anyway.
    settings.admit_unsupported = true;
    let around = Surroundings {
        namespace,
        settings: &settings,
        now: Timestamp::now(),
        gpu_memory: nodes.and_then(Nodes::gpu_memory),
    };
    let objects = preview::objects(&accepted, &around)?;
    let made = Made::of(&objects)?;
    report.pods = made.rows();
    report.shared_gpus = made.shared_gpus.total();
    report.sandboxes = made.sandboxes.iter().map(made::sandbox_row).collect();
    let product = nodes.and_then(Nodes::gpu_product);
    sizes::add(
        &mut report,
        &made,
        around.gpu_memory.map(|mebibytes| mebibytes << 20),
        product,
    );
    report.needs = needs::needs(&made, &objects, documents);
    for run in &made.runs {
        not_executed(run, &mut report);
        let standing = preview::standing(run, &objects, &around)?;
        if !needs::is_free(run, &standing.reason) && !needs::is_unseen(&standing.reason) {
            report
                .problems
                .push(format!("GrpoRun {}: {}", run.name_any(), standing.message));
        }
    }
    if let Some(nodes) = nodes {
        fits::add(&mut report, &made, nodes);
        if report.shared_gpus > 0 {
            report.warnings.push(format!(
                "the {} shared GPUs are devices of dynamic resource allocation, which nodes do not list: whether they are free is not counted here; `kubectl get resourceslices` shows them",
                report.shared_gpus
            ));
        }
    }
    Ok((report, objects))
}

/// The manifests that the API server would accept.
fn checked(documents: &[Document], report: &mut Report) -> Result<Vec<Value>, PlanError> {
    let mut rules = Rules::new()?;
    let mut accepted = Vec::new();
    for document in documents {
        if !document.is_ours() || !rules.knows(document.kind()) {
            continue;
        }
        let mut manifest = rules.without_nulls(&document.value);
        let judged = rules.judge(&manifest);
        if manifest["spec"]["suspend"] == true {
            manifest["spec"]["suspend"] = false.into();
            report.warnings.push(format!(
                "{} {} is suspended (spec.suspend): this is the plan for its resumption",
                document.kind(),
                document.name()
            ));
        }
        let words = |said: &String| format!("{} {}: {said}", document.kind(), document.name());
        report.problems.extend(judged.refused.iter().map(words));
        if judged.refused.is_empty() {
            accepted.push(manifest);
        }
        report.manifests.push(ManifestReport {
            kind: document.kind().to_owned(),
            name: document.name().to_owned(),
            file: document.file.display().to_string(),
            refused: judged.refused,
            unchecked: judged.unchecked,
            not_executed: Vec::new(),
        });
    }
    match report.manifests.is_empty() {
        true => Err(PlanError::NothingToPlan {
            files: files(documents),
        }),
        false => Ok(accepted),
    }
}

fn files(documents: &[Document]) -> String {
    let mut files: Vec<String> = documents
        .iter()
        .map(|document| document.file.display().to_string())
        .collect();
    files.dedup();
    match files.is_empty() {
        true => "what was given".to_owned(),
        false => files.join(", "),
    }
}

/// Fields because of which the operator refuses the run before it creates anything.
fn not_executed(run: &GrpoRun, report: &mut Report) {
    let name = run.name_any();
    let found = unsupported(&run.spec).into_iter();
    let found: Vec<String> = found
        .map(|one| {
            format!(
                "spec.{}: {} is not executed by this version: {}",
                one.path, one.value, one.remedy
            )
        })
        .collect();
    let words = |said: &String| format!("GrpoRun {name}: {said}");
    report.problems.extend(found.iter().map(words));
    let mut manifests = report.manifests.iter_mut();
    if let Some(manifest) = manifests.find(|manifest| manifest.kind == "GrpoRun" && manifest.name == name) {
        manifest.not_executed = found;
    }
}

#[cfg(test)]
mod tests;
