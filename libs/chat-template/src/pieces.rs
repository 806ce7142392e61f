//! Ids of rendered prompts, in pieces that are kept.
//!
//! Prompts have most of their text in common. The samples of a group begin with the same prompt. All tasks have the
//! agent's system prompt and tools. An agent that changes its history, or counts its tokens, sends its conversation
//! again.
//!
//! A tokenizer first cuts a text at its added tokens, and encodes what is between them piece by piece. So a piece has
//! the same ids in each prompt: [`Pieces`] keeps them by the piece's text, and only new messages are encoded.
//!
//! Not every tokenizer is that simple: added tokens may take the spaces beside them, and the first piece may be encoded
//! otherwise than later ones. Such a tokenizer's prompts are one piece. [`Pieces::of`] reads the tokens' flags and
//! compares both ways with a trial text.

use super::literal::{finder, ids_of};
use aho_corasick::{AhoCorasick, BuildError};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokenizers::{AddedToken, Tokenizer};

/// Maximum bytes of all kept pieces. Some hundred conversations of 64 kB have as many.
const MOST_BYTES: usize = 32 << 20;
/// Maximum length of a kept piece, in bytes: clients choose its size.
const LONGEST: usize = 256 << 10;
/// What a kept piece takes beside its text and its ids.
const ENTRY: usize = 128;

/// Encodes prompts. Shared by all threads.
pub struct Pieces {
    cuts: Option<Cuts>,
    kept: Mutex<Kept>,
}

/// The tokens at which a text is cut.
struct Cuts {
    finds: AhoCorasick,
    /// By pattern.
    ids: Vec<u32>,
}

enum Piece<'a> {
    Token(u32),
    Text(&'a str),
}

impl Pieces {
    pub fn of(tokenizer: &Tokenizer) -> Result<Self, BuildError> {
        // Normalized tokens are found within a piece, after its normalization.
        let added = tokenizer.get_added_tokens_decoder().into_iter();
        let mut tokens: Vec<(u32, AddedToken)> = added
            .filter(|(_, token)| !token.normalized && !token.content.is_empty())
            .collect();
        tokens.sort_by_key(|(id, _)| *id);
        let is_plain = tokens.iter().all(|(_, token)| is_plain(token));
        // A tokenizer that cuts long texts off, or fills up short ones, does so at the end of the whole.
        let is_bounded = tokenizer.get_truncation().is_some() || tokenizer.get_padding().is_some();
        let (ids, texts): (Vec<u32>, Vec<String>) = tokens.into_iter().map(|(id, token)| (id, token.content)).unzip();
        let cut = Self {
            cuts: Some(Cuts {
                finds: finder(&texts)?,
                ids,
            }),
            kept: Mutex::default(),
        };
        let tried = trial(&texts);
        let whole = ids_of(tokenizer, &tried);
        let is_equal = match (cut.encode(&tried, |piece| ids_of(tokenizer, piece)), whole) {
            (Ok(cut), Ok(whole)) => cut == whole,
            _ => false,
        };
        Ok(Self {
            cuts: cut.cuts.filter(|_| is_plain && is_equal && !is_bounded),
            kept: Mutex::default(),
        })
    }

    /// The ids of a text: those that `encode` gives to the whole of it. `encode` is called for new pieces.
    pub fn encode<E>(&self, text: &str, encode: impl Fn(&str) -> Result<Vec<u32>, E>) -> Result<Vec<u32>, E> {
        let pieces = self.cut(text);
        let known = self.lock().find(&pieces);
        let mut ids = Vec::with_capacity(text.len() / 3);
        let mut new = Vec::new();
        for (piece, known) in pieces.into_iter().zip(known) {
            match (piece, known) {
                (Piece::Token(id), _) => ids.push(id),
                (Piece::Text(_), Some(known)) => ids.extend_from_slice(&known),
                (Piece::Text(text), None) => {
                    let made = encode(text)?;
                    ids.extend_from_slice(&made);
                    new.push((text, made));
                }
            }
        }
        if !new.is_empty() {
            let mut kept = self.lock();
            new.into_iter()
                .for_each(|(text, ids)| kept.add(text.into(), ids.into()));
        }
        Ok(ids)
    }

    fn cut<'a>(&self, text: &'a str) -> Vec<Piece<'a>> {
        let mut pieces = Vec::new();
        let mut from = 0;
        if let Some(Cuts { finds, ids }) = &self.cuts {
            for found in finds.find_iter(text) {
                if from < found.start() {
                    pieces.push(Piece::Text(&text[from..found.start()]));
                }
                pieces.push(Piece::Token(ids[found.pattern().as_usize()]));
                from = found.end();
            }
        }
        if from < text.len() {
            pieces.push(Piece::Text(&text[from..]));
        }
        pieces
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a token is found wherever its text stands, and takes nothing else. Digits are within the marks of
/// [`super::literal`].
fn is_plain(token: &AddedToken) -> bool {
    let is_number = token.content.bytes().all(|byte| byte.is_ascii_digit());
    !(token.single_word || token.lstrip || token.rstrip || is_number)
}

/// Each token within a word, between spaces, and at the ends of lines.
fn trial(tokens: &[String]) -> String {
    let places = |token: &String| format!("a{token}b {token} c\n{token}\n\n{token}{token}D");
    tokens.iter().map(places).collect()
}

/// Pieces in two generations: those that were used since the last change of generations, and those of the time before,
/// which are dropped at the next change.
#[derive(Default)]
struct Kept {
    used: HashMap<Arc<str>, Arc<[u32]>>,
    before: HashMap<Arc<str>, Arc<[u32]>>,
    /// Bytes of the used ones.
    bytes: usize,
}

impl Kept {
    /// The kept ids of each piece, which is used with this.
    fn find(&mut self, pieces: &[Piece]) -> Vec<Option<Arc<[u32]>>> {
        pieces.iter().map(|piece| self.ids_of(piece)).collect()
    }

    fn ids_of(&mut self, piece: &Piece) -> Option<Arc<[u32]>> {
        let Piece::Text(text) = piece else {
            return None;
        };
        if let Some(ids) = self.used.get(*text) {
            return Some(Arc::clone(ids));
        }
        let (text, ids) = self.before.remove_entry(*text)?;
        self.add(text, Arc::clone(&ids));
        Some(ids)
    }

    fn add(&mut self, text: Arc<str>, ids: Arc<[u32]>) {
        if text.len() > LONGEST || self.used.contains_key(&text) {
            return;
        }
        let size = size(&text, &ids);
        if self.bytes + size > MOST_BYTES / 2 {
            self.before = std::mem::take(&mut self.used);
            self.bytes = 0;
        }
        self.bytes += size;
        self.used.insert(text, ids);
    }
}

fn size(text: &str, ids: &[u32]) -> usize {
    text.len() + size_of_val(ids) + ENTRY
}

#[cfg(test)]
mod tests;
