//! Finds the place of a request in its episode: after a sampled answer, whose row it continues, or in a new row.
//!
//! Each sampled answer is a turn of one row. A request continues a row if its messages are those of a turn's request,
//! that turn's answer and something new, and the answer is the last one of its row. A request that continues an earlier
//! answer opens a row with the same ids before it; any other request opens a row with ids of its own. Tokens of a
//! request that were not sampled in its row are not trained on there.
//!
//! Pure: the same records give the same forest, also in a restarted driver. Input: requests as checksums
//! ([`super::canon`]) and records of turns. Output: a [`Place`].

use super::canon::{Key, Keys, behind, said};
use super::request::{ChatMessage, Request, Role};
use grpo_records::{Branch, RequestRecord, TurnRecord};
use std::collections::{HashMap, HashSet};

/// The answers of an episode.
#[derive(Debug, Default)]
pub struct Forest {
    nodes: Vec<Node>,
    /// The number of tokens of each row.
    rows: Vec<usize>,
    /// Turns by the key of their request.
    by_request: HashMap<Key, u32>,
    /// Turns by tools and messages up to their answer.
    answered: HashMap<(Key, Key), Answered>,
    /// Messages of every request, and messages up to every answer, with any tools.
    asked: HashSet<Key>,
    seen: HashSet<Key>,
    /// Answers alone, without their reasoning.
    said: HashSet<Key>,
    /// Ids of calls.
    calls: HashSet<String>,
}

#[derive(Clone, Copy, Debug)]
struct Node {
    row: u32,
    /// The number of tokens of its row up to the end of its answer.
    end: usize,
}

#[derive(Clone, Copy, Debug)]
struct Answered {
    turn: u32,
    /// Without its reasoning.
    bare: bool,
}

/// Where a request belongs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// This turn has already answered it.
    Known(u32),
    Behind(Behind),
    /// In a new row, with ids of its own.
    Apart(Branch),
}

/// The place after a sampled answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Behind {
    pub turn: u32,
    /// The row of that answer, and the number of its tokens up to the end of the answer.
    pub row: u32,
    pub tokens: usize,
    /// The index of the first message after the answer.
    pub new: usize,
    /// The request has the answer without its reasoning.
    pub bare: bool,
    /// Why it opens a row with these tokens; `None` if it continues their row.
    pub branch: Option<Branch>,
}

/// Why a record cannot be a turn of a command-line agent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{episode} turn {turn}: its record does not say what it was asked, so the episode cannot go on")]
pub struct NoRequest {
    pub episode: String,
    pub turn: u32,
}

impl Forest {
    /// Adds a recorded turn.
    pub fn push(&mut self, turn: &TurnRecord) -> Result<(), NoRequest> {
        let missing = || NoRequest {
            episode: turn.episode.clone(),
            turn: turn.turn,
        };
        let request = turn.request.as_ref().ok_or_else(missing)?;
        let key = |text: &str| Key::parse(text).ok_or_else(missing);
        let tools = key(&request.tools)?;
        let sampled = turn.sampled.len().max(turn.sampled_length);
        let end = turn.prompt_length + sampled;
        let number = self.nodes.len() as u32;
        self.nodes.push(Node { row: turn.row, end });
        match self.rows.get_mut(turn.row as usize) {
            Some(row) => *row = end,
            None => self.rows.push(end),
        }
        self.by_request.entry(key(&request.key)?).or_insert(number);
        self.asked.insert(key(&request.messages)?);
        let bare = request.answered_without_reasoning.as_deref();
        for (text, bare) in [(Some(request.answered.as_str()), false), (bare, true)] {
            if let Some(text) = text {
                let answered = key(text)?;
                self.seen.insert(answered);
                let answer = Answered { turn: number, bare };
                self.answered.entry((tools, answered)).or_insert(answer);
            }
        }
        if let Some(alone) = &request.said {
            self.said.insert(key(alone)?);
        }
        let calls = turn.action.as_calls().unwrap_or_default();
        self.calls.extend(calls.into_iter().map(|call| call.id));
        Ok(())
    }

    pub fn rows(&self) -> usize {
        self.rows.len()
    }

    /// Where a request belongs.
    pub fn place(&self, request: &Request, keys: &Keys) -> Place {
        match self.by_request.get(&keys.whole) {
            Some(turn) => Place::Known(*turn),
            None => self.behind_the_last_of(request, keys, request.messages.len()),
        }
    }

