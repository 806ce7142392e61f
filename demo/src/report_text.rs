//! The report as text for a terminal: the curve, the rates with their intervals, the learnt steps, and the paths of all
//! files.

use crate::curve;
use crate::report::{Report, SetReport};
use crate::statistics::Estimate;
use std::fmt::Write;
use std::path::Path;

/// The whole text.
pub fn text(report: &Report, store: &Path, json: &Path, example: Option<&str>) -> String {
    let mut out = String::new();
    head(&mut out, report);
    if report.iterations.iter().any(|i| i.rate.is_some()) {
        out += "\nResolved, by iteration (different tasks each time, so single bars jump about):\n";
        let points: Vec<(String, f64)> = report
            .iterations
            .iter()
            .filter_map(|i| Some((i.iteration.to_string(), i.rate?)))
            .collect();
        out += &curve::draw(&points);
    }
    for (name, set) in &report.sets {
        set_text(&mut out, name, set);
    }
    out += "\nWhere it is:\n";
    line(&mut out, "store", &store.display().to_string());
    line(&mut out, "report", &json.display().to_string());
    if let Some(episode) = example {
        let _ = write!(
            out,
            "\nOne episode, turn by turn:\n  grpo-demo show --store {} {episode}\nRecompute all of this from token ids and grader logs:\n  make verify-demo\n",
            store.display()
        );
    }
    out
}

fn line(out: &mut String, name: &str, value: &str) {
    let _ = writeln!(out, "  {name:<28} {value}");
}

fn head(out: &mut String, report: &Report) {
    let seconds = |s: Option<f64>| s.map_or("unknown".into(), |s| format!("{s:.0} s"));
    let _ = writeln!(out, "\nGrpoRun {}: {}", report.run, report.phase);
    line(out, "set-up", &seconds(report.setup_seconds));
    line(out, "run", &seconds(report.run_seconds));
    line(out, "voids", &report.void.to_string());
    let gap = report.logprob_gap_max.map_or("unknown".into(), |g| format!("{g:.1e}"));
    line(out, "largest logprob gap", &gap);
}

fn set_text(out: &mut String, name: &str, set: &SetReport) {
    let _ = writeln!(
        out,
        "\nFixed set {name}: {} tasks in {} functions, {} samples each; 95 % intervals by bootstrap over functions",
        set.tasks, set.functions, set.samples
    );
    let points = |e: Option<Estimate>| e.map_or("-".into(), |e| interval(e, 100.0));
    line(out, "resolved before", &format!("{} %", points(set.before)));
    line(out, "resolved after", &format!("{} %", points(set.after)));
    if let Some(gain) = set.gain {
        let word = if gain.is_above_zero() {
            "the interval excludes 0"
        } else {
            "the interval contains 0: this run alone does not show it"
        };
        line(out, "gain", &format!("{} points; {word}", points(set.gain)));
    }
    if let Some(pass) = set.pass_at_samples {
        line(out, &format!("pass@{} before", set.samples), &percent(Some(pass)));
    }
    if let Some((edit, share)) = &set.best_constant_edit {
        line(
            out,
            "best constant edit (floor)",
            &format!("{} ({edit})", percent(Some(*share))),
        );
    }
    if set.untrained_kinds.before.is_some() {
        let (before, after) = (percent(set.untrained_kinds.before), percent(set.untrained_kinds.after));
        line(out, "kinds of bug never trained", &format!("{before} -> {after}"));
    }
    if set.weights.1.is_empty() {
        return;
    }
    let _ = writeln!(out, "  {:<28} {:>8} {:>8}", "what was learnt", "before", "after");
    for ((name, before, is_share), (_, after, _)) in
        set.learnt_before.figures().into_iter().zip(set.learnt_after.figures())
    {
        let show = |v: Option<f64>| match (v, is_share) {
            (Some(v), true) => percent(Some(v)),
            (Some(v), false) => format!("{v:.2}"),
            (None, _) => "-".into(),
        };
        let _ = writeln!(out, "  {name:<28} {:>8} {:>8}", show(before), show(after));
    }
}

fn percent(share: Option<f64>) -> String {
    share.map_or("-".into(), |s| format!("{:.1} %", s * 100.0))
}

/// `31.2 [24.0, 38.1]`.
pub fn interval(e: Estimate, scale: f64) -> String {
    format!("{:.1} [{:.1}, {:.1}]", e.value * scale, e.low * scale, e.high * scale)
}

#[cfg(test)]
mod tests;
