//! One run as a screen. Pure: the input is the GrpoRun (`grpo.dev`) as the API server has it, the output text.

use super::waits::{Wait, waits};
use crate::text::{bar, paragraph, since, table};
use grpo_contracts::reason::Reason;
use grpo_crds::grpo_run::{Mode, Phase, PlannedPods};
use grpo_crds::{GrpoRun, GrpoRunStatus, Progress, Stage};
use grpo_records::show::harmless;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;
use std::fmt::Write;

const WIDTH: usize = 100;
const BAR: usize = 30;
const INDENT: &str = "  ";
/// The number of evaluations shown, the newest first.
const EVALUATIONS_SHOWN: usize = 6;

/// Everything worth knowing about the run now.
pub fn screen(run: &GrpoRun, now: Timestamp) -> String {
    let status = run.status.clone().unwrap_or_default();
    let mut out = head(run, &status, now);
    if let Some(progress) = &status.progress {
        out += &numbers(progress, status.phase, run.spec.mode);
    }
    for wait in waits(&status) {
        out += &wait_text(&wait, now);
    }
    out += &end(run, &status);
    if let Some(objective) = &status.objective {
        let _ = write!(out, "\nObjective\n{}", paragraph(objective, INDENT, WIDTH));
    }
    out += &plan(&status.plan);
    out += &conditions(&status.conditions, now);
    harmless(&out).into_owned()
}

fn head(run: &GrpoRun, status: &GrpoRunStatus, now: Timestamp) -> String {
    let phase = status
        .phase
        .map_or_else(|| "not looked at yet".into(), |phase| format!("{phase:?}"));
    let mode = match run.spec.mode {
        Mode::Train => String::new(),
        mode => format!("{mode:?}, "),
    };
    let made = run.metadata.creation_timestamp.as_ref();
    let made = made.map_or_else(String::new, |made| format!(", made {} ago", since(made.0, now)));
    let mut out = format!(
        "GrpoRun {} in namespace {}: {mode}{phase}{made}\n",
        run.name_any(),
        run.namespace().unwrap_or_default()
    );
    if status.phase.is_none() {
        out += &paragraph(
            "The operator has not looked at it. If this stays so, look whether the operator runs: kubectl get deployments -A -l app.kubernetes.io/name=grpo-operator",
            INDENT,
            WIDTH,
        );
    }
    let behind = status
        .observed_generation
        .zip(run.metadata.generation)
        .filter(|(seen, now)| seen < now);
    if behind.is_some() {
        out += &paragraph("What follows is about the spec before its last change.", INDENT, WIDTH);
    }
    out
}

fn numbers(progress: &Progress, phase: Option<Phase>, mode: Mode) -> String {
    let mut out = String::from("\n");
    let stages: Vec<String> = match progress.stages.is_empty() {
        true => progress.stage.iter().map(|stage| format!("{stage:?}")).collect(),
        false => progress.stages.iter().map(|stage| format!("{stage:?}")).collect(),
    };
    if phase == Some(Phase::Running) && !stages.is_empty() {
        line(&mut out, "stage", &stages.join(" and "));
    }
    let counted = progress.iteration.zip(progress.iterations);
    // A run without a trainer has no iterations.
    if let Some((iteration, iterations)) = counted.filter(|_| mode.needs_trainer()) {
        // The running iteration is not done.
        let over = progress.stage == Some(Stage::Finished) || phase == Some(Phase::Succeeded);
        let done = if over { iterations } else { iteration.saturating_sub(1) };
        let bar = bar(done.into(), iterations.into(), BAR);
        line(&mut out, "iteration", &format!("{bar} {iteration}/{iterations}"));
    }
    if let (Some(done), Some(total)) = (progress.episodes_done, progress.episodes_total) {
        let bar = bar(done.into(), total.into(), BAR);
        let what = if mode == Mode::Validate { "tasks" } else { "episodes" };
        line(&mut out, what, &format!("{bar} {done}/{total}"));
    }
    let number = |value: Option<f64>, digits: usize| value.map(|value| format!("{value:.digits$}"));
    let pairs = [
        ("resolved", number(progress.resolved_rate, 2)),
        ("reward", number(progress.reward, 3)),
        ("loss", number(progress.loss, 4)),
        ("weights", progress.weights.clone()),
        ("voids", progress.void.map(|void| void.to_string())),
        ("staleness", progress.staleness.map(|staleness| staleness.to_string())),
    ];
    let words: Vec<String> = pairs
        .into_iter()
        .filter_map(|(name, value)| value.map(|value| format!("{name} {value}")))
        .collect();
    if !words.is_empty() {
        line(&mut out, "so far", &words.join("   "));
    }
    let skipped = progress.evaluations.len().saturating_sub(EVALUATIONS_SHOWN);
    for evaluation in progress.evaluations.iter().skip(skipped) {
        let rate = format!(
            "{:.2} of {} episodes under {}",
            evaluation.resolved_rate, evaluation.episodes, evaluation.weights
        );
        line(&mut out, &evaluation.set, &rate);
    }
    if let Some(message) = &progress.message {
        out += &paragraph(message, INDENT, WIDTH);
    }
    out
}

