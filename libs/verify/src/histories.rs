//! Checks that rebuilt histories consist of the turns before them.
//!
//! A built-in loop begins a row when its history was trimmed, or stripped of reasoning. The ids of the row's first
//! prompt must then be the opening, and the answer and the observation of each kept turn, in order and token by token;
//! the newest turn is always kept. The ids that open an answer are not known here, so the last ids that an observation
//! has in common with the first prompt are not checked.

use super::Check;
use grpo_records::TurnRecord;

/// The end of an answer's reasoning. A history may omit the reasoning.
const REASONING_ENDS: &str = "</think>";

/// Checks the turns of one episode of such a loop.
pub fn check(turns: &[TurnRecord], place: &str, histories: &mut Check) {
    let mut rows = 0;
    for turn in turns {
        let begins = turn.row >= rows;
        rows = rows.max(turn.row + 1);
        if turn.turn > 0 && begins {
            let wrong = wrong(turns, turn);
            histories.expect(wrong.is_none(), || {
                format!("{place}, turn {}: {}", turn.turn, wrong.unwrap_or_default())
            });
        }
    }
}

/// The part of the prompt that does not come from the turns before it.
fn wrong(turns: &[TurnRecord], turn: &TurnRecord) -> Option<String> {
    let first = turns.first()?;
    let gap = turn.omitted.map(|gap| gap.from..gap.to).unwrap_or_default();
    if !gap.is_empty() && gap.end >= turn.turn {
        return Some(format!("its history is without turns {gap:?}, the newest among them"));
    }
    let common = first.prompt.iter().zip(&turn.prompt).take_while(|(a, b)| a == b);
    let mut done = common.count();
    if done == 0 {
        return Some("its history does not begin as the episode did".to_owned());
    }
    let kept = turns.iter().take(turn.turn as usize);
    for earlier in kept.filter(|earlier| !gap.contains(&earlier.turn)) {
        let opens = first.prompt.iter().rev().zip(earlier.observation.iter().rev());
        let opens = opens.take_while(|(a, b)| a == b).count();
        let observed = &earlier.observation[..earlier.observation.len() - opens];
        match found(&turn.prompt, done, earlier, observed) {
            Some(end) => done = end,
            None => return Some(format!("its history has not what turn {} was", earlier.turn)),
        }
    }
    None
}

/// The end of an answer and its observation in a prompt, searched after the first `done` ids. The answer may lack its
/// reasoning, but not its end.
fn found(prompt: &[u32], done: usize, turn: &TurnRecord, observed: &[u32]) -> Option<usize> {
    let may_be_cut = turn.text.contains(REASONING_ENDS);
    (done..=prompt.len().checked_sub(observed.len())?)
        .find(|at| {
            let before = prompt[..*at].iter().rev().zip(turn.sampled.iter().rev());
            let same = before.take_while(|(a, b)| a == b).count();
            prompt[*at..].starts_with(observed) && (same == turn.sampled.len() || may_be_cut && same > 0)
        })
        .map(|at| at + observed.len())
}

#[cfg(test)]
mod tests;
