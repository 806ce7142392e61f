//! Caches results by text: agents send the same tools with every request.

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

#[cfg(test)]
mod tests;
