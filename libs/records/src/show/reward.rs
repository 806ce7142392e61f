//! An episode's reward, part by part.

use super::block::block;
use crate::look::EpisodeView;
use crate::look::worth::Worth;
use crate::reward::{Charge, ShapedParts};
use crate::{EpisodeMeta, GradeRecord, ProcessRule, ProcessScores};

/// Writes nothing for an episode without a reward.
pub(super) fn lines(out: &mut String, view: &EpisodeView) {
    let Some((meta, reward)) = view.episode.meta.as_ref().and_then(|meta| Some((meta, meta.reward?))) else {
        return;
    };
    let lines = match &view.worth {
        Some(worth) => parts(meta, worth),
        None => vec!["the journal does not have the rule of this run".to_owned()],
    };
    let title = format!("reward {}", number(f64::from(reward)));
    block(out, &title, &lines.join("\n"));
}

fn parts(meta: &EpisodeMeta, worth: &Worth) -> Vec<String> {
    let mut lines = vec![format!("verdict {}: {}", meta.outcome, number(worth.parts.verdict))];
    if let Some(shaped) = &worth.parts.shaped {
        lines.extend(shaping(shaped, meta.grade.as_ref(), worth.parts.by_rule()));
    }
    if let Some(answer) = &worth.answer {
        let said = number(f64::from(answer.reward));
        lines.push(match (&answer.refused, &answer.note) {
            (Some(why), _) => format!("hook: {said}, because the service refuses the question: {why}"),
            (None, Some(note)) => format!("hook: the service says {said}: {note}"),
            (None, None) => format!("hook: the service says {said}"),
        });
    }
    if let (Some(rule), Some(scores)) = (&worth.process, &meta.process) {
        lines.extend(process(rule, scores));
    }
    lines
}

fn shaping(shaped: &ShapedParts, grade: Option<&GradeRecord>, by_rule: f64) -> Vec<String> {
    let counts = grade
        .map(|grade| (grade.fail_to_pass, grade.pass_to_pass))
        .unwrap_or_default();
    let passed = counts.0.passed + counts.1.passed;
    let all = passed + counts.0.failed + counts.1.failed;
    let charge = |what: &str, charge: Charge| format!("shaping, {what}: {}: -{}", charge.count, number(charge.cost));
    let mut lines = vec![
        format!("tests: {passed} of {all} pass: +{}", number(shaped.tests)),
        charge("turns", shaped.turns),
    ];
    lines.extend(
        shaped
            .calls
            .iter()
            .map(|(name, cost)| charge(&format!("calls of {name}"), *cost)),
    );
    lines.push(charge("lines of the patch", shaped.patch_lines));
    let bound = |bound: Option<f64>| bound.map_or_else(|| "none".to_owned(), number);
    if shaped.low.is_some() || shaped.high.is_some() {
        let (low, high) = (bound(shaped.low), bound(shaped.high));
        lines.push(format!("by the rule, from {low} to {high}: {}", number(by_rule)));
    }
    lines
}

fn process(rule: &ProcessRule, scores: &ProcessScores) -> Vec<String> {
    let known: Vec<f32> = scores.turns.iter().filter_map(|turn| turn.score).collect();
    let coefficient = number(f64::from(rule.coefficient));
    let mean = f64::from(known.iter().sum::<f32>()) / known.len().max(1) as f64;
    let added = number(f64::from(rule.coefficient) * mean);
    let added = if added.starts_with('-') {
        added
    } else {
        format!("+{added}")
    };
    let (known, all) = (known.len(), scores.turns.len());
    let mut lines = vec![match known {
        0 => format!("process: none of {all} judged turns has a score: +0"),
        _ => format!(
            "process: {coefficient} x mean score {} of {known} of {all} judged turns: {added}",
            number(mean)
        ),
    }];
    if rule.step_wise {
        lines.push(format!(
            "each turn is rewarded by itself: {} + {coefficient} x its score",
            number(f64::from(scores.outcome))
        ));
    }
    lines
}

/// Up to four decimals, without trailing zeros.
fn number(value: f64) -> String {
    let text = format!("{value:.4}");
    match text.trim_end_matches('0').trim_end_matches('.') {
        "" | "-0" => "0".to_owned(),
        text => text.to_owned(),
    }
}
