//! One episode for a person: what the policy said, what was run, what came back, and how it was judged, turn by turn.

use crate::run_folder::{EpisodeFolder, FolderError, RunFolder};
use grpo_records::{Outcome, TurnAction, TurnRecord};
use std::fmt::Write;

#[derive(Debug, thiserror::Error)]
pub enum ShowError {
    #[error(transparent)]
    Folder(#[from] FolderError),
    #[error("no finished episode's folder contains {wanted:?}; `grpo-demo show` without a name lists them")]
    NotFound { wanted: String },
}

/// Folders of all finished episodes with their outcome, a line each.
pub fn list(folder: &RunFolder) -> Result<String, FolderError> {
    let mut out = String::new();
    for home in folder.homes()? {
        for episode in folder.episodes(&home)? {
            let _ = writeln!(
                out,
                "{:<12} {:>2} turns  {}",
                episode.meta.outcome.to_string(),
                episode.meta.turns,
                episode.path
            );
        }
    }
    Ok(out)
}

/// The first episode whose folder contains these words.
pub fn find(folder: &RunFolder, wanted: &str) -> Result<EpisodeFolder, ShowError> {
    for home in folder.homes()? {
        if let Some(episode) = folder.episodes(&home)?.into_iter().find(|e| e.path.contains(wanted)) {
            return Ok(episode);
        }
    }
    Err(ShowError::NotFound { wanted: wanted.into() })
}

/// An episode worth reading: resolved, and not at the first guess where there is one; from the newest part of the run.
pub fn worth_reading(folder: &RunFolder) -> Result<Option<EpisodeFolder>, FolderError> {
    let mut best: Option<EpisodeFolder> = None;
    for home in folder.homes()?.into_iter().rev() {
        for episode in folder.episodes(&home)? {
            if episode.meta.outcome == Outcome::Resolved
                && best.as_ref().is_none_or(|b| b.meta.turns < episode.meta.turns)
            {
                best = Some(episode);
            }
        }
        if best.as_ref().is_some_and(|b| b.meta.turns > 3) {
            break;
        }
    }
    Ok(best)
}

/// The whole episode.
pub fn text(folder: &RunFolder, episode: &EpisodeFolder) -> Result<String, FolderError> {
    let record = folder.trajectory(&episode.path)?;
    let turns = folder.turns(&episode.path)?;
    let meta = &episode.meta;
    let mut out = format!(
        "{}\n{} of {}, sampled by {}\n",
        episode.path,
        meta.key.name(),
        meta.key.home,
        meta.weights.join(", ")
    );
    for message in record.messages.iter().take_while(|m| m.role != "assistant") {
        block(&mut out, &message.role, &message.content);
    }
    for turn in &turns {
        turn_text(&mut out, turn);
    }
    let _ = writeln!(
        out,
        "\n--- ended: {:?}; {} ({} of {} tokens were sampled)",
        meta.end, meta.outcome, meta.sampled_tokens, meta.tokens
    );
    if let Some(message) = &meta.message {
        let _ = writeln!(out, "{message}");
    }
    if let Some(patch) = folder.patch(&episode.path).filter(|p| !p.is_empty()) {
        block(&mut out, "patch", &String::from_utf8_lossy(&patch));
    }
    if let Some(grade) = &meta.grade {
        let _ = writeln!(
            out,
            "--- graded: {}; tests that must turn: {}/{}, tests that must stay: {}/{}; tries: {}",
            grade.status,
            grade.fail_to_pass.passed,
            grade.fail_to_pass.passed + grade.fail_to_pass.failed,
            grade.pass_to_pass.passed,
            grade.pass_to_pass.passed + grade.pass_to_pass.failed,
            grade.tries
        );
        if let Some(source) = &grade.reused_from {
            let _ = writeln!(
                out,
                "verdict on the same patch of the same task, taken over from {source}"
            );
        }
    }
    Ok(out)
}

fn turn_text(out: &mut String, turn: &TurnRecord) {
    let _ = write!(
        out,
        "\n=== turn {}: {} tokens, logprob {:.3}",
        turn.turn,
        turn.sampled.len(),
        sum(&turn.logprobs)
    );
    match &turn.action {
        TurnAction::Command { .. } => out.push('\n'),
        TurnAction::FormatError { blocks } => {
            let _ = writeln!(out, "; {blocks} bash blocks, so nothing was run");
        }
        TurnAction::Truncated => out.push_str("; cut off, so nothing was run\n"),
    }
    out.push_str(turn.text.trim_end());
    out.push('\n');
    if let Some(exec) = &turn.exec {
        let exit = exec
            .exit_code
            .map_or_else(|| "no exit code".into(), |c| format!("exit {c}"));
        block(
            out,
            &format!("{exit} in {} ms", exec.duration_millis),
            &turn.observation_text,
        );
    }
}

fn sum(logprobs: &[f32]) -> f32 {
    logprobs.iter().sum()
}

fn block(out: &mut String, title: &str, body: &str) {
    let _ = writeln!(out, "--- {title}");
    for line in body.trim_end().lines() {
        let _ = writeln!(out, "  {line}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::turn;

    #[test]
    fn a_turn_shows_what_was_said_run_and_answered() {
        let mut out = String::new();
        turn_text(&mut out, &turn(1, "sh t", "1 failed"));
        for part in ["turn 1", "sh t", "exit 0", "1 failed"] {
            assert!(out.contains(part), "{out}");
        }
    }
}
