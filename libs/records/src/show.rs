//! Renders one episode as text, turn by turn: the prompt, the answer, which of it was sampled, the action, the
//! observation, and the verdict and votes. Pure: the input comes from [`crate::look`], the output is text.

mod block;
mod judge;
mod reward;

use self::block::block;
use crate::look::EpisodeView;
use crate::{GradeRecord, JudgedTurn, Omitted, TurnAction, TurnRecord, paths};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Write;

/// Makes control characters visible, so that a sandbox's output cannot control the reader's terminal.
pub fn harmless(text: &str) -> Cow<'_, str> {
    let commands = |c: char| c.is_control() && c != '\n' && c != '\t';
    if !text.contains(commands) {
        return Cow::Borrowed(text);
    }
    let visible = |c: char| match c {
        '\u{7f}' => '\u{2421}',
        c if commands(c) && c.is_ascii() => {
            char::from_u32(0x2400 + u32::from(c)).unwrap_or(char::REPLACEMENT_CHARACTER)
        }
        c if commands(c) => char::REPLACEMENT_CHARACTER,
        c => c,
    };
    Cow::Owned(text.chars().map(visible).collect())
}

/// The level of detail.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Detail {
    /// Every sampled token id with its logprob.
    pub tokens: bool,
    /// The judge's text for every vote.
    pub votes: bool,
}

/// The whole episode. `judged`: the votes on its turns.
pub fn text(view: &EpisodeView, turns: &[TurnRecord], judged: &[JudgedTurn], detail: Detail) -> String {
    let mut out = head(view);
    let rows = Row::of(turns);
    for turn in turns {
        for message in &turn.opening {
            block(&mut out, &message.role, &message.content);
        }
        turn_text(&mut out, turn, rows.len() > 1, detail);
        if let Some(judged) = judged.iter().find(|judged| judged.turn == turn.turn) {
            judge::votes(&mut out, judged, detail.votes);
        }
    }
    rows_text(&mut out, &rows);
    end(&mut out, view);
    if let Some(patch) = view.patch.as_deref().filter(|p| !p.is_empty()) {
        block(&mut out, "patch", patch);
        if view.patch_omitted > 0 {
            let _ = writeln!(out, "  … {} bytes more", view.patch_omitted);
        }
    }
    if let Some(grade) = view.episode.meta.as_ref().and_then(|meta| meta.grade.as_ref()) {
        graded(&mut out, grade);
    }
    reward::lines(&mut out, view);
    harmless(&out).into_owned()
}

fn head(view: &EpisodeView) -> String {
    let mut out = format!("{}\n", view.episode.path);
    match (&view.episode.meta, paths::parse_episode(&view.episode.path)) {
        (Some(meta), _) => {
            let _ = writeln!(
                out,
                "{} of {}, sampled by {}",
                meta.key.name(),
                meta.key.scope,
                meta.weights.join(", ")
            );
            if meta.untrainable {
                out.push_str("its answers came as text, without token ids and logprobs: no batch takes it\n");
            }
        }
        (None, Some((scope, name))) => {
            let _ = writeln!(out, "{name} of {scope}, without a verdict");
        }
        (None, None) => {}
    }
    out
}

/// The totals over the turns of one row.
#[derive(Default)]
struct Row {
    turns: Vec<String>,
    tokens: usize,
    sampled: usize,
}

impl Row {
    fn of(turns: &[TurnRecord]) -> BTreeMap<u32, Self> {
        let mut rows: BTreeMap<u32, Self> = BTreeMap::new();
        for turn in turns {
            let row = rows.entry(turn.row).or_default();
            row.turns.push(turn.turn.to_string());
            row.tokens = turn.prompt_length + turn.sampled.len() + turn.observation.len();
            row.sampled += turn.sampled.len();
        }
        rows
    }
}

/// The rows of an episode, if it has more than one.
fn rows_text(out: &mut String, rows: &BTreeMap<u32, Row>) {
    if rows.len() < 2 {
        return;
    }
    let lines = rows.iter().map(|(number, row)| {
        let turns = row.turns.join(", ");
        let (sampled, tokens) = (row.sampled, row.tokens);
        format!("row {number}: turns {turns}; {sampled} of {tokens} tokens were sampled\n")
    });
    block(out, "rows", &lines.collect::<String>());
}

