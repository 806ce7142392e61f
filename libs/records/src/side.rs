//! Side conversations of a command-line agent: its requests while another conversation waits, as for a sub-agent or a
//! conversation's title.
//!
//! A conversation has waited only if it is continued afterwards. So the summary of a compaction is not a side
//! conversation: the conversation that it ends is never continued.

use crate::request::Branch;
use crate::turn::TurnRecord;
use std::collections::{BTreeMap, BTreeSet};

/// The rows of side conversations. `turns`: those of one episode, in order.
///
/// The turns between two consecutive turns of a row belong to a side conversation if the first of them opens a
/// conversation. Every row that lies entirely between the two belongs to it.
pub fn side_rows(turns: &[TurnRecord]) -> BTreeSet<u32> {
    let mut of_rows: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
    for (at, turn) in turns.iter().enumerate() {
        of_rows.entry(turn.row).or_default().push(at);
    }
    let opens_conversation = |at: usize| {
        let request = turns.get(at).and_then(|turn| turn.request.as_ref());
        request.is_some_and(|request| request.branch == Some(Branch::Conversation))
    };
    let mut side = BTreeSet::new();
    for pair in of_rows.values().flat_map(|turns| turns.windows(2)) {
        let (before, after) = (pair[0], pair[1]);
        if after > before + 1 && opens_conversation(before + 1) {
            let between = of_rows.iter().filter(|(_, turns)| {
                let (first, last) = (turns.first(), turns.last());
                first.is_some_and(|first| *first > before) && last.is_some_and(|last| *last < after)
            });
            side.extend(between.map(|(row, _)| *row));
        }
    }
    side
}

#[cfg(test)]
mod tests;
