//! The text of single tokens, from the tokenizer of the published weights.
//!
//! Byte-level BPE may split a character over tokens. Such a token is shown by its bytes, `⟨e2⟩`, because a replacement
//! character would look the same for every one of them.

use crate::error::Error;
use crate::records::Source;
use grpo_records::paths;
use serde::Deserialize;
use serde_json::Value;
use std::collections::HashMap;

/// The largest tokenizer that is read, in bytes. Qwen3's has 11 MB.
const LARGEST: u64 = 64 << 20;

/// Texts by id.
#[derive(Debug, Default)]
pub struct Vocabulary(Vec<String>);

#[derive(Deserialize)]
struct File {
    model: Model,
    #[serde(default)]
    added_tokens: Vec<Added>,
    #[serde(default)]
    decoder: Value,
}

#[derive(Deserialize)]
struct Model {
    vocab: HashMap<String, u32>,
}

#[derive(Deserialize)]
struct Added {
    id: u32,
    content: String,
}

impl Vocabulary {
    /// The tokenizer beside the newest weights that have one; adapters have none. Without one, the error is `None`.
    pub async fn newest(source: &mut Source) -> Result<Self, Option<Error>> {
        let files = source.files(paths::WEIGHTS).await.map_err(Some)?;
        let step = |path: &str| paths::step_of_weights(path.split('/').nth(1)?);
        let tokenizers = files.into_iter().filter(|file| file.path.ends_with("/tokenizer.json"));
        let newest = tokenizers.max_by_key(|file| step(&file.path)).ok_or(None)?;
        if newest.bytes > LARGEST {
            return Err(None);
        }
        let json = source.whole_file(&newest.path).await.map_err(Some)?;
        json.as_deref().and_then(Self::of).ok_or(None)
    }

    /// From the bytes of a `tokenizer.json` with a vocabulary of byte-level tokens; `None` for any other.
    pub fn of(json: &[u8]) -> Option<Self> {
        let file: File = serde_json::from_slice(json).ok()?;
        if !file.decoder.to_string().contains("ByteLevel") {
            return None;
        }
        let bytes = bytes_of_characters();
        let words = file.model.vocab.iter().map(|(word, id)| (*id, text_of(word, &bytes)));
        let added = file.added_tokens.into_iter().map(|added| (added.id, added.content));
        let known: Vec<(u32, String)> = words.chain(added).collect();
        let most = known.iter().map(|(id, _)| *id as usize + 1).max()?;
        // Ids of a model are dense; a file with holes of millions is damaged.
        if most > known.len().saturating_mul(4) {
            return None;
        }
        let mut texts = vec![String::new(); most];
        for (id, text) in known {
            texts[id as usize] = text;
        }
        Some(Self(texts))
    }

    /// The texts of these tokens.
    pub fn texts(&self, ids: &[u32]) -> Vec<String> {
        ids.iter()
            .map(|id| self.0.get(*id as usize).cloned().unwrap_or_else(|| format!("⟨{id}⟩")))
            .collect()
    }
}

fn text_of(word: &str, bytes: &HashMap<char, u8>) -> String {
    let raw: Option<Vec<u8>> = word.chars().map(|character| bytes.get(&character).copied()).collect();
    let Some(raw) = raw else { return word.to_owned() };
    match String::from_utf8(raw) {
        Ok(text) => text,
        Err(error) => error.as_bytes().iter().map(|byte| format!("⟨{byte:02x}⟩")).collect(),
    }
}

/// GPT-2's alphabet: each byte is written as a printable character.
fn bytes_of_characters() -> HashMap<char, u8> {
    let is_itself = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let mut next = 0x100;
    let pairs = (0..=u8::MAX).map(|byte| {
        let code = match is_itself(byte) {
            true => u32::from(byte),
            false => {
                next += 1;
                next - 1
            }
        };
        (char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER), byte)
    });
    pairs.collect()
}

#[cfg(test)]
mod tests;