fn line(out: &mut String, name: &str, value: &str) {
    let _ = writeln!(out, "{INDENT}{name:<12} {value}");
}

fn wait_text(wait: &Wait, now: Timestamp) -> String {
    let thing = match wait.thing.as_str() {
        "" => String::new(),
        thing => format!(" for {thing}"),
    };
    format!(
        "\nIt has waited {}{thing} ({})\n{}{}",
        since(wait.since, now),
        wait.reason,
        paragraph(&wait.message, INDENT, WIDTH),
        what_to_do(&wait.reason)
    )
}

/// Where the reason is explained: an operator of another version may have reasons that this plugin does not know.
fn what_to_do(reason: &str) -> String {
    match Reason::named(reason) {
        Some(reason) => format!("{INDENT}what to do: kubectl grpo explain {reason}\n"),
        None => String::new(),
    }
}

/// The cause of the run's end or pause, and the next step.
fn end(run: &GrpoRun, status: &GrpoRunStatus) -> String {
    let (name, namespace) = (run.name_any(), run.namespace().unwrap_or_default());
    let said = |type_: &str| {
        status
            .conditions
            .iter()
            .find(|condition| condition.type_ == type_ && condition.status == "True")
    };
    match status.phase {
        Some(Phase::Failed) => {
            let failed = said("Failed");
            let reason = failed.map_or("Failed", |condition| condition.reason.as_str());
            let message = failed
                .map(|condition| condition.message.as_str())
                .or(status.message.as_deref())
                .unwrap_or_default();
            let mut words = format!(
                "\nIt failed: {reason}\n{}{}{INDENT}last lines: kubectl grpo logs {name} -n {namespace}\n",
                paragraph(message, INDENT, WIDTH),
                what_to_do(reason),
            );
            if run.spec.mode.needs_engines() {
                words += &format!("{INDENT}episodes:   kubectl grpo episodes {name} -n {namespace}\n");
            }
            words
        }
        Some(Phase::Succeeded | Phase::Suspended | Phase::Terminating) => {
            let mut words = status.message.as_deref().map_or_else(String::new, |message| {
                format!("\n{}", paragraph(message, INDENT, WIDTH))
            });
            if status.phase == Some(Phase::Succeeded) && run.spec.mode == Mode::Validate {
                words += &format!("{INDENT}fit tasks: kubectl grpo validated {name} -n {namespace}\n");
            }
            words
        }
        _ => String::new(),
    }
}

fn plan(plan: &[PlannedPods]) -> String {
    if plan.is_empty() {
        return String::new();
    }
    let rows: Vec<Vec<String>> = plan
        .iter()
        .map(|pods| {
            // The number of sandboxes varies; their pool counts them.
            let running = pods.running.filter(|_| !pods.pods.contains('-'));
            vec![
                format!("{INDENT}{}", pods.role),
                pods.pods.clone(),
                running.map_or_else(|| "-".into(), |running| running.to_string()),
                pods.each.clone().unwrap_or_default(),
            ]
        })
        .collect();
    format!("\n{}", table(&["PLAN", "PODS", "RUNNING", "EACH"], &rows))
}

/// Conditions with information: a condition that the run has not reached yet is left out.
fn conditions(conditions: &[Condition], now: Timestamp) -> String {
    let rows: Vec<Vec<String>> = conditions
        .iter()
        .filter(|condition| {
            !(condition.status == "False" && matches!(condition.reason.as_str(), "NotFinished" | "Finished"))
        })
        .map(|condition| {
            vec![
                format!("{INDENT}{}", condition.type_),
                condition.status.clone(),
                condition.reason.clone(),
                since(condition.last_transition_time.0, now),
            ]
        })
        .collect();
    match rows.is_empty() {
        true => String::new(),
        false => format!("\n{}", table(&["CONDITION", "IS", "REASON", "SINCE"], &rows)),
    }
}
