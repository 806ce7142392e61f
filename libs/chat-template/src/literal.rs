//! Keeps text that is not the template's own from becoming special tokens, which could open a turn.
//!
//! Some tokenizers do not call every control token special, such as DeepSeek's `<｜User｜>`. Tokens that are spelt like
//! it count as special here.
//!
//! Before rendering, [`Literals::mark`] replaces each special token that a message or a tool spells with a mark. The
//! template sees all other text unchanged. After rendering, [`Literals::encode`] encodes the special tokens that the
//! template wrote; between them it restores the marked spellings and encodes them as ordinary text.

use super::error::TemplateError;
use aho_corasick::{AhoCorasick, MatchKind};
use minijinja::Value;
use minijinja::value::ValueKind;
use std::borrow::Cow;
use std::collections::HashSet;
use tokenizers::{AddedToken, Tokenizer};

/// Opens and closes a mark: a private-use code point that no template contains. Text that contains it is marked too, so
/// it cannot imitate a mark.
const FENCE: char = '\u{F8FF}';
/// Placeholder for an answer. [`Literals::mark`] never writes it.
pub const ANSWER: &str = "\u{F8FF}answer\u{F8FF}";

/// Tokens that are content: the parsers of reasoning and of tool calls read them. Tokenizers of some fine-tunes call
/// them special.
const CONTENT: [&str; 8] = [
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "</function>",
    "</parameter>",
];

pub struct Literals {
    tokenizer: Tokenizer,
    /// Special tokens that are no content: those that open and end turns.
    hidden: HashSet<u32>,
    /// Encodes the text of special tokens as ordinary text.
    literal: Tokenizer,
    /// The marked strings: special tokens, longest match first, and the fence.
    marked: Vec<String>,
    finds_marked: AhoCorasick,
    finds_specials: AhoCorasick,
}

impl Literals {
    pub fn new(tokenizer: Tokenizer) -> Result<Self, aho_corasick::BuildError> {
        let added = tokenizer.get_added_tokens_decoder();
        let is_hidden = |token: &AddedToken| token.special && !CONTENT.contains(&token.content.as_str());
        let hidden = added.iter().filter(|(_, token)| is_hidden(token)).map(|(id, _)| *id);
        let hidden = hidden.collect();
        let specials: Vec<AddedToken> = added
            .into_values()
            .filter(|token| !token.content.is_empty() && (token.special || is_control(&token.content)))
            .map(|token| token.special(true))
            .collect();
        let mut literal = tokenizer.clone();
        literal.add_special_tokens(&specials);
        literal.set_encode_special_tokens(true);
        let mut marked: Vec<String> = specials.into_iter().map(|token| token.content).collect();
        marked.sort();
        let finds_specials = finder(&marked)?;
        marked.push(FENCE.to_string());
        Ok(Self {
            finds_specials,
            finds_marked: finder(&marked)?,
            marked,
            tokenizer,
            hidden,
            literal,
        })
    }

    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// The text of ids, without the hidden tokens.
    pub fn decode(&self, ids: &[u32]) -> Result<String, TemplateError> {
        let shown: Vec<u32> = ids.iter().copied().filter(|id| !self.hidden.contains(id)).collect();
        self.tokenizer.decode(&shown, false).map_err(TemplateError::Tokenise)
    }

    /// Replaces special tokens in a text with marks.
    pub fn mark<'a>(&self, text: &'a str) -> Cow<'a, str> {
        if !self.finds_marked.is_match(text) {
            return Cow::Borrowed(text);
        }
        let mut out = String::with_capacity(text.len());
        self.finds_marked.replace_all_with(text, &mut out, |found, _, out| {
            out.extend([
                FENCE.to_string(),
                found.pattern().as_usize().to_string(),
                FENCE.to_string(),
            ]);
            true
        });
        Cow::Owned(out)
    }

    /// JSON as a template sees it: with its key order, and marks in every text and key.
    pub fn mark_json(&self, value: &Value) -> Value {
        let items = || value.try_iter().into_iter().flatten();
        match value.kind() {
            ValueKind::String => Value::from(self.mark(value.as_str().unwrap_or_default())),
            ValueKind::Seq => items().map(|item| self.mark_json(&item)).collect(),
            ValueKind::Map => {
                let pairs = items().map(|key| {
                    let inner = value.get_item(&key).unwrap_or_default();
                    (self.mark_json(&key), self.mark_json(&inner))
                });
                pairs.collect()
            }
            _ => value.clone(),
        }
    }

    /// The ids of a rendered text.
    pub fn encode(&self, rendered: &str) -> Result<Vec<u32>, TemplateError> {
        if !rendered.contains(FENCE) {
            return ids_of(&self.tokenizer, rendered);
        }
        let mut ids = Vec::new();
        let mut at = 0;
        for special in self.finds_specials.find_iter(rendered) {
            ids.extend(ids_of(&self.literal, &self.unmark(&rendered[at..special.start()]))?);
            ids.extend(ids_of(&self.tokenizer, &rendered[special.range()])?);
            at = special.end();
        }
        ids.extend(ids_of(&self.literal, &self.unmark(&rendered[at..]))?);
        Ok(ids)
    }

    /// Restores the marked text. A mark that the template has cut is ordinary text.
    pub fn unmark(&self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        let mut rest = text;
        while let Some((before, after)) = rest.split_once(FENCE) {
            out.push_str(before);
            let spelt = after.split_once(FENCE).and_then(|(number, after)| {
                let number: usize = number.parse().ok()?;
                Some((self.marked.get(number)?, after))
            });
            match spelt {
                Some((spelling, after)) => {
                    out.push_str(spelling);
                    rest = after;
                }
                None => {
                    out.push(FENCE);
                    rest = after;
                }
            }
        }
        out.push_str(rest);
        out
    }
}

/// Whether a token is spelt like a control token: `<|…|>`, also with DeepSeek's wide bars.
fn is_control(content: &str) -> bool {
    [("<|", "|>"), ("<｜", "｜>")]
        .into_iter()
        .any(|(open, close)| content.starts_with(open) && content.ends_with(close))
}

pub fn finder(patterns: &[String]) -> Result<AhoCorasick, aho_corasick::BuildError> {
    AhoCorasick::builder()
        .match_kind(MatchKind::LeftmostLongest)
        .build(patterns)
}

pub fn ids_of(tokenizer: &Tokenizer, text: &str) -> Result<Vec<u32>, TemplateError> {
    if text.is_empty() {
        return Ok(Vec::new());
    }
    let encoding = tokenizer.encode_fast(text, false).map_err(TemplateError::Tokenise)?;
    Ok(encoding.get_ids().to_vec())
}