fn turn_text(out: &mut String, turn: &TurnRecord, tell_row: bool, detail: Detail) {
    let end = turn.prompt_length + turn.sampled.len();
    let row = if tell_row {
        format!(" in row {}", turn.row)
    } else {
        String::new()
    };
    let _ = write!(
        out,
        "\n=== turn {}{row}: tokens {}..{end} were sampled by {} ({} of them, logprob {:.3})",
        turn.turn,
        turn.prompt_length,
        turn.weights,
        turn.sampled.len(),
        turn.logprobs.iter().sum::<f32>()
    );
    if let Some(Omitted { from, to }) = turn.omitted {
        let _ = write!(out, "; its history is without turns {from} to {}", to.saturating_sub(1));
    }
    match turn.action.kind.as_str() {
        TurnAction::COMMAND => out.push('\n'),
        TurnAction::FORMAT_ERROR => {
            let blocks = turn.action.blocks().unwrap_or_default();
            let _ = writeln!(out, "; {blocks} bash blocks, so nothing was run");
        }
        TurnAction::TRUNCATED => out.push_str("; cut off, so nothing was run\n"),
        TurnAction::CALLS => out.push('\n'),
        TurnAction::MALFORMED_CALL => {
            let why = turn.action.malformed().unwrap_or_default();
            let _ = writeln!(out, "; a call cannot be read, so nothing was run: {why}");
        }
        TurnAction::ANSWER => out.push_str("; no call\n"),
        kind => {
            let _ = writeln!(out, "; {kind}: {}", turn.action.payload);
        }
    }
    out.push_str(turn.text.trim_end());
    out.push('\n');
    if detail.tokens {
        sampled(out, turn);
    }
    for call in turn.action.as_calls().unwrap_or_default() {
        block(out, &format!("call {} of {}", call.id, call.name), &call.arguments);
    }
    let what = match &turn.exec {
        Some(exec) => {
            let exit = exec
                .exit_code
                .map_or_else(|| "no exit code".into(), |c| format!("exit {c}"));
            format!("{exit} in {} ms", exec.duration_millis)
        }
        None if turn.observation_text.is_empty() => return,
        None => "observed".into(),
    };
    let given = match turn.observation.len() {
        0 => String::new(),
        given => format!("; tokens {end}..{} were given", end + given),
    };
    block(out, &format!("{what}{given}"), &turn.observation_text);
}

/// Ids with their logprobs, eight per line.
fn sampled(out: &mut String, turn: &TurnRecord) {
    let _ = writeln!(out, "--- sampled ids, each with its logprob");
    let pairs: Vec<(u32, f32)> = turn
        .sampled
        .iter()
        .copied()
        .zip(turn.logprobs.iter().copied())
        .collect();
    for line in pairs.chunks(8) {
        let words: Vec<String> = line
            .iter()
            .map(|(id, logprob)| format!("{id:>6} {logprob:<8.3}"))
            .collect();
        let _ = writeln!(out, "  {}", words.join(" ").trim_end());
    }
}

fn end(out: &mut String, view: &EpisodeView) {
    match &view.episode.meta {
        Some(meta) => {
            let _ = writeln!(
                out,
                "\n--- ended: {:?}; {} ({} of {} tokens were sampled)",
                meta.end, meta.outcome, meta.sampled_tokens, meta.tokens
            );
            if let Some(message) = &meta.message {
                let _ = writeln!(out, "{message}");
            }
        }
        None => match &view.told {
            Some(told) => {
                let _ = writeln!(out, "\n--- ended: {:?}; not graded", told.end);
            }
            None => out.push_str("\n--- it has not ended, or this attempt was given up\n"),
        },
    }
}

fn graded(out: &mut String, grade: &GradeRecord) {
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
    for note in &grade.notes {
        let _ = writeln!(out, "{note}");
    }
}

#[cfg(test)]
mod tests;
