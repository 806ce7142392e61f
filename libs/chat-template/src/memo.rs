//! Caches results by text: agents send the same tools with every request.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

/// Maximum cached texts. A run has one agent, with a set of tools for each of its roles.
const MOST: usize = 8;
/// Maximum length of a cached text, in bytes: clients choose its size.
const LONGEST: usize = 256 << 10;

/// Shared by all threads.
#[derive(Debug)]
pub struct Memo<T>(Mutex<Vec<(Arc<str>, T)>>);

impl<T> Default for Memo<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Memo<T> {
    pub const fn new() -> Self {
        Self(Mutex::new(Vec::new()))
    }
}

impl<T: Clone> Memo<T> {
    /// The result of `make` for a text, cached or new. Errors are not cached.
    pub fn get<E>(&self, text: &str, make: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        let known = |all: &Vec<(Arc<str>, T)>| {
            all.iter()
                .find(|(known, _)| **known == *text)
                .map(|(_, made)| made.clone())
        };
        if let Some(made) = known(&self.lock()) {
            return Ok(made);
        }
        let made = make()?;
        if text.len() <= LONGEST {
            let mut all = self.lock();
            if known(&all).is_none() {
                if all.len() == MOST {
                    all.remove(0);
                }
                all.push((text.into(), made.clone()));
            }
        }
        Ok(made)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<(Arc<str>, T)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ids of rendered prompts, by the whole text: the samples of a group begin with the same prompt, and so do later
/// groups of the same task. Bounded by the bytes of texts and ids.
#[derive(Debug, Default)]
pub(crate) struct PromptIds(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    /// The oldest first.
    prompts: VecDeque<(Arc<str>, Arc<[u32]>)>,
    bytes: usize,
}

/// Maximum bytes of all cached prompts. One of qwen-code's has 13 kB of text and as much of ids.
const MOST_BYTES: usize = 16 << 20;

impl PromptIds {
    /// The ids of a text, cached or new. Errors are not cached.
    pub(crate) fn get<E>(&self, text: &str, make: impl FnOnce() -> Result<Vec<u32>, E>) -> Result<Vec<u32>, E> {
        let known = self.lock().find(text);
        if let Some(ids) = known {
            return Ok(ids.to_vec());
        }
        let ids = make()?;
        self.lock().add(text, &ids);
        Ok(ids)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    fn find(&self, text: &str) -> Option<Arc<[u32]>> {
        let found = self.prompts.iter().rev().find(|(known, _)| **known == *text);
        found.map(|(_, ids)| Arc::clone(ids))
    }

    fn add(&mut self, text: &str, ids: &[u32]) {
        let bytes = size(text, ids);
        if bytes > LONGEST || self.find(text).is_some() {
            return;
        }
        self.bytes += bytes;
        self.prompts.push_back((text.into(), ids.into()));
        while self.bytes > MOST_BYTES
            && let Some((text, ids)) = self.prompts.pop_front()
        {
            self.bytes -= size(&text, &ids);
        }
    }
}

fn size(text: &str, ids: &[u32]) -> usize {
    text.len() + size_of_val(ids)
}

#[cfg(test)]
mod tests;