    /// The place if an answer without its reasoning counts as another answer, because the chat template shows the
    /// reasoning.
    pub fn place_without(&self, request: &Request, keys: &Keys, refused: &Behind) -> Place {
        // The refused answer is the message before the new ones.
        let dropped = Branch::DroppedReasoning;
        match self.behind_the_last_of(request, keys, refused.new.saturating_sub(1)) {
            Place::Behind(behind) => Place::Behind(Behind {
                branch: Some(dropped),
                ..behind
            }),
            _ => Place::Apart(dropped),
        }
    }

    /// The place after the last answer within the first `within` messages.
    fn behind_the_last_of(&self, request: &Request, keys: &Keys, within: usize) -> Place {
        let prefixes = keys.chain.iter().enumerate().take(within + 1).rev();
        let mut found = prefixes.filter_map(|(length, key)| Some((length, self.answered.get(&(keys.tools, *key))?)));
        let Some((new, answer)) = found.next() else {
            return Place::Apart(self.why(request, keys, 0));
        };
        let Node { row, end } = self.nodes[answer.turn as usize];
        let continues = self.rows[row as usize] == end;
        Place::Behind(Behind {
            turn: answer.turn,
            row,
            tokens: end,
            new,
            bare: answer.bare,
            branch: (!continues).then(|| self.why(request, keys, new)),
        })
    }

    /// Why a request continues no row, if its first `matched` messages end with an answer under the same tools.
    fn why(&self, request: &Request, keys: &Keys, matched: usize) -> Branch {
        if self.nodes.is_empty() {
            return Branch::First;
        }
        let last = |known: &HashSet<Key>| {
            (matched + 1..keys.chain.len())
                .rev()
                .find(|at| known.contains(&keys.chain[*at]))
        };
        if last(&self.seen).is_some() {
            return Branch::OtherSettings;
        }
        match last(&self.asked).map(|asked| request.messages.get(asked)) {
            Some(None) => return Branch::OtherSettings,
            Some(Some(next)) if next.role == Role::Assistant => return Branch::ChangedAnswer,
            Some(Some(_)) => return Branch::LeftOutAnswer,
            None => {}
        }
        let ours = |message: &ChatMessage| {
            message.tool_calls.iter().any(|call| self.calls.contains(&call.id))
                || alone(message).is_some_and(|key| self.said.contains(&key))
        };
        match request.messages[matched..].iter().any(ours) {
            true => Branch::ChangedHistory,
            false if matched > 0 => Branch::SecondContinuation,
            false => Branch::Conversation,
        }
    }
}

/// The key of an answer without the conversation before it and without its reasoning; `None` for an empty one.
fn alone(message: &ChatMessage) -> Option<Key> {
    let bare = without_reasoning(message);
    let says = !bare.tool_calls.is_empty() || !bare.content.is_empty();
    (bare.role == Role::Assistant && says).then(|| behind(Key::default(), &bare))
}

fn without_reasoning(answer: &ChatMessage) -> ChatMessage {
    ChatMessage {
        reasoning: None,
        content: said(answer).1.to_owned(),
        ..answer.clone()
    }
}

/// The record of a turn's request, with the keys by which its answer is found again. `api`: the API's name. `answer`:
/// as the agent gets it.
pub fn record(api: &str, request: &Request, keys: &Keys, place: &Place, answer: &ChatMessage) -> RequestRecord {
    let (branch, new) = match place {
        Place::Known(_) => (None, request.messages.len()),
        Place::Behind(behind) => (behind.branch, behind.new),
        Place::Apart(branch) => (Some(*branch), request.messages.len()),
    };
    let new = request.messages.get(new..).unwrap_or_default();
    let results = new.iter().filter(|message| message.role == Role::Tool).count();
    let injected = if results == 0 { 0 } else { new.len() - results };
    let bare = without_reasoning(answer);
    let has_reasoning = answer.reasoning.as_deref().is_some_and(|text| !text.trim().is_empty());
    let overruled = request.overruled.iter().map(|(field, value)| grpo_records::Overruled {
        field: field.clone(),
        value: value.clone(),
    });
    RequestRecord {
        api: api.to_owned(),
        key: keys.whole.hex(),
        tools: keys.tools.hex(),
        messages: keys.messages().hex(),
        answered: behind(keys.messages(), answer).hex(),
        answered_without_reasoning: has_reasoning.then(|| behind(keys.messages(), &bare).hex()),
        said: alone(answer).map(Key::hex),
        branch,
        injected: u32::try_from(injected).unwrap_or(u32::MAX),
        overruled: overruled.collect(),
    }
}

#[cfg(test)]
mod tests;
