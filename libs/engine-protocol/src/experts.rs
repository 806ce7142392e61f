//! Which experts of a mixture tokens went through, as an engine reports it and a trainer repeats it (router replay,
//! arXiv 2510.11370).
//!
//! An engine computes every token but the last one that it samples, so an answer has the experts of all tokens before
//! that, from a position on that the request names: what earlier turns have brought is not sent again.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

/// Numbers of more bytes than this are not put into an answer, nor read from one: 300,000 tokens of a model with 48
/// layers and 8 experts a token.
pub const MOST_BYTES: usize = 128 << 20;

/// The experts of the tokens from `from` on, in base64: for each token and each of the model's layers in order, its
/// experts' numbers. Layers without experts are among them; what stands there means nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RoutedExperts {
    /// Position of the first token, in the prompt and what was sampled behind it.
    pub from: usize,
    pub tokens: usize,
    /// Numbers of each token: layers times experts per token.
    pub per_token: usize,
    /// Bytes of a number: 1, or 2 with the lower one first.
    pub width: usize,
    pub data: String,
}

/// What is wrong with experts.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExpertsFault {
    #[error("numbers of experts have {width} bytes; 1 and 2 are known: is the engine agent of the same release?")]
    Width { width: usize },
    #[error(
        "{tokens} tokens with {per_token} numbers of experts each are more than {MOST_BYTES} bytes: give episodes less context, or set algorithm.routerReplay: false"
    )]
    TooMany { tokens: usize, per_token: usize },
    #[error("{tokens} tokens with {per_token} numbers of experts each should be {wanted} bytes, there are {found}")]
    Length {
        tokens: usize,
        per_token: usize,
        wanted: usize,
        found: usize,
    },
    #[error("the numbers of experts are not base64: {cause}")]
    Base64 { cause: String },
}

impl RoutedExperts {
    /// Of numbers that are `width` bytes each.
    pub fn of_bytes(from: usize, tokens: usize, width: usize, bytes: &[u8]) -> Result<Self, ExpertsFault> {
        let per_token = bytes.len() / (tokens * width).max(1);
        let experts = Self {
            from,
            tokens,
            per_token,
            width,
            data: String::new(),
        };
        experts.check(bytes.len())?;
        Ok(Self {
            data: STANDARD.encode(bytes),
            ..experts
        })
    }

    /// Of numbers of whichever size, in as few bytes as they need.
    pub fn of_numbers(from: usize, tokens: usize, numbers: &[u16]) -> Result<Self, ExpertsFault> {
        if numbers.iter().all(|number| *number <= u16::from(u8::MAX)) {
            let bytes: Vec<u8> = numbers.iter().map(|number| *number as u8).collect();
            return Self::of_bytes(from, tokens, 1, &bytes);
        }
        let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        Self::of_bytes(from, tokens, 2, &bytes)
    }

    /// All of them: `per_token` for each token.
    pub fn numbers(&self) -> Result<Vec<u16>, ExpertsFault> {
        // Before anything is made of it.
        self.check(self.data.len() / 4 * 3 - self.data.bytes().rev().take_while(|byte| *byte == b'=').count().min(2))?;
        let bytes = STANDARD.decode(&self.data).map_err(|error| ExpertsFault::Base64 {
            cause: error.to_string(),
        })?;
        Ok(match self.width {
            1 => bytes.into_iter().map(u16::from).collect(),
            _ => bytes
                .chunks_exact(2)
                .map(|two| u16::from_le_bytes([two[0], two[1]]))
                .collect(),
        })
    }

    fn check(&self, found: usize) -> Result<(), ExpertsFault> {
        let Self {
            tokens,
            per_token,
            width,
            ..
        } = *self;
        if !matches!(width, 1 | 2) {
            return Err(ExpertsFault::Width { width });
        }
        let wanted = tokens
            .checked_mul(per_token)
            .and_then(|numbers| numbers.checked_mul(width))
            .filter(|bytes| *bytes <= MOST_BYTES)
            .ok_or(ExpertsFault::TooMany { tokens, per_token })?;
        if wanted != found {
            return Err(ExpertsFault::Length {
                tokens,
                per_token,
                wanted,
                found,
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
