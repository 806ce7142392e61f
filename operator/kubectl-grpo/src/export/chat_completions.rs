//! `chat_completions/<step>.jsonl`: the conversations of a step in the format of rLLM's trainer (Apache-2.0), one JSON
//! list of messages per line. It has all samples, in the order of groups and samples.

use grpo_records::{EpisodeScope, TurnRecord, ended, paths};
use serde_json::{Value, json};

/// The file's name below the exported folder. An evaluation has the number of the step that produced its weights.
pub fn file(scope: &EpisodeScope) -> String {
    match scope {
        EpisodeScope::Iteration { iteration } => format!("chat_completions/{iteration}.jsonl"),
        EpisodeScope::Evaluation { set, weights } => {
            let step = paths::step_of_weights(weights).unwrap_or(0);
            format!("chat_completions/{set}/{step}.jsonl")
        }
    }
}

/// One conversation.
pub fn line(turns: &[TurnRecord]) -> Value {
    let messages = ended::messages(turns).into_iter();
    messages
        .map(|message| json!({ "role": message.role, "content": message.content }))
        .collect()
}
